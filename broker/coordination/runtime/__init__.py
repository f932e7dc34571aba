"""Runs the coordinators: shards, journal, expiry, and the archive of groups."""
