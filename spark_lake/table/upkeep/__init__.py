"""What is done to a table besides syncs: plans, checks, maintenance, retention."""
