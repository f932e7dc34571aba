"""A small client of any Kafka cluster, and how its answers are printed."""
