"""TCP server: listening sockets, and connections with their limits.

A connection is dropped when it is idle for `connections.max.idle.ms`, when it has not finished a
frame in that time, or when it neither sends the rest of a frame nor reads its answer for STALLED_S.
Nobody knows who a client is during its login, and its handshake of TLS: `logins.py` bounds their
number, time and memory. The buffers of all others share `queued.max.request.bytes`.

Connections above `max.connections`, or from one
address above `max.connections.per.ip` (and its overrides), are accepted and closed at once, so that
the client sees a refusal instead of a timeout; if `max.connections` is lowered below their number,
those go that have been quiet longest, as in Kafka. A client above its `connection_creation_rate` is
held unserved until it could connect again, and then closed: after an immediate close it would
reconnect at once (KIP-612). If all clients together exceed `max.connection.creation.rate`, the last
accepted connection waits, and the others wait in the backlog behind it. They also wait there when
only a quarter of the descriptors that files have not taken is left: connections must not keep the
logs from opening their files.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.network.addresses import plain_address
from strandline.broker.network.buffer_pool import BufferPool
from strandline.broker.network.cold_scheduling import ColdSchedule
from strandline.broker.network.config import NetworkConfig
from strandline.broker.network.connection import Connection, Spawn
from strandline.broker.network.frames import FrameBuffer
from strandline.broker.network.logins import LOGIN_S, Logins, Newcomer
from strandline.broker.network.pacing import SystemChoice
from strandline.broker.network.responses import (
    AuthenticationGate,
    CloseConnectionError,
    HandlerOf,
    RequestHandler,
)
from strandline.broker.network.sockets import Network, SystemNetwork
from strandline.broker.network.transport import Transport
from strandline.storage.clock import Clock
from strandline.storage.quiet_log import QuietLog, place_of

if TYPE_CHECKING:
    from strandline.broker.network.handshake import Handshake, Handshakes

log = logging.getLogger(__name__)

# No byte in either direction for this long, in the middle of a frame: Kafka would wait ten
# minutes; request.timeout.ms of its clients is 30 s.
STALLED_S = 60.0
SWEEP_INTERVAL_S = 5.0
SWEEP_INTERVAL_S_MIN = 0.25
# A connection that is quiet this long frees its receive buffer.
SHRINK_AFTER_S = 10.0
ACCEPTS_PER_EVENT_MAX = 64
# Errors of `accept` that persist until a connection ends.
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE_S = 0.5
# Share of the available descriptors that connections must leave free: one in so many, and at most
# the number below. A log that rolls opens three, and 1,024 sealed segments may be open.
DESCRIPTORS_LEFT_PART = 4
DESCRIPTORS_LEFT_MAX = 2048
TOO_FEW_LEFT = "few file descriptors are left, and logs need them (ulimit -n)"
# Sockets held because their client connects too often; more are closed at once.
HELD_MAX = 1000
HELD_S_MAX = 10.0
# Log at most one line in this time about disconnected clients: they may be many, and hostile.
REFUSAL_LOG_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """Counters of connections: `_total` since the start.

    The sweep closes idle and stalled ones, late logins, and those in excess of max.connections.
    """

    connections: int
    muted_connections: int
    accepted_total: int
    refused_total: int
    closed_idle_total: int
    closed_stalled_total: int
    closed_login_total: int
    closed_excess_total: int
    logins: int
    receive_buffer_bytes: int


class Server:
    """A TCP server on any number of addresses, which owns its connections."""

    def __init__(
        self,
        handler_of: HandlerOf,
        *,
        limits: Callable[[], NetworkConfig],
        admit: Callable[[str], int] = lambda _address: 0,
        pace: Callable[[str], int] = lambda _listener: 0,
        clock: Clock,
        spawn: Spawn,
        network: Network | None = None,
        cold_turns: ColdSchedule | None = None,
        handshakes: Handshakes | None = None,
        on_closed: Callable[[str], None] = lambda _peer: None,
    ) -> None:
        """`handler_of` returns the handler of a new connection by its listener and address, and
        `handshakes` those of listeners with TLS.

        `limits` are read again at every use: they may be altered.

        `admit` returns for how many ms a connecting address is held; 0 admits it. `pace` counts a
        connection of a listener, and returns for how many ms it has to wait. `cold_turns` schedules
        cold answers; it is closed with the server. `on_closed` is told the other end of each
        connection that is closed.
        """
        self._on_closed = on_closed
        self._handler_of = handler_of
        self._admit = admit
        self._pace = pace
        # Connections waiting for their turn: one per listening socket, which pauses meanwhile.
        self._waiting: dict[socket.socket, socket.socket] = {}
        self._held: set[socket.socket] = set()
        self._limits = limits
        self._clock = clock
        self._cold_turns = cold_turns
        self._spawn = spawn
        self._network = network or SystemNetwork()
        self._loop = asyncio.get_running_loop()
        # The name and the congestion control of each listening socket.
        self._listening: dict[socket.socket, tuple[str, SystemChoice]] = {}
        # In the order in which they came: a set's is another one in each run.
        self._connections: dict[Connection, None] = {}
        queued_bytes_max = limits().queued_bytes_max
        self._memory = BufferPool(queued_bytes_max if queued_bytes_max > 0 else None)
        self._handshakes = handshakes
        self._in_handshake: dict[Handshake, None] = {}
        self._logins = Logins(clock)
        self._by_address: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._accepted_total = 0
        self._refused_total = 0
        self._refusals = QuietLog(log, clock, quiet_s=REFUSAL_LOG_S)
        self._failures = QuietLog(log, clock)
        self._closed_idle_total = 0
        self._closed_stalled_total = 0
        self._closed_login_total = 0
        self._closed_excess_total = 0

    def listen(self, host: str, port: int, name: str = "PLAINTEXT") -> int:
        """Starts accepting; returns the port (which the system chose if `port` is 0).

        Raises OSError if the address cannot be bound.
        """
        listening = self._network.listen(host, port)
        self._listening[listening] = name, SystemChoice(listening)
        self._loop.add_reader(listening.fileno(), self._on_acceptable, listening)
        bound_port: int = listening.getsockname()[1]
        return bound_port

    @property
    def is_listening(self) -> bool:
        """Whether clients can connect."""
        return bool(self._listening)

    def _on_acceptable(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_EVENT_MAX):
            try:
                connected, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue  # That client disconnected; others may wait behind it.
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                self._pause_accepting(listening, error.strerror)
                return
            self._accepted_total += 1
            wait_ms = self._pace(self._listening[listening][0])
            if wait_ms:
                self._waiting[listening] = connected
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(wait_ms / 1000, self._end_wait, listening, connected, address)
                return
            self._take_in(listening, connected, address)
            if self._leaves_too_few(connected.fileno()):
                self._pause_accepting(listening, TOO_FEW_LEFT)
                return

    def _leaves_too_few(self, descriptor: int) -> bool:
        """Whether files could get too few descriptors, if `descriptor` is the latest one assigned.

        The system assigns the lowest free one, so about as many as its number are in use.
        """
        left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1 - descriptor
        for_both = left + len(self._connections) + len(self._held)
        return left < min(for_both // DESCRIPTORS_LEFT_PART, DESCRIPTORS_LEFT_MAX)

    def _end_wait(
        self, listening: socket.socket, connected: socket.socket, address: tuple[str, int]
    ) -> None:
        if self._waiting.pop(listening, None) is not None:
            # First: if there is no memory for this one, others wait behind it.
            self._resume_accepting(listening)
            self._take_in(listening, connected, address)

    def _take_in(
        self, listening: socket.socket, connected: socket.socket, address: tuple[str, int]
    ) -> None:
        """Creates the connection of an accepted socket, unless a limit is reached."""
        name, congestion = self._listening[listening]
        limits = self._limits()
        host = plain_address(address[0])
        handshakes = self._handshakes
        if handshakes is not None and not handshakes.are_needed(name):
            handshakes = None
        handler = self._handler_of(name, host) if handshakes is None else None
        must_log_in = handler is None or isinstance(handler, AuthenticationGate)
        if (
            len(self._connections) + len(self._in_handshake) >= limits.connections_max
            or self._by_listener[name] >= limits.of_listener(name)
            or self._by_address[host] >= limits.of_address(host)
            or (must_log_in and not self._has_place())
        ):
            self._refused_total += 1
            connected.close()
            return
        held_ms = self._admit(host)
        if held_ms:
            self._refused_total += 1
            self._hold(connected, held_ms)
            return
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        congestion.restore(connected, host)
        self._by_address[host] += 1
        self._by_listener[name] += 1
        peer = f"{host}:{address[1]}"
        if handshakes is None:
            assert handler is not None
            self._begin(self._network.transport(connected, self._loop), peer, name, handler)
        else:
            handshake = handshakes.begin(
                connected,
                peer=peer,
                listener=name,
                on_done=self._on_handshake,
                on_closed=self._forget_handshake,
            )
            self._in_handshake[handshake] = None
            self._logins.add(handshake)

    def _on_handshake(
        self, handshake: Handshake, transport: Transport, certificate: bytes | None
    ) -> None:
        """Creates the connection; the handshake hands its place on."""
        try:
            handler = self._handler_of(handshake.listener, handshake.peer_address, certificate)
        except Exception as error:
            # A bug costs the client its connection, and frees the place, as in Connection.
            if isinstance(error, CloseConnectionError):
                self._log_refusal(handshake.peer, str(error))
            else:
                self._log_failure(handshake.peer, error)
            transport.close()
            self._forget_handshake(handshake)
            return
        del self._in_handshake[handshake]
        self._logins.discard(handshake)
        self._begin(transport, handshake.peer, handshake.listener, handler)

    def _begin(
        self,
        transport: Transport,
        peer: str,
        listener: str,
        handler: RequestHandler | AuthenticationGate,
    ) -> None:
        frame_bytes_max, memory = self._limits().request_bytes_max, self._memory
        if isinstance(handler, AuthenticationGate):
            frame_bytes_max = min(handler.frame_bytes_max, frame_bytes_max)
            memory = self._logins.memory
        connection = Connection(
            transport,
            peer=peer,
            listener=listener,
            handler=handler,
            loop=self._loop,
            spawn=self._spawn,
            clock=self._clock,
            frames=FrameBuffer(frame_bytes_max, memory),
            on_close=self._forget,
            on_refused=self._log_refusal,
            on_failed=self._log_failure,
            cold_turns=self._cold_turns,
        )
        self._connections[connection] = None
        if isinstance(handler, AuthenticationGate):
            self._logins.add(connection)
            handler.on_open = partial(self._on_login, connection)

    def _has_place(self) -> bool:
        """Returns whether another one may log in; may close one for it."""
        if not self._logins.are_full:
            return True
        slow = self._logins.replaceable()
        if slow is not None:
            self._end_login(slow, "others wait to log in")
        return slow is not None

    def _on_login(self, connection: Connection) -> None:
        """Called at each login of a connection."""
        if connection in self._logins:
            self._logins.discard(connection)
            connection.allow_frames(self._limits().request_bytes_max, self._memory)

    def _end_login(self, newcomer: Newcomer, reason: str) -> None:
        self._closed_login_total += 1
        if self._handshakes is not None and newcomer in self._in_handshake:
            self._handshakes.fail(newcomer.listener, newcomer.peer, "timeout", reason)
        else:
            self._log_refusal(newcomer.peer, reason)
        newcomer.close(reason)

    def _log_refusal(self, peer: str, reason: str) -> None:
        """Logs why a client was disconnected, which the wire cannot tell; at a limited rate."""
        self._refusals.say(
            logging.WARNING,
            "client disconnected for an invalid request",
            self,
            {"peer": peer, "reason": reason},
        )

    def _log_failure(self, peer: str, error: Exception) -> None:
        """Logs an unexpected failure, at a limited rate: a client may retry at once."""
        self._failures.say(
            logging.ERROR,
            "request failed",
            place_of(error),
            {"peer": peer},
            error=error,
        )

    def _hold(self, connected: socket.socket, held_ms: int) -> None:
        """Keeps the socket open without reading it, then closes it."""
        if len(self._held) >= HELD_MAX:
            connected.close()
            return
        self._held.add(connected)
        self._loop.call_later(min(held_ms / 1000, HELD_S_MAX), self._close_held, connected)

    def _close_held(self, connected: socket.socket) -> None:
        self._held.discard(connected)
        connected.close()

    def _forget(self, connection: Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._free_place(connection)
            self._on_closed(connection.peer)

    def _forget_handshake(self, handshake: Handshake) -> None:
        if handshake in self._in_handshake:
            del self._in_handshake[handshake]
            self._free_place(handshake)

    def _free_place(self, closed: Newcomer) -> None:
        self._logins.discard(closed)
        self._by_listener[closed.listener] -= 1
        self._by_address[closed.peer_address] -= 1
        if not self._by_address[closed.peer_address]:
            # One entry per connected address, not per address ever seen.
            del self._by_address[closed.peer_address]

    def _pause_accepting(self, listening: socket.socket, reason: str | None) -> None:
        """Leaves new clients in the backlog for ACCEPT_PAUSE_S.

        The listening socket stays readable as long as one waits there, so retrying would be a busy
        loop, and each round of it a line in the log.
        """
        self._failures.say(
            logging.WARNING,
            "accepting paused",
            reason,
            {"reason": reason, "connections": len(self._connections)},
        )
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(ACCEPT_PAUSE_S, self._end_pause, listening)

    def _end_pause(self, listening: socket.socket) -> None:
        if listening not in self._listening:
            return
        try:
            free = os.dup(listening.fileno())
        except OSError as error:
            self._pause_accepting(listening, error.strerror)
            return
        os.close(free)
        if self._leaves_too_few(free):
            self._pause_accepting(listening, TOO_FEW_LEFT)
        else:
            self._resume_accepting(listening)

    def _resume_accepting(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._on_acceptable, listening)

    async def sweep_forever(self) -> None:
        """Drops idle and stalled connections until cancelled."""
        while True:
            idle_s_max = self._limits().idle_ms_max / 1000
            # Short idle limits are swept more often.
            shortest_s = max(idle_s_max / 2, SWEEP_INTERVAL_S_MIN) if idle_s_max >= 0 else 60.0
            await asyncio.sleep(min(SWEEP_INTERVAL_S, shortest_s))
            self.sweep()

    def sweep(self) -> None:
        """Closes idle and stalled connections, late logins and those above `max.connections`.

        Frees the buffers of quiet connections.
        """
        now_s = self._clock.monotonic_s()
        limits = self._limits()
        idle_ms_max = limits.idle_ms_max
        for connection in tuple(self._connections):
            quiet_s = now_s - connection.last_progress_s
            if connection.is_sending and quiet_s > STALLED_S:
                self._closed_stalled_total += 1
                connection.close("the client does not read its answer")
            elif connection.is_mid_frame and (
                quiet_s > STALLED_S or 0 <= idle_ms_max < self._unfinished_s(connection) * 1000
            ):
                self._closed_stalled_total += 1
                connection.close("the client did not finish its frame")
            elif not connection.is_busy and 0 <= idle_ms_max < quiet_s * 1000:
                self._closed_idle_total += 1
                connection.close("idle for connections.max.idle.ms")
            elif quiet_s > SHRINK_AFTER_S:
                connection.shrink()
        for newcomer in self._logins.overdue():
            self._end_login(newcomer, f"no login within {LOGIN_S:.0f} s")
        excess = len(self._connections) - limits.connections_max
        if excess > 0:
            quietest = sorted(self._connections, key=lambda one: one.last_progress_s)
            for connection in quietest[:excess]:
                self._closed_excess_total += 1
                connection.close("max.connections was lowered")

    def _unfinished_s(self, connection: Connection) -> float:
        """Returns for how long the sweep has seen the connection's frame incomplete."""
        now_s = self._clock.monotonic_s()
        if connection.unfinished_since_s is None:
            connection.unfinished_since_s = now_s
        return now_s - connection.unfinished_since_s

    def stop_accepting(self) -> None:
        for listening in self._listening:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._listening.clear()
        for waiting in self._waiting.values():
            waiting.close()
        self._waiting.clear()

    def close(self) -> None:
        """Stops accepting and drops every connection."""
        self.stop_accepting()
        for held in tuple(self._held):
            self._close_held(held)
        for handshake in tuple(self._in_handshake):
            handshake.close("broker is stopping")
        if self._handshakes is not None:
            self._handshakes.close()
        for connection in tuple(self._connections):
            connection.close("broker is stopping")
        if self._cold_turns is not None:
            self._cold_turns.close()

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            connections=len(self._connections) + len(self._in_handshake),
            muted_connections=sum(c.is_muted for c in self._connections),
            accepted_total=self._accepted_total,
            refused_total=self._refused_total,
            closed_idle_total=self._closed_idle_total,
            closed_stalled_total=self._closed_stalled_total,
            closed_login_total=self._closed_login_total,
            closed_excess_total=self._closed_excess_total,
            logins=len(self._logins),
            receive_buffer_bytes=sum(c.buffer_bytes for c in self._connections),
        )
