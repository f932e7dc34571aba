"""Changes of partitions: who is in sync, who leads, who has replicas."""
