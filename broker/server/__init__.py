"""The composition root: makes the broker's parts, runs them, and stops them."""
