"""One client connection: readiness callbacks, requests in order, answers without copies.

            readable                    handler answers at once
    READING ────────► frame ► handle ──────────────────────────► queue answer ─► READING
       ▲                        │ answer comes later                 │ socket is full
       │                        ▼                                    ▼
       └───────────────────── WAITING                             SENDING (turn by turn)

A frame whose buffer finds no memory (`queued.max.request.bytes`) waits unread until others have
been answered; then so do clients' bytes, in their sockets.

A client that exceeded its quota gets its answer at once and is then muted: nothing is read from it
until its throttle time is over (KIP-219).

One request is in process: the next frame is handled when the answer of the last one is in the
socket, so answers keep their order, and the socket is the back-pressure. Only requests that may go
on in the same way (`DeferredAnswer.goes_on_with`: Produce that waits for followers) are handled
while earlier ones wait, PIPELINED_MAX of them, and answered in order. Answers that are ready
together are sent together. A pipelining client has a turn of TURN_S_MAX; then others have theirs.

How bytes come and go is the transport's (`transport.py`).

All connections share the loop: a large answer is sent in parts, each in a turn of the loop, so that
small answers pass between them. One with records from the archive yields to live traffic: while
there is any, its turns are smaller, and it waits for each (`cold_scheduling.py`).

The connection registers for readability once. While it is busy it ignores a first event, and only
then unregisters: a client that waits for its answer costs no epoll call.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias

from strandline.broker.network.buffer_pool import BufferPool
from strandline.broker.network.cold_scheduling import ColdSchedule
from strandline.broker.network.frames import FrameBuffer, FrameError
from strandline.broker.network.responses import (
    CloseConnectionError,
    ClosingParts,
    ColdParts,
    DeferredAnswer,
    LateParts,
    Parts,
    RequestHandler,
    ThrottledParts,
)
from strandline.broker.network.transport import SLACK_BYTES, Transport
from strandline.broker.protocol.schema.schema import Part
from strandline.storage.clock import Clock
from strandline.storage.errors import DiskError
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# Shared by all connections: a consumer that is disconnected retries at once.
_quiet_log = QuietLog(log)

Spawn: TypeAlias = Callable[[Coroutine[object, object, None]], object]

# A pipelining client may have thousands of small requests in one buffer; its answers are sent when
# this many parts wait, and no more are handled while the socket is full.
UNSENT_PARTS_MAX = 64
# Bytes that one connection sends in one turn of the loop, more or less; others may wait for a small
# answer. It is the usual answer of one partition, and takes a quarter of a millisecond.
TURN_BYTES_MAX = 1024 * 1024
# How long one connection handles pipelined requests before others have their turn: its buffer may
# hold tens of thousands of small ones.
TURN_S_MAX = 0.004
# Requests of one client that wait for followers: these are awaited for all of them together.
PIPELINED_MAX = 64
_AT_ONCE = (list, tuple)


class Connection:
    """The state of one client connection; owned by the server."""

    __slots__ = (
        "_awaits_turn",
        "_busy",
        "_clock",
        "_cold_turns",
        "_frames",
        "_handler",
        "_is_cold",
        "_is_in_use",
        "_loop",
        "_mute",
        "_on_close",
        "_on_failed",
        "_on_refused",
        "_outgoing",
        "_pending",
        "_reading",
        "_received_s",
        "_spawn",
        "_transport",
        "_writing",
        "closed",
        "last_progress_s",
        "listener",
        "opened_s",
        "peer",
        "peer_address",
        "unfinished_since_s",
    )

    def __init__(
        self,
        transport: Transport,
        *,
        peer: str,
        listener: str,
        handler: RequestHandler,
        loop: asyncio.AbstractEventLoop,
        spawn: Spawn,
        clock: Clock,
        frames: FrameBuffer,
        on_close: Callable[[Connection], None],
        on_refused: Callable[[str, str], None],
        on_failed: Callable[[str, Exception], None],
        cold_turns: ColdSchedule | None = None,
    ) -> None:
        """`on_refused` is called with peer and reason if a client is disconnected for its bytes,
        and `on_failed` with peer and error if a bug of the broker is the cause.

        Without `cold_turns` cold answers are sent like others.
        """
        self._transport = transport
        self._handler = handler
        self._loop = loop
        self._spawn = spawn
        self._clock = clock
        self._frames = frames
        self._outgoing: deque[Part] = deque()
        # What has no answer yet, in the order of the requests.
        self._pending: deque[DeferredAnswer] = deque()
        self._mute: asyncio.TimerHandle | None = None
        self._busy = False
        # Whether a coroutine reads the last frame.
        self._is_in_use = False
        self._writing = False
        self._reading = True
        self._cold_turns = cold_turns
        # Whether an answer with records from the archive is queued.
        self._is_cold = False
        # Whether it is queued in `cold_turns`; until its turn nothing is sent.
        self._awaits_turn = False
        self._on_close = on_close
        self._on_refused = on_refused
        self._on_failed = on_failed
        self.peer = peer
        # The name of the listener that accepted it.
        self.listener = listener
        self.peer_address = peer.rpartition(":")[0]
        self.closed = False
        self.opened_s = self.last_progress_s = self._received_s = clock.monotonic_s()
        # When the sweep first saw the present frame incomplete.
        self.unfinished_since_s: float | None = None
        transport.start_reading(self._on_readable)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "busy" if self.is_busy else "reading"
        return f"<Connection {self.peer} {state} pending={self._frames.pending_bytes}>"

    # --- receiving ---------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if self._is_held or self._writing:
            is_parked = (self._pending and not self._is_in_use) or self._mute is not None
            # A parked fetch may wait up to 24 days, and its socket would stay open as long.
            if is_parked and self._transport.has_ended():
                self.close("closed by the client")
                return
            self._transport.stop_reading()
            self._reading = False
            return
        try:
            space = self._frames.free_space()
            if space is None:
                self._wait_for_memory()
                return
            byte_count = self._transport.receive_into(space)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receive failed: {error.strerror}")
            return
        except MemoryError:
            # Its frames are dropped: the socket would stay readable, and this a busy loop.
            self._on_refused(self.peer, "no memory for its request")
            self.close("no memory for its request")
            return
        if byte_count == 0:
            self.close("closed by the client")
            return
        self.last_progress_s = self._received_s = self._clock.monotonic_s()
        self._frames.received(byte_count)
        self._process_frames()

    def _wait_for_memory(self) -> None:
        self._transport.stop_reading()
        self._reading = False
        self._busy = True
        self._frames.pool.wait(self._frames.missing_bytes, self._on_memory)

    def _on_memory(self) -> None:
        self._frames.granted()
        self._next_turn()

    def _process_frames(self) -> None:
        """Handles the complete frames, until one must wait; then sends what is ready.

        Other connections get their turn after TURN_S_MAX; a single frame costs no clock call.
        """
        turn_ends_s = 0.0
        pending = self._pending
        try:
            while not self._busy and not self.closed:
                if pending and self._must_wait():
                    break
                if turn_ends_s and self._clock.monotonic_s() > turn_ends_s:
                    self._busy = True
                    self._loop.call_soon(self._next_turn)
                    break
                frame = self._frames.next_frame()
                if frame is None:
                    break
                self.unfinished_since_s = None
                if not turn_ends_s and self._frames.pending_bytes:
                    turn_ends_s = self._clock.monotonic_s() + TURN_S_MAX
                answer = self._handler.handle(frame, self.peer, self._received_s)
                if answer is None:
                    continue
                if pending or not isinstance(answer, _AT_ONCE):
                    self._queue(answer)
                else:
                    if isinstance(answer, ColdParts):
                        self._begin_cold()
                    self._outgoing.extend(answer)
                    if isinstance(answer, ThrottledParts):
                        self._begin_mute(answer.throttle_ms)
                    if len(self._outgoing) > UNSENT_PARTS_MAX:
                        self._flush()
                        if self._writing:
                            break
        except (FrameError, CloseConnectionError) as error:
            if pending:
                # Records of earlier requests may be stored: these are answered first.
                self._on_refused(self.peer, str(error))
                self._queue(ClosingParts((), str(error)))
                return
            # Sends the answers of earlier requests, as far as the socket takes them now.
            self._send(sys.maxsize)
            self._refuse(error)
            return
        except Exception as error:
            self._on_failure(error)
            return
        if not self._is_in_use:
            self._frames.release()
        if self._outgoing and not self._writing:
            self._flush()

    def _queue(self, answer: Parts | DeferredAnswer | Awaitable[Parts | LateParts | None]) -> None:
        """Has an answer go out after those that are pending, once it is complete."""
        coming = answer if isinstance(answer, DeferredAnswer) else DeferredAnswer()
        self._pending.append(coming)
        coming.attach(self._on_answer, self._on_failure)
        if isinstance(answer, Awaitable):
            self._is_in_use = True
            self._spawn(self._await_answer(answer, coming))
        elif not isinstance(answer, DeferredAnswer):
            coming.parts = answer

    def _must_wait(self) -> bool:
        """Whether the next request has to wait for an answer of those that are pending."""
        pending = self._pending
        begin = pending[-1].goes_on_with
        return len(pending) >= PIPELINED_MAX or not (
            begin and self._frames.next_may_begin_with(begin)
        )

    @property
    def _is_held(self) -> bool:
        """Whether no request is taken up now."""
        return self._busy or (bool(self._pending) and self._must_wait())

    async def _await_answer(
        self, answer: Awaitable[Parts | LateParts | None], late: DeferredAnswer
    ) -> None:
        try:
            parts = await answer
            if isinstance(parts, LateParts):
                self._frames.release()
                parts = await parts
        except asyncio.CancelledError:
            self.close("broker is stopping")
            raise
        except Exception as error:
            self._on_failure(error)
        else:
            self._is_in_use = False
            late.complete(() if parts is None else parts)

    def _on_failure(self, error: Exception) -> None:
        """A bug in a handler costs its client the connection, but never stops the broker."""
        if isinstance(error, CloseConnectionError):
            self._refuse(error)
            return
        self._on_failed(self.peer, error)
        self.close("internal error")

    def _on_answer(self, _: Parts) -> None:
        """An answer is complete: it goes out after those of earlier requests."""
        pending, outgoing = self._pending, self._outgoing
        if self.closed or pending[0].parts is None:
            return
        is_first = not outgoing
        while pending and (parts := pending[0].parts) is not None:
            pending.popleft()
            if isinstance(parts, ColdParts):
                self._begin_cold()
            outgoing.extend(parts)
            if isinstance(parts, ThrottledParts):
                self._begin_mute(parts.throttle_ms)
        if pending:
            if is_first:
                # Later ones often come in the same turn of the loop, and are sent with it.
                self._loop.call_soon(self._go_on)
            return
        self._frames.release()
        if isinstance(parts, ClosingParts):
            self._flush()
            self.close(parts.reason)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._flush()
        if not self._writing:
            self._resume()

    def _begin_mute(self, throttle_ms: int) -> None:
        self._busy = True
        self._mute = self._loop.call_later(throttle_ms / 1000, self._end_mute)

    def _end_mute(self) -> None:
        self._mute = None
        self._next_turn()

    def _next_turn(self) -> None:
        self._busy = False
        if not self._writing:
            self._resume()

    def _resume(self) -> None:
        """Handles frames that arrived while busy, then listens again."""
        if self.closed:
            return
        if self._frames.pending_bytes:
            self._process_frames()
        if not (self._reading or self._writing or self.closed or self._is_held):
            self._reading = True
            self._transport.start_reading(self._on_readable)

    # --- sending -----------------------------------------------------------------------------

    def _begin_cold(self) -> None:
        """Prepares for a cold answer: sends earlier answers, which need not wait for its turns."""
        if not self._writing:
            self._flush()
        self._is_cold = True

    def _flush(self) -> None:
        """Sends until the queue is empty, the socket is full, or the turn is over."""
        if self.closed or not self._outgoing:
            return
        if self._is_cold and self._cold_turns is not None and self._cold_turns.is_needed:
            self._wait_for_turn(self._cold_turns)
            return
        self._send(TURN_BYTES_MAX + SLACK_BYTES)
        if not self.closed:
            self._watch_socket()

    def _send(self, bytes_max: int) -> int:
        """Sends about `bytes_max` bytes; returns how many the socket took."""
        try:
            sent = self._transport.send(self._outgoing, bytes_max)
        except OSError as error:
            self.close(f"send failed: {error.strerror}")
            return 0
        except DiskError as error:
            # The head of the answer may be sent: as in Kafka, the connection is closed.
            _quiet_log.say(
                logging.WARNING,
                "response aborted",
                str(error),
                {"peer": self.peer, "error": str(error)},
            )
            self.close(str(error))
            return 0
        if not self._outgoing:
            self._is_cold = False
        self.last_progress_s = self._clock.monotonic_s()
        return sent

    def _watch_socket(self) -> None:
        """Asks the loop to call when the socket takes more, as long as data is queued."""
        if self._outgoing:
            if not self._writing:
                self._writing = True
                self._transport.start_writing(self._on_writable)
        elif self._writing:
            self._writing = False
            self._transport.stop_writing()

    def _on_writable(self) -> None:
        self._flush()
        self._resume_if_sent()

    def _resume_if_sent(self) -> None:
        if not self._writing and not self.closed and not self._is_held:
            self._resume()

    # --- turns of cold answers ---------------------------------------------------------------

    def _wait_for_turn(self, cold_turns: ColdSchedule) -> None:
        if self._awaits_turn:
            return
        if self._writing:
            self._transport.stop_writing()
        self._writing = self._awaits_turn = True
        cold_turns.enter(self)

    def take_turn(self, bytes_max: int) -> int:
        """As TurnTaker."""
        assert self._cold_turns is not None
        self._awaits_turn = False
        sent = self._send(bytes_max + SLACK_BYTES)
        if self.closed:
            return sent
        if self._outgoing and not self._transport.is_full:
            self._awaits_turn = True
            self._cold_turns.enter(self)
            return sent
        self._writing = False
        self._watch_socket()
        self._resume_if_sent()
        return sent

    def go_on(self) -> None:
        """As TurnTaker."""
        self._awaits_turn = self._writing = False
        self._on_writable()

    # --- state and close ---------------------------------------------------------------------

    @property
    def is_mid_frame(self) -> bool:
        """True if a frame is incomplete and the client has to send the rest."""
        return self._frames.pending_bytes > 0 and not self._is_held and not self._writing

    @property
    def is_sending(self) -> bool:
        """True if the client has to read an answer; not while we delay the answer."""
        return self._writing and not self._awaits_turn

    @property
    def is_busy(self) -> bool:
        return self._busy or bool(self._pending) or self._awaits_turn

    @property
    def is_muted(self) -> bool:
        return self._mute is not None

    @property
    def buffer_bytes(self) -> int:
        """Size of the receive buffer."""
        return self._frames.capacity_bytes

    def allow_frames(self, frame_bytes_max: int, pool: BufferPool) -> None:
        """Sets another limit and pool from now on."""
        self._frames.allow(frame_bytes_max, pool)

    def shrink(self) -> None:
        if not (self._busy or self._pending or self._writing):
            self._frames.shrink()

    def _refuse(self, error: FrameError | CloseConnectionError) -> None:
        if not self.closed:
            self._on_refused(self.peer, str(error))
        self.close(str(error))

    def close(self, reason: str) -> None:
        """Closes the socket; calling it again does nothing."""
        if self.closed:
            return
        self.closed = True
        log.debug("connection closed", extra={"fields": {"peer": self.peer, "reason": reason}})
        self._outgoing.clear()
        self._transport.close()
        self._frames.pool.leave(self._on_memory)
        self._frames.close()
        if self._awaits_turn:
            assert self._cold_turns is not None
            self._awaits_turn = False
            self._cold_turns.leave(self)
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None
        for pending in self._pending:
            pending.cancel()
        self._pending.clear()
        self._on_close(self)
