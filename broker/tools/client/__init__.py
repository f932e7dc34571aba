"""A small client of any Kafka cluster, and the output of the tools."""
