"""strandline: a Kafka-compatible broker whose log has two tiers, local disk and an object store."""

__version__ = "0.1.0"
