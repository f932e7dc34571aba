"""Values decoded into columns: JSON, Avro, Protobuf, text; what does not parse has a policy."""
