"""Addresses of connections, as text."""

from __future__ import annotations

import socket
from ipaddress import ip_address

# What binds to all of a family's addresses.
EVERY_ADDRESS = ""
EVERY_INTERFACE = (EVERY_ADDRESS, "0.0.0.0", "::")


def bindable(host: str) -> tuple[socket.AddressFamily, str]:
    """The family of a listening socket, and the address that it binds to.

    Every interface is every one of both families, in whichever of them it is written: Java binds
    so. Clients that are told `localhost` may try ::1 first, and some of them try nothing else.
    A name that stands for addresses of both families is taken for its IPv4 address, as by Java.

    Raises OSError for a name without an address.
    """
    if host in EVERY_INTERFACE:
        both = socket.has_dualstack_ipv6()
        return (socket.AF_INET6 if both else socket.AF_INET), EVERY_ADDRESS
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    families = {family for family, *_ in found}
    return (socket.AF_INET if socket.AF_INET in families else socket.AF_INET6), host


def plain_address(host: str) -> str:
    """An IPv4 client of an IPv6 listener is known by its IPv4 address."""
    return host.removeprefix("::ffff:") if "." in host else host


def is_same_machine(own_host: str, peer_host: str) -> bool:
    """Whether a connection between these plain addresses never leaves the machine."""
    return own_host == peer_host or ip_address(peer_host).is_loopback
