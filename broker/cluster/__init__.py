"""Metadata as an ordered log of immutable objects, images of it, and the partitions of this broker."""
