"""Policies of tiering: lifecycle, retries, quotas, ownership, store health."""
