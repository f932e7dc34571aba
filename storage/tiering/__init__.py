"""Moves closed segments from the local to the remote tier and joins both into one log."""
