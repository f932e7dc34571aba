"""What a role is made of: parts that follow the metadata, with loops and an end.

    role = a function that makes its parts in the order of a start, and lists them

    local.py       folders, metadata, coordinators, logs,                 front
    tiered.py      the same, and the archive of this broker's topics
    read_only.py   the same, and the archive of another broker, followed
    seat.py        as local.py; the metadata are those of controllers elsewhere, the archive is
                   that of all brokers

Each part is made of those before it, and lets its members follow the metadata. `broker.py` runs
the loops of all, and ends and closes the parts in reverse.
"""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from strandline.broker.config.listeners import Listener

T = TypeVar("T")
Loops: TypeAlias = Mapping[str, Callable[[], Awaitable[None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a broker."""

    # What runs beside the connections, by name.
    loops: Loops = field(default_factory=dict)

    async def serve(self) -> None:
        """Returns when it serves; clients can connect, and its loops run."""

    async def give_up(self) -> None:
        """Raises StrandlineError when the broker cannot go on; returns if that cannot be."""

    async def leave(self) -> None:
        """Lets go of what others can take over, while clients are still served."""

    async def end(self) -> None:
        """Does its last work, while all other parts are there; its loops have ended."""

    async def close(self) -> None:
        """Writes what remains, and lets go of what it holds; the parts after it are closed."""


class Front(Part):
    """The part that others connect to."""

    @property
    @abstractmethod
    def listener(self) -> Listener:
        """The first listener, with the port that it got."""

    @abstractmethod
    async def listen(self) -> None:
        """Begins to serve. Raises CannotListen."""

    @abstractmethod
    def observe(self, connected: socket.socket) -> None:
        """Answers the monitoring request that comes by a connection."""

    @abstractmethod
    def stop_serving(self) -> None:
        """Stops accepting, and drops the connections."""


async def in_worker(worker: Executor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(worker, call)
