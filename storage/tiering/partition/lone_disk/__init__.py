"""What a replica does that has no others, for records and markers that nobody else has."""
