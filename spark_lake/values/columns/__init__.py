"""Decoding whole columns of values with compiled loops."""
