"""The log and its two tiers: local disk and object store."""
