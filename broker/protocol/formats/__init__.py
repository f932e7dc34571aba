"""Kafka's record formats of groups and offsets."""
