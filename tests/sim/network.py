"""A network in virtual time: listening sockets, connections that are slow, cut and refused.

    client ──► Pipe ──► server        (pipes.py), over the link between their two hosts
    client ◄── Pipe ◄── server

The server's end is a socket for `Server` and a Transport for its connection, so that frames pass
through the broker's own `Connection`. Descriptors are numbers that the virtual loop watches. What a
broker connects to itself it reaches by `open`, as asyncio's `create_connection`.

    a process ends      what it wrote arrives, then a reset; who connects is refused
    a host has no power nothing arrives, and nobody is told, until it is there again
    a process stands    its connections are as they are, and others can still connect
    still
    a link is cut       what is sent waits until it is healed

What is in flight when a connection is reset is lost: its client does not know which requests were
carried out.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import defaultdict, deque
from collections.abc import Callable
from random import Random
from typing import cast

from strandline.broker.network.transport import Transport
from strandline.broker.protocol.schema.schema import Part
from strandline.storage.files import FileRange
from tests.sim.loop import OUTSIDE, PROCESS, Process, VirtualLoop
from tests.sim.pipes import End, Link, Pipe

FIRST_PORT = 9092
FIRST_CLIENT_PORT = 40_000
CLIENT_HOST = "10.1.0.1"


class ServerEnd:
    """The server's end: a socket while it is accepted, and then the transport of its connection."""

    def __init__(self, network: VirtualNetwork, peer: str, port: int, host: str) -> None:
        """`peer` and `port` are the client's address, `host` its own."""
        self._loop = network.loop
        self._network = network
        self._descriptor = network.loop.new_descriptor()
        self.peer = peer
        self.port = port
        self.host = host
        self.incoming = network.pipe(peer, host, f"{peer}:{port} sends", self._on_change)
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

    def __init__(self, network: VirtualNetwork, server: ServerEnd, listener: Listener) -> None:
        self._network = network
        # Whose ends they are.
        self.process = PROCESS.get()
        self.listener = listener
        self._changed = asyncio.Event()
        # Called when something has come, or has ended; a transport has its own.
        self.on_change: Callable[[], None] = self._changed.set
        name = f"{server.peer}:{server.port} gets"
        self.incoming = network.pipe(server.host, server.peer, name, self._on_change)
        self.server = server
        server.connect(self.incoming)
        server.incoming.on_room = self._on_change

    def _on_change(self) -> None:
        self.on_change()

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

    def end_with(self, process: Process) -> None:
        """One of its two processes has ended: the system closes its end."""
        if process is self.process:
            self.server.incoming.end(End.RESET)
            self.incoming.reset()
        else:
            self.incoming.end(End.RESET)
            self.server.incoming.reset()
        self._network.forget(self)

    def vanish(self) -> None:
        """One of its two hosts has no power."""
        self.server.incoming.vanish()
        self.incoming.vanish()


class PeerTransport(asyncio.Transport):
    """The connection of a broker to another one, as asyncio gives it."""

    def __init__(
        self, end: ClientEnd, protocol: asyncio.BufferedProtocol, loop: VirtualLoop
    ) -> None:
        super().__init__()
        self._end = end
        self._protocol = protocol
        self._loop = loop
        self._outgoing = bytearray()
        self._is_closing = False
        self._is_due = False
        process = PROCESS.get()
        self._context = OUTSIDE if process is None else process.context
        end.on_change = self._on_change

    @property
    def server_process(self) -> Process | None:
        """The process that accepted it."""
        return self._end.listener.process

    def get_extra_info(self, _name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self._outgoing += data
            self._send()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closing:
            self._end.close()
            self._lose(None)

    def _on_change(self) -> None:
        # It is the process that looks, when it runs.
        if not self._is_due and not self._is_closing:
            self._is_due = True
            self._loop.call_soon(self._look, context=self._context)

    def _send(self) -> None:
        taken = self._end.server.incoming.send(memoryview(bytes(self._outgoing)))
        del self._outgoing[:taken]

    def _look(self) -> None:
        self._is_due = False
        if self._is_closing:
            return
        incoming = self._end.incoming
        if incoming.is_reset:
            self._lose(ConnectionResetError(errno.ECONNRESET, "reset"))
            return
        if self._outgoing:
            self._send()
        data = incoming.take(len(incoming.received))
        while data and not self._is_closing:
            space = self._protocol.get_buffer(-1)
            taken, data = data[: len(space)], data[len(space) :]
            space[: len(taken)] = taken
            self._protocol.buffer_updated(len(taken))
        if incoming.has_ended and not incoming.received:
            self.abort()

    def _lose(self, error: Exception | None) -> None:
        self._is_closing = True
        self._loop.call_soon(self._protocol.connection_lost, error, context=self._context)


class Listener:
    """A listening socket, as `Server` uses one."""

    def __init__(self, network: VirtualNetwork, host: str, port: int) -> None:
        self._network = network
        self.host, self.port = host, port
        self.process = PROCESS.get()
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
    """All links, listening sockets and connections of a simulation; the Network of each broker."""

    def __init__(self, loop: VirtualLoop, random: Random, note: Callable[..., None]) -> None:
        self.loop = loop
        loop.network = self
        self.note = note
        self._random = random
        self._links: defaultdict[tuple[str, str], Link] = defaultdict(lambda: Link(random))
        self._listeners: dict[int, Listener] = {}
        # Of all ports that were ever listened at.
        self._hosts: dict[int, str] = {}
        # In the order in which they came.
        self._connections: dict[ClientEnd, None] = {}
        # By the host without power.
        self._vanished: dict[str, list[ClientEnd]] = {}
        self._ports = FIRST_PORT
        self._client_ports = FIRST_CLIENT_PORT

    def link(self, source: str, target: str) -> Link:
        """Returns one direction between two hosts."""
        return self._links[source, target]

    def links(self) -> list[Link]:
        """Returns all over which something was sent."""
        return list(self._links.values())

    def pipe(self, source: str, target: str, name: str, on_change: Callable[[], None]) -> Pipe:
        return Pipe(self.loop, self.link(source, target), self.note, name, on_change)

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

    async def open(
        self, make_protocol: Callable[[], asyncio.BufferedProtocol], host: str, port: int
    ) -> tuple[PeerTransport, asyncio.BufferedProtocol]:
        """As asyncio's create_connection. Raises ConnectionRefusedError."""
        process = PROCESS.get()
        end = await self.connect(port, client=CLIENT_HOST if process is None else process.host)
        assert end.listener.host == host, (end.listener.host, host)
        protocol = make_protocol()
        transport = PeerTransport(end, protocol, self.loop)
        protocol.connection_made(transport)
        return transport, protocol

    # --- of a client -------------------------------------------------------------------------

    async def connect(self, port: int, *, client: str = CLIENT_HOST) -> ClientEnd:
        """Returns when the server's host answers. Raises ConnectionRefusedError."""
        host = self._host_of(port)
        await asyncio.sleep(self.link(client, host).draw_delay_s())
        while not self._is_reached(client, host):
            await asyncio.sleep(self._random.uniform(0.5, 1.0))
        listener = self._listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        self._client_ports += 1
        server = ServerEnd(self, client, self._client_ports, listener.host)
        end = ClientEnd(self, server, listener)
        self._connections[end] = None
        listener.push(server)
        return end

    def _host_of(self, port: int) -> str:
        self._hosts.update({one.port: one.host for one in self._listeners.values()})
        return self._hosts.get(port, "")

    def _is_reached(self, client: str, host: str) -> bool:
        return host not in self._vanished and not (
            self.link(client, host).is_cut or self.link(host, client).is_cut
        )

    # --- what happens ------------------------------------------------------------------------

    def forget(self, end: ClientEnd) -> None:
        self._connections.pop(end, None)

    def reset_some(self, part: float) -> int:
        """Resets this part of the connections; returns how many."""
        chosen = [end for end in self._connections if self._random.random() < part]
        for end in chosen:
            end.reset()
        return len(chosen)

    def end(self, process: Process) -> None:
        """The process died: its clients see a reset, and the next ones a refusal."""
        self._unbind(process)
        for end in self._of(process):
            end.end_with(process)

    def lose_power(self, process: Process) -> None:
        """Its host is gone: nobody is told, and whoever connects waits."""
        self._unbind(process)
        vanished = self._vanished.setdefault(process.host, [])
        for end in self._of(process):
            end.vanish()
            self.forget(end)
            vanished.append(end)

    def power_on(self, host: str) -> None:
        """The host is there again, and knows nothing of its connections."""
        for end in self._vanished.pop(host, []):
            end.reset()

    def heal(self) -> None:
        for link in self.links():
            link.heal()

    def _of(self, process: Process) -> list[ClientEnd]:
        return [one for one in self._connections if process in (one.process, one.listener.process)]

    def _unbind(self, process: Process) -> None:
        for listener in [one for one in self._listeners.values() if one.process is process]:
            listener.close()
