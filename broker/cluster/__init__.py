"""Cluster metadata (an ordered log of immutable objects and its images) and local partitions."""
