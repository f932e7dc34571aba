"""Partitions that other brokers lead, fetched from them; and changes of in-sync sets."""
