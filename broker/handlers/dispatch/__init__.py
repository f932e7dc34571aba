"""Dispatch of requests to their handlers."""
