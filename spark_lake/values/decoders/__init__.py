"""Decoding values one by one: JSON, Avro, Protobuf, text."""
