"""Fetch requests, from both tiers."""
