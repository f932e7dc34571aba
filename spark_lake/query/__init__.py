"""One query: bounds, pruning, reading its splits into Arrow."""
