"""Connections of this broker to other nodes: controllers, and other brokers."""
