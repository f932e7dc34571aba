"""Options of a query, as Spark's Kafka source names them."""
