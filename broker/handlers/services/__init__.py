"""What handlers share: services, limits, messages."""
