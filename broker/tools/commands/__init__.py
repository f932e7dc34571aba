"""The commands that speak to a broker: topics, groups, produce, consume, status."""
