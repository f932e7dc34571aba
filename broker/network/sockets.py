"""Where a server gets its sockets, and what they carry."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from strandline.broker.network.addresses import EVERY_ADDRESS, bindable
from strandline.broker.network.transport import PlainTransport, Transport

LISTEN_BACKLOG = 512


class Network(Protocol):
    """Where a server gets its sockets, and what they carry."""

    def listen(self, host: str, port: int, /) -> socket.socket:
        """Binds a socket that does not block. Raises OSError."""
        ...

    def transport(
        self, connected: socket.socket, loop: asyncio.AbstractEventLoop, /
    ) -> Transport: ...


class SystemNetwork:
    """The sockets of the system, and plain bytes."""

    transport = staticmethod(PlainTransport)

    def listen(self, host: str, port: int) -> socket.socket:
        family, address = bindable(host)
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and address == EVERY_ADDRESS:
                # The system may be set to exclude IPv4 from such a socket.
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listening.bind((address, port))
            listening.listen(LISTEN_BACKLOG)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
        return listening
