"""What a handler gives back to the network, and nothing of either.

parts       bytes and file ranges, framed, ready to send
Throttled   parts, and a time for which the client is not listened to afterwards
Cold        parts with records from the archive: they give way to live traffic
Closing     parts, after which the connection is closed; they come later
Deferred    parts that come by callback: a parked fetch, without a task
awaitable   parts that come from a coroutine
None        no answer (acks=0)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from strandline.broker.protocol.schema.schema import Part

Parts: TypeAlias = Sequence[Part]


class CloseConnectionError(Exception):
    """Raised by a handler whose only right answer is to close, as Kafka does; says why."""


class ThrottledParts(list[Part]):
    """An answer of a client that took more than its quota: sent at once, then silence (KIP-219)."""

    __slots__ = ("throttle_ms",)

    def __init__(self, parts: Iterable[Part], throttle_ms: int) -> None:
        super().__init__(parts)
        self.throttle_ms = throttle_ms


class ColdParts(list[Part]):
    """An answer with records from the archive, which gives way to live traffic."""

    __slots__ = ()


class ClosingParts(list[Part]):
    """The last answer of a connection."""

    __slots__ = ("reason",)

    def __init__(self, parts: Iterable[Part], reason: str) -> None:
        super().__init__(parts)
        self.reason = reason


# Kafka's name of everybody who did not say who he is.
ANONYMOUS = "ANONYMOUS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, and by which listener he came."""

    user: str = ANONYMOUS
    listener: str = ""


class Deferred:
    """An answer that comes later by callback, without a task: a parked fetch.

    `complete` or `fail` is called once; `cancel_hook` is called if the client goes away first.
    `watcher` is told just before the answer goes out, with the seconds that it took to build.
    """

    __slots__ = ("_callback", "_on_failure", "cancel_hook", "done", "watcher")

    def __init__(self) -> None:
        self._callback: Callable[[Parts], None] | None = None
        self._on_failure: Callable[[Exception], None] | None = None
        self.cancel_hook: Callable[[], None] | None = None
        self.watcher: Callable[[Parts, float], None] | None = None
        self.done = False

    def attach(
        self, callback: Callable[[Parts], None], on_failure: Callable[[Exception], None]
    ) -> None:
        """One of the two is called, once, unless the client goes away first."""
        self._callback = callback
        self._on_failure = on_failure

    def complete(self, parts: Parts, busy_s: float = 0.0) -> None:
        self.done = True
        if self.watcher is not None:
            self.watcher(parts, busy_s)
        if self._callback is not None:
            self._callback(parts)

    def fail(self, error: Exception) -> None:
        """The answer could not be built: a mistake of ours, which nobody is left to wait for."""
        self.done = True
        if self._on_failure is not None:
            self._on_failure(error)

    def cancel(self) -> None:
        self._callback = self._on_failure = None
        if not self.done and self.cancel_hook is not None:
            self.done = True
            self.cancel_hook()


Answer: TypeAlias = Parts | Deferred | Awaitable[Parts | None] | None


class RequestHandler(Protocol):
    """What the server asks of the layer above."""

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        """Answers one request frame: parts to send, something that brings them later, or None.

        `received_s` is when its last bytes came, in seconds of the monotonic clock.
        Raises CloseConnectionError if the connection must be closed instead.
        """
        ...


class Gate(ABC):
    """A handler of one connection that lets requests through once it knows who sends them."""

    def __init__(self, frame_bytes_max: int) -> None:
        """`frame_bytes_max` bounds what a stranger may send at a time."""
        self.frame_bytes_max = frame_bytes_max
        # Set by the owner of the connection; called when the bound need not hold any more.
        self.on_open: Callable[[], None] = _nothing

    @abstractmethod
    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        """As RequestHandler."""


def _nothing() -> None:
    pass
