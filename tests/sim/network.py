"""A network in virtual time: listening sockets, connections that are slow, cut and refused.

    client ──► Pipe ──► server        bytes arrive in order, each some time after it was sent;
    client ◄── Pipe ◄── server        a pipe takes only so many that were not read yet

The server's end is a socket for `Server` and a Transport for its connection, so that frames pass
through the broker's own `Connection`. Descriptors are numbers that the virtual loop watches.

What is in flight when a connection is reset is lost: its client does not know which requests were
carried out.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from random import Random
from typing import cast
from zlib import crc32

from strandline.broker.network.transport import Transport
from strandline.broker.protocol.schema.schema import Part
from strandline.storage.files import FileRange
from tests.sim.loop import VirtualLoop

# Bytes of one direction that were not read yet; of a socket's buffers together.
PIPE_BYTES_MAX = 256 * 1024
FIRST_PORT = 9092
DELAY_S = (0.0001, 0.002)


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: VirtualNetwork, name: str, on_change: Callable[[], None]) -> None:
        """`on_change` is called when something has come for the reader."""
        self._network = network
        self._name = name
        self._on_change = on_change
        self._in_flight = 0
        self._arrives_s = 0.0
        # What is under way; None is the end. Timers of one time come in no order.
        self._under_way: deque[bytes | None] = deque()
        self.received = bytearray()
        self.has_ended = False
        self.is_reset = False
        # Called when there is room again.
        self.on_room: Callable[[], None] = lambda: None

    @property
    def room_bytes(self) -> int:
        return PIPE_BYTES_MAX - self._in_flight - len(self.received)

    def send(self, data: bytes | memoryview) -> int:
        """Takes as much as there is room for; returns how much."""
        taken = bytes(data[: max(0, self.room_bytes)])
        self._in_flight += len(taken)
        if taken:
            self._begin(taken)
        return len(taken)

    def end(self) -> None:
        self._begin(None)

    def reset(self) -> None:
        """What is in flight is lost."""
        self.is_reset = True
        self.received.clear()
        self._on_change()
        self.on_room()

    def take(self, byte_count: int) -> bytes:
        taken = bytes(self.received[:byte_count])
        del self.received[:byte_count]
        if taken:
            self.on_room()
        return taken

    def _begin(self, data: bytes | None) -> None:
        loop = self._network.loop
        self._under_way.append(data)
        self._arrives_s = max(self._arrives_s, loop.time() + self._network.draw_delay_s())
        loop.call_at(self._arrives_s, self._arrive)

    def _arrive(self) -> None:
        data = self._under_way.popleft()
        if self.is_reset:
            return
        self._network.note(self._name, -1 if data is None else crc32(data))
        if data is None:
            self.has_ended = True
        else:
            self._in_flight -= len(data)
            self.received += data
        self._on_change()


class ServerEnd:
    """The server's end: a socket while it is accepted, and then the transport of its connection."""

    def __init__(self, network: VirtualNetwork, peer: str, port: int) -> None:
        self._loop = network.loop
        self._network = network
        self._descriptor = network.loop.new_descriptor()
        self.peer = peer
        self.port = port
        self.incoming = Pipe(network, f"{peer}:{port} sends", self._on_change)
        self.outgoing: Pipe
        self.is_full = False
        self._is_closed = False

    # --- as a socket -------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._descriptor

    def setblocking(self, _flag: bool) -> None:
        """It never blocks."""

    def setsockopt(self, *_args: object) -> None:
        """There is nothing to set."""

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.stop_reading()
            self.stop_writing()
            self._loop.drop_descriptor(self._descriptor)
            self.outgoing.end()
            # What the client sends from now on is answered by a reset.
            self.incoming.received.clear()

    # --- as a Transport ----------------------------------------------------------------------

    def receive_into(self, space: memoryview) -> int:
        if self.incoming.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        taken = self.incoming.take(len(space))
        if not taken and not self.incoming.has_ended:
            raise BlockingIOError
        space[: len(taken)] = taken
        self._on_change()
        return len(taken)

    def send(self, outgoing: deque[Part], bytes_max: int) -> int:
        if self.outgoing.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        sent = 0
        self.is_full = False
        while outgoing and sent < bytes_max:
            head = outgoing[0]
            data = head.read() if isinstance(head, FileRange) else head
            taken = self.outgoing.send(memoryview(data)[: bytes_max - sent])
            sent += taken
            if taken == len(data):
                outgoing.popleft()
                continue
            if isinstance(head, FileRange):
                outgoing[0] = FileRange(head.file, head.position + taken, head.length - taken)
            else:
                outgoing[0] = memoryview(data)[taken:]
            self.is_full = sent < bytes_max
            break
        self._on_change()
        return sent

    def has_ended(self) -> bool:
        return self.incoming.is_reset or (self.incoming.has_ended and not self.incoming.received)

    def start_reading(self, on_readable: Callable[[], None]) -> None:
        self._loop.add_reader(self._descriptor, on_readable)
        self._on_change()

    def stop_reading(self) -> None:
        self._loop.remove_reader(self._descriptor)

    def start_writing(self, on_writable: Callable[[], None]) -> None:
        self._loop.add_writer(self._descriptor, on_writable)
        self._on_change()

    def stop_writing(self) -> None:
        self._loop.remove_writer(self._descriptor)

    def _on_change(self) -> None:
        if self._is_closed:
            return
        incoming, outgoing = self.incoming, self.outgoing
        is_readable = bool(incoming.received) or incoming.has_ended or incoming.is_reset
        self._loop.set_ready(
            self._descriptor,
            readable=is_readable,
            writable=outgoing.room_bytes > 0 or outgoing.is_reset,
        )

    def connect(self, outgoing: Pipe) -> None:
        self.outgoing = outgoing
        outgoing.on_room = self._on_change


class ClientEnd:
    """The client's end: reads and writes that wait."""

    def __init__(self, network: VirtualNetwork, server: ServerEnd, port: int) -> None:
        self._network = network
        # The server's.
        self.port = port
        self._changed = asyncio.Event()
        self.incoming = Pipe(network, f"{server.peer}:{server.port} gets", self._changed.set)
        self.server = server
        server.connect(self.incoming)
        server.incoming.on_room = self._changed.set

    async def send(self, data: bytes) -> None:
        """Raises ConnectionError."""
        left = memoryview(data)
        while left:
            self._check()
            left = left[self.server.incoming.send(left) :]
            if left:
                await self._change()

    async def receive(self, byte_count: int) -> bytes:
        """Raises ConnectionError if it ends before."""
        found = b""
        while len(found) < byte_count:
            self._check()
            taken = self.incoming.take(byte_count - len(found))
            found += taken
            if not taken:
                if self.incoming.has_ended:
                    raise ConnectionResetError(errno.ECONNRESET, "closed by the server")
                await self._change()
        return found

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _check(self) -> None:
        if self.incoming.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "reset")

    def close(self) -> None:
        self.server.incoming.end()
        self._network.forget(self)

    def reset(self) -> None:
        self.server.incoming.reset()
        self.incoming.reset()
        self._network.forget(self)


class Listener:
    """A listening socket, as `Server` uses one."""

    def __init__(self, network: VirtualNetwork, host: str, port: int) -> None:
        self._network = network
        self.host, self.port = host, port
        self._descriptor = network.loop.new_descriptor()
        self._backlog: deque[ServerEnd] = deque()
        self.is_closed = False

    def fileno(self) -> int:
        return self._descriptor

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def getsockopt(self, *_args: object) -> bytes:
        return b"cubic\0"

    def setsockopt(self, *_args: object) -> None:
        """There is nothing to set."""

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if not self._backlog:
            raise BlockingIOError
        end = self._backlog.popleft()
        self._network.loop.set_ready(self._descriptor, readable=bool(self._backlog))
        return cast(socket.socket, end), (end.peer, end.port)

    def push(self, end: ServerEnd) -> None:
        self._backlog.append(end)
        self._network.loop.set_ready(self._descriptor, readable=True)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._network.loop.drop_descriptor(self._descriptor)
            self._network.unbind(self)


class VirtualNetwork:
    """All listening sockets and connections of a simulation; the Network of each broker."""

    def __init__(self, loop: VirtualLoop, random: Random, note: Callable[..., None]) -> None:
        self.loop = loop
        self.note = note
        self._random = random
        self._listeners: dict[int, Listener] = {}
        self._connections: list[ClientEnd] = []
        self._ports = FIRST_PORT
        self.delay_s = DELAY_S

    def draw_delay_s(self) -> float:
        return self._random.uniform(*self.delay_s)

    # --- of a broker -------------------------------------------------------------------------

    def listen(self, host: str, port: int) -> socket.socket:
        if port == 0:
            port, self._ports = self._ports, self._ports + 1
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = self._listeners[port] = Listener(self, host, port)
        return cast(socket.socket, listener)

    def unbind(self, listener: Listener) -> None:
        del self._listeners[listener.port]

    def transport(self, connected: socket.socket, _loop: asyncio.AbstractEventLoop) -> Transport:
        return cast(ServerEnd, connected)

    # --- of a client -------------------------------------------------------------------------

    async def connect(self, port: int, *, client: str = "10.0.0.1") -> ClientEnd:
        """Raises ConnectionRefusedError."""
        await asyncio.sleep(self.draw_delay_s())
        listener = self._listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        server = ServerEnd(self, client, 40_000 + len(self._connections))
        end = ClientEnd(self, server, port)
        self._connections.append(end)
        listener.push(server)
        return end

    def forget(self, end: ClientEnd) -> None:
        if end in self._connections:
            self._connections.remove(end)

    def reset_some(self, part: float) -> int:
        """Resets this part of the connections; returns how many."""
        chosen = [end for end in self._connections if self._random.random() < part]
        for end in chosen:
            end.reset()
        return len(chosen)

    def kill(self, port: int) -> None:
        """The process behind a port died: its clients see a reset, and the next ones a refusal."""
        listener = self._listeners.get(port)
        if listener is not None:
            listener.close()
        for end in [one for one in self._connections if one.port == port]:
            end.reset()
