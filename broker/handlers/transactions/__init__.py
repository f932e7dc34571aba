"""Handlers of the APIs of transactions."""
