"""Addresses of connections, as text."""

from __future__ import annotations

import socket
from ipaddress import ip_address

# The host that binds to all addresses of a family.
EVERY_ADDRESS = ""
EVERY_INTERFACE = (EVERY_ADDRESS, "0.0.0.0", "::")


def bindable(host: str) -> tuple[socket.AddressFamily, str]:
    """Returns the family of a listening socket, and the address to bind.

    The wildcard of either family listens on both, as Java binds. Clients that connect to
    `localhost` may try ::1 first, and some of them try nothing else. A name with addresses of both
    families is bound to its IPv4 address, as by Java.

    Raises OSError for a name without an address.
    """
    if host in EVERY_INTERFACE:
        both = socket.has_dualstack_ipv6()
        return (socket.AF_INET6 if both else socket.AF_INET), EVERY_ADDRESS
    # For text Python loads its codec for international names: 0.4 MiB and 1 ms.
    name = host.encode() if host.isascii() else host
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    families = {family for family, *_ in found}
    return (socket.AF_INET if socket.AF_INET in families else socket.AF_INET6), host


def plain_address(host: str) -> str:
    """Returns the IPv4 form of an IPv4-mapped address of a client on an IPv6 listener."""
    return host.removeprefix("::ffff:") if "." in host else host


def is_same_machine(own_host: str, peer_host: str) -> bool:
    """Returns whether a connection between these plain addresses never leaves the machine."""
    return own_host == peer_host or ip_address(peer_host).is_loopback
