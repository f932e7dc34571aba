"""Records as columns, and filters over their keys."""
