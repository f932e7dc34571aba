"""Options of a query, named as in Spark's Kafka source."""
