"""One module per API: its request and response classes, which are at the same time their tables."""
