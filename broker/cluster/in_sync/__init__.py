"""What a leader knows of its followers: how far each is, which are in sync, what is replicated."""
