"""Listening sockets, the set of connections, and the sweep that bounds them.

A connection is dropped when it is idle for `connections.max.idle.ms`, when it owes the rest of a
frame, or when it does not take its answer, for STALLED_S. More than `max.connections` are accepted
and closed at once, so that the client sees a refusal and not a silence.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from dataclasses import dataclass

from strandline.broker.answers import RequestHandler
from strandline.broker.network.connection import Connection, Spawn
from strandline.storage.clock import Clock

log = logging.getLogger(__name__)

# No byte in either direction for this long, in the middle of a frame: Kafka would wait ten
# minutes; request.timeout.ms of its clients is 30 s.
STALLED_S = 60.0
SWEEP_INTERVAL_S = 5.0
# A connection that is quiet this long gives its receive buffer back.
SHRINK_AFTER_S = 10.0
ACCEPTS_PER_EVENT_MAX = 64
# Out of descriptors or memory: until a connection ends, there is nothing to be had.
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE_S = 0.5
LISTEN_BACKLOG = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds of the network layer; names follow Kafka's properties."""

    request_bytes_max: int
    connections_max: int
    idle_ms_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    connections: int
    accepted_total: int
    refused_total: int
    receive_buffer_bytes: int


class Server:
    """Accepts on any number of addresses; owns its connections."""

    def __init__(
        self,
        handler: RequestHandler,
        *,
        limits: ServerLimits,
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._clock = clock
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._connections: set[Connection] = set()
        self._accepted_total = 0
        self._refused_total = 0

    def listen(self, host: str, port: int) -> int:
        """Starts accepting; returns the port (which the system chose if `port` is 0).

        Raises OSError if the address cannot be bound.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(LISTEN_BACKLOG)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
        self._listening.append(listening)
        self._loop.add_reader(listening.fileno(), self._on_acceptable, listening)
        bound_port: int = listening.getsockname()[1]
        return bound_port

    def _on_acceptable(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_EVENT_MAX):
            try:
                connected, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue  # That client went away again; others may wait behind it.
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                log.warning("accepting paused", extra={"fields": {"error": error.strerror}})
                self._pause_accepting(listening)
                return
            self._accepted_total += 1
            if len(self._connections) >= self._limits.connections_max:
                self._refused_total += 1
                connected.close()
                continue
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._connections.add(
                Connection(
                    connected,
                    peer=f"{address[0]}:{address[1]}",
                    handler=self._handler,
                    loop=self._loop,
                    spawn=self._spawn,
                    clock=self._clock,
                    frame_bytes_max=self._limits.request_bytes_max,
                    on_close=self._connections.discard,
                )
            )

    def _pause_accepting(self, listening: socket.socket) -> None:
        """Leaves clients in the backlog for a while.

        The listening socket stays readable as long as one waits there, so trying on would be a
        busy loop, and each round of it a line in the log.
        """
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting, listening)

    def _resume_accepting(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._on_acceptable, listening)

    async def sweep_forever(self) -> None:
        """Drops idle and stalled connections until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.sweep()

    def sweep(self) -> None:
        now_s = self._clock.monotonic_s()
        for connection in tuple(self._connections):
            quiet_s = now_s - connection.last_progress_s
            if connection.is_sending and quiet_s > STALLED_S:
                connection.close("the client does not read its answer")
            elif connection.is_mid_frame and quiet_s > STALLED_S:
                connection.close("the client did not finish its frame")
            elif not connection.is_busy and quiet_s * 1000 > self._limits.idle_ms_max:
                connection.close("idle for connections.max.idle.ms")
            elif quiet_s > SHRINK_AFTER_S:
                connection.shrink()

    def stop_accepting(self) -> None:
        for listening in self._listening:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._listening.clear()

    def close(self) -> None:
        """Stops accepting and drops every connection."""
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.close("broker is stopping")

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            connections=len(self._connections),
            accepted_total=self._accepted_total,
            refused_total=self._refused_total,
            receive_buffer_bytes=sum(c.buffer_bytes for c in self._connections),
        )
