"""Rewriting archived segments: merges of small ones, compaction of keyed topics."""
