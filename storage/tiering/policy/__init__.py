"""What decides or limits tiering: lifecycle, retries, quotas, ownership, queues."""
