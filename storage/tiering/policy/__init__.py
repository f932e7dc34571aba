"""Policies of tiering: lifecycle, retries, quotas, leadership, store health."""
