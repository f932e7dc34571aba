"""Readers of the archive: objects, catalog, segments."""
