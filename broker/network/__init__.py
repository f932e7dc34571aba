"""Sockets and framing."""
