"""What a process hears of its supervisor, by its standard input.

    a socket   a monitoring request comes by it, and its answer goes back
    the end    the supervisor asks for a stop, or is dead

So metrics need neither a port of their own nor a password: nobody else has these sockets.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# In the environment of a process that a supervisor runs: its name, which log lines begin with.
SUPERVISED: Final = "STRANDLINE_SUPERVISED"
HANDED: Final = b"m"


def is_supervised() -> bool:
    return SUPERVISED in os.environ


def hand(to: socket.socket, connection: socket.socket) -> None:
    """Hands a connection to a process; `to` is the other end of its standard input.

    Raises OSError, BlockingIOError if it has not taken the earlier ones.
    """
    socket.send_fds(to, [HANDED], [connection.fileno()])


class SupervisorChannel:
    """Our end of it, which the event loop reads."""

    def __init__(
        self, descriptor: int, *, observe: Callable[[socket.socket], None], end: Callable[[], None]
    ) -> None:
        """`observe` gets each socket, and closes it; `end` is called at the end."""
        self.descriptor = descriptor
        self._observe = observe
        self._end = end

    def read(self) -> None:
        """Takes what has come; does not wait for more."""
        try:
            # Another descriptor of the same stream: standard input stays Python's.
            with socket.socket(fileno=os.dup(self.descriptor)) as channel:
                message, handed, _, _ = socket.recv_fds(channel, 1, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            # No socket: the supervisor of another release, which only ends it.
            message, handed = os.read(self.descriptor, 1), []
        for number in handed:
            with suppress(OSError):
                self._observe(socket.socket(fileno=number))
        if not message:
            self._end()
