"""Client quotas and throttle times, and the pace of cold reads beside live traffic."""
