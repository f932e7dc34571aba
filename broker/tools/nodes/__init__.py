"""The nodes of a cluster: who is there, what each knows and does."""
