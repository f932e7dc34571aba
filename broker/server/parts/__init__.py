"""The parts of which roles are made, in the order of a start."""
