"""Connections without a server, and their clients."""

from __future__ import annotations

import array
import asyncio
import fcntl
import random
import socket
import struct
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from strandline.broker.network.buffer_pool import BufferPool
from strandline.broker.network.cold_scheduling import ColdSchedule
from strandline.broker.network.connection import TURN_BYTES_MAX, Connection
from strandline.broker.network.frames import FrameBuffer
from strandline.broker.network.responses import Answer, Parts, RequestHandler
from strandline.broker.network.transport import PlainTransport, Transport
from strandline.storage.clock import Clock, SystemClock
from strandline.storage.files import FileRange, OpenFile

# Room for every answer of these tests: what stops a connection is its turn and not its socket.
BUFFER_BYTES = 4 * 1024 * 1024
CONTENT = random.Random(1).randbytes(3 * TURN_BYTES_MAX)
REQUEST = struct.pack(">i", 1) + b"?"
AsParts = Callable[[Path], Parts]


def in_file(folder: Path) -> Parts:
    return [CONTENT[:70], range_of(folder, 70, len(CONTENT) - 3), CONTENT[-3:]]


def in_files(folder: Path) -> Parts:
    """As of several partitions; with an empty buffer, as nobody should send but everybody may."""
    parts: list[object] = []
    for at in range(0, len(CONTENT), 500_000):
        end = min(at + 500_000, len(CONTENT))
        parts += [CONTENT[at : at + 10], b"", range_of(folder, at + 10, end)]
    return parts  # type: ignore[return-value]


def range_of(folder: Path, start: int, end: int) -> FileRange:
    path = folder / "segment"
    path.write_bytes(CONTENT)
    return FileRange(OpenFile(path, writable=False), start, end - start)


class Answers:
    """Answers every request with the same."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        return list(self._parts)


def waiting_bytes(client: socket.socket) -> int:
    """What has arrived and is not read yet."""
    found = array.array("i", [0])
    fcntl.ioctl(client, termios.FIONREAD, found)
    return found[0]


class PairEnd(socket.socket):
    """One end of a pair, which has the options of TCP by name."""

    is_corked = False

    def setsockopt(self, level: int, option: int, value: object, *more: object) -> None:  # type: ignore[override]
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_CORK):
            self.is_corked = bool(value)
        else:
            super().setsockopt(level, option, value, *more)  # type: ignore[call-overload]


def pair() -> tuple[PairEnd, socket.socket]:
    ours, client = socket.socketpair()
    end = PairEnd(fileno=ours.detach())
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return end, client


def connection_over(
    ours: socket.socket | Transport,
    handler: RequestHandler,
    clock: Clock,
    cold_turns: ColdSchedule | None = None,
) -> Connection:
    """Made within a running loop."""
    loop = asyncio.get_running_loop()
    return Connection(
        PlainTransport(ours, loop) if isinstance(ours, socket.socket) else ours,
        peer="test:1",
        listener="TEST",
        handler=handler,
        loop=loop,
        spawn=loop.create_task,
        clock=clock,
        frames=FrameBuffer(1000, BufferPool()),
        on_close=lambda _connection: None,
        on_refused=lambda _peer, _reason: None,
        on_failed=lambda _peer, _error: None,
        cold_turns=cold_turns,
    )


@contextmanager
def connection_with(
    parts: Parts, ends: Sequence[socket.socket] = ()
) -> Iterator[tuple[Connection, socket.socket]]:
    ours, client = ends or pair()
    ours.setblocking(False)
    client.setblocking(False)
    connection = connection_over(ours, Answers(parts), SystemClock())
    try:
        yield connection, client
    finally:
        connection.close("the test is over")
        client.close()


async def receive(client: socket.socket, size: int) -> bytes:
    received = b""
    loop = asyncio.get_running_loop()
    while len(received) < size:
        received += await asyncio.wait_for(loop.sock_recv(client, size - len(received)), 60)
    return received
