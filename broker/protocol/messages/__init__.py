"""One module per API: its request and response classes, which are also the field tables."""
