"""Archived segments: the .meta object, its indexes, and the batches of a chunk."""
