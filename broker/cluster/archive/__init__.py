"""The archive of several brokers: who looks after it, and its mirror of the metadata."""
