"""Metadata, offsets and producer ids."""
