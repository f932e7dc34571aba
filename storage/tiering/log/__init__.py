"""One partition across both tiers: the unified log and its reads from the archive."""
