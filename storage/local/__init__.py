"""The local tier: segments, indexes and recovery in Kafka's on-disk formats."""
