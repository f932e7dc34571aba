"""Produce requests."""
