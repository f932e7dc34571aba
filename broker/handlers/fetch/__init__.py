"""Fetch, from both tiers."""
