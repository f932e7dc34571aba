"""No pacing between processes of one machine.

Where the system's congestion control is BBR, every connection is paced: the kernel estimates what
the path carries, and a timer lets out a few segments at a time. On a real path that is the point.
Between two processes of one machine there is no path to estimate, nothing is ever lost, and a timer
and a softirq per few segments is a third of what sending a byte costs.

So clients on the broker's own machine are served with Reno, which every kernel has, lets everybody
choose, and which without loss sends as much as the other side takes. Whoever is elsewhere gets what
the system has chosen:

    listening socket     reno       what is accepted inherits it, and was never under BBR: a
                                    connection that has been stays paced for good
    accepted, from here  as it is
    accepted, from away  the system's choice again, before the first byte is sent

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
    """What one listening socket was given by the system, and who gets it back."""

    __slots__ = ("_replaced",)

    def __init__(self, listening: socket.socket) -> None:
        """Takes the pacing off a socket that is about to listen."""
        self._replaced: bytes | None = None
        found = congestion_control(listening)
        if not found.startswith(PACED_PREFIX):
            return
        # It is a matter of cost: where it cannot be had, clients are served all the same.
        with suppress(OSError):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)
            self._replaced = found

    def restore(self, connected: socket.socket, peer_host: str) -> None:
        """Gives it back to an accepted connection, unless its client is on this machine.

        `peer_host` is the client's plain address.
        """
        if self._replaced is None:
            return
        with suppress(OSError):
            if is_same_machine(plain_address(connected.getsockname()[0]), peer_host):
                return
            # A route may name a control of its own, which goes before the listening socket's.
            if congestion_control(connected) == UNPACED:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._replaced)


def congestion_control(connected: socket.socket) -> bytes:
    """The name of what a TCP socket uses; empty where it cannot be asked."""
    try:
        name = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_BYTES_MAX)
    except OSError:
        return b""
    return name.rstrip(b"\0")
