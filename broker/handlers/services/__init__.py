"""Shared parts of the handlers: services, limits, authorized operations."""
