"""The archive as the lake reads it: objects, catalog, segments."""
