"""The commands for a running broker: topics, groups, produce, consume, status."""
