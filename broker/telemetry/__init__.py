"""What an operator sees of a running broker: counting, collecting, and an HTTP listener."""
