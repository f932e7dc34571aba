"""Addresses of connections, as text."""

from __future__ import annotations

from ipaddress import ip_address


def plain_address(host: str) -> str:
    """An IPv4 client of an IPv6 listener is known by its IPv4 address."""
    return host.removeprefix("::ffff:") if "." in host else host


def is_same_machine(own_host: str, peer_host: str) -> bool:
    """Whether a connection between these plain addresses never leaves the machine."""
    return own_host == peer_host or ip_address(peer_host).is_loopback
