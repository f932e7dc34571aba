"""What requests change, for the record."""
