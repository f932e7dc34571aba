"""Shared parts of the handlers: services, limits, messages."""
