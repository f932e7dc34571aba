"""TLS: keys and certificates as Kafka configures them, contexts, and the names of clients."""
