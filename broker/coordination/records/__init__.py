"""Encoding and decoding of the group and offset records in `__consumer_offsets`."""
