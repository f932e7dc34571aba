"""Queries: bounds, pruning, and reading of splits into Arrow."""
