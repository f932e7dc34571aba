"""Engines of a sync: what reads a round and writes its files, here or in Spark's tasks."""
