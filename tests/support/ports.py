"""A port that stays a server's own while the server is down.

A server that is started again on the port it had may find it taken: the kernel gives it to whoever
asks for any port meanwhile. A socket that is bound and does not listen keeps it: a server that
says SO_REUSEADDR may listen there, and nobody is given it by chance.
"""

from __future__ import annotations

import os
import socket
import weakref


class ReservedPort:
    """A port on loopback, kept as long as this object lives."""

    def __init__(self) -> None:
        with socket.socket() as keeper:
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keeper.bind(("127.0.0.1", 0))
            self.number: int = keeper.getsockname()[1]
            weakref.finalize(self, os.close, keeper.detach())
