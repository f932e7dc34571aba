"""The object store interface, and its store in a folder."""
