"""Decoders of values by format: JSON, Avro, Protobuf, text."""
