"""The Kafka wire: schema tables, generated codecs, error codes. Imports nothing of ours."""
