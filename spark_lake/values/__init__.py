"""Decoding of values into columns: JSON, Avro, Protobuf, text, and the policy for parse errors."""
