"""One partition across both tiers: the unified log, and what it reads from the archive."""
