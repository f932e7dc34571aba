"""`make mixed`: strandline brokers in a cluster of Apache Kafka's controllers."""
