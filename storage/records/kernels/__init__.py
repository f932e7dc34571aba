"""Loops over batches and records compiled by numba."""
