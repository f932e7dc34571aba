"""Schemas of values and the registry that holds them."""
