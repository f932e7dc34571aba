"""Authorization: who may do what, by the rules in the metadata."""
