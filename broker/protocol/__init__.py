"""Kafka wire protocol: schema tables, generated codecs, error codes. Imports no other package."""
