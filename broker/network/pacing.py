"""Disables TCP pacing between processes of one machine.

If the system's congestion control is BBR, every connection is paced: the kernel estimates the
bandwidth of the path, and a timer sends a few segments at a time. On a real path that is useful.
Between two processes of one machine nothing is lost, and a timer and a softirq per few segments are
a third of the cost of sending a byte.

So clients on the broker's own machine are served with Reno, which every kernel has, every process
may choose, and which without loss sends as much as the peer takes. Other clients get the system's
default:

    listening socket     reno       accepted sockets inherit it, and were never under BBR: a
                                    connection that has been stays paced for good
    accepted, local      unchanged
    accepted, remote     the system's default again, before the first byte is sent

Only BBR is replaced. Other controls do not pace, and DCTCP must be known when a connection is made.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from strandline.broker.network.addresses import is_same_machine, plain_address

UNPACED = b"reno"
# BBR and its later versions, bbr2 and bbr3.
PACED_PREFIX = b"bbr"
# TCP_CA_NAME_MAX in Linux.
NAME_BYTES_MAX = 16


class SystemChoice:
    """The system's congestion control of one listening socket, restored for remote clients."""

    __slots__ = ("_replaced",)

    def __init__(self, listening: socket.socket) -> None:
        """Disables pacing for what the socket will accept."""
        self._replaced: bytes | None = None
        found = congestion_control(listening)
        if not found.startswith(PACED_PREFIX):
            return
        # It only saves cost: clients are served also where it cannot be set.
        with suppress(OSError):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)
            self._replaced = found

    def restore(self, connected: socket.socket, peer_host: str) -> None:
        """Restores it for an accepted connection, unless its client is on this machine.

        `peer_host` is the client's plain address.
        """
        if self._replaced is None:
            return
        with suppress(OSError):
            if is_same_machine(plain_address(connected.getsockname()[0]), peer_host):
                return
            # A route may have its own congestion control, which precedes the listening socket's.
            if congestion_control(connected) == UNPACED:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._replaced)


def congestion_control(connected: socket.socket) -> bytes:
    """Returns the congestion control of a TCP socket; empty where it cannot be read."""
    try:
        name = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_BYTES_MAX)
    except OSError:
        return b""
    return name.rstrip(b"\0")
