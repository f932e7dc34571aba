"""Tiering of all partitions: scheduling, housekeeping, removal of topics."""
