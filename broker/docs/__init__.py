"""Generates pages of docs/ from the code."""
