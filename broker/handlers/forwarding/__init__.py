"""Requests of clients that the active controller decides, at a broker that is not its own."""
