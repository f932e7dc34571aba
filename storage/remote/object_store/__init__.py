"""The object store interface, and its stores in a folder and in memory."""
