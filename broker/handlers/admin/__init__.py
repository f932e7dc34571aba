"""Admin APIs: topics, configurations, quotas, users, partitions."""
