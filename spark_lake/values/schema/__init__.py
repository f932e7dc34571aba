"""Schemas of values, and the schema registry."""
