"""Metadata as an ordered log of immutable objects, images of it, and this broker's partitions."""
