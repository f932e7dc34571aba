"""Interface between handlers and the network layer: kinds of answers.

parts       bytes and file ranges, framed, ready to send
Throttled   parts, and a time for which the client is muted afterwards
Cold        parts with records from the archive, which yield to live traffic
Closing     parts, after which the connection is closed
Deferred    parts that come by callback: of a parked fetch, or a handler that waits
awaitable   parts that come from a coroutine, which needs the request's frame until it is Late
None        no answer (acks=0)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from strandline.broker.protocol.schema.schema import Part

Parts: TypeAlias = Sequence[Part]


class CloseConnectionError(Exception):
    """Raised by a handler that must close the connection, as Kafka does; has the reason."""


class ThrottledParts(list[Part]):
    """An answer to a client that exceeded its quota, which is muted after it (KIP-219)."""

    __slots__ = ("throttle_ms",)

    def __init__(self, parts: Iterable[Part], throttle_ms: int) -> None:
        super().__init__(parts)
        self.throttle_ms = throttle_ms


class ColdParts(list[Part]):
    """An answer with records from the archive, which yields to live traffic."""

    __slots__ = ()


class ClosingParts(list[Part]):
    """An answer after which the connection is closed."""

    __slots__ = ("reason",)

    def __init__(self, parts: Iterable[Part], reason: str) -> None:
        super().__init__(parts)
        self.reason = reason


class DeferredAnswer:
    """An answer delivered later by callback; its request's frame is not needed any more.

    `complete` or `fail` is called once; `cancel_hook` is called if the client disconnects first.
    `watcher` is called just before the answer is sent, with the seconds that building took.
    Frames that begin with `goes_on_with` may be handled meanwhile, and are answered after it.
    """

    __slots__ = (
        "_callback",
        "_on_failure",
        "cancel_hook",
        "done",
        "goes_on_with",
        "parts",
        "watcher",
    )

    def __init__(self, *, goes_on_with: bytes = b"") -> None:
        self.goes_on_with = goes_on_with
        # The answer, once it is complete.
        self.parts: Parts | None = None
        self._callback: Callable[[Parts], None] | None = None
        self._on_failure: Callable[[Exception], None] | None = None
        self.cancel_hook: Callable[[], None] | None = None
        self.watcher: Callable[[Parts, float], None] | None = None
        self.done = False

    def attach(
        self, callback: Callable[[Parts], None], on_failure: Callable[[Exception], None]
    ) -> None:
        """Sets the callbacks: one is called, once, unless the client disconnects first."""
        self._callback = callback
        self._on_failure = on_failure

    def complete(self, parts: Parts, busy_s: float = 0.0) -> None:
        self.done = True
        self.parts = parts
        if self.watcher is not None:
            self.watcher(parts, busy_s)
        if self._callback is not None:
            self._callback(parts)

    def fail(self, error: Exception) -> None:
        """Closes the connection: for CloseConnectionError, or a bug that prevented the answer."""
        self.done = True
        if self._on_failure is not None:
            self._on_failure(error)

    def cancel(self) -> None:
        self._callback = self._on_failure = None
        if not self.done and self.cancel_hook is not None:
            self.done = True
            self.cancel_hook()


@dataclass(frozen=True, slots=True)
class LateParts(Awaitable[Parts | None]):
    """Parts for which a coroutine waits that has decoded its request: the frame's memory is free.

    A member of a group may wait for minutes, and must not hold what others need for their frames.
    """

    coming: Awaitable[Parts | None]

    def __await__(self) -> Generator[object, None, Parts | None]:
        return self.coming.__await__()


Answer: TypeAlias = Parts | DeferredAnswer | Awaitable[Parts | LateParts | None] | None


class RequestHandler(Protocol):
    """The layer above the server, which answers requests."""

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        """Answers one request frame: parts to send, an object that delivers them later, or None.

        `received_s` is when its last bytes arrived, in seconds of the monotonic clock. Raises
        CloseConnectionError if the connection must be closed instead.
        """
        ...


class AuthenticationGate(ABC):
    """A handler of one connection that admits requests once its client is authenticated."""

    def __init__(self, frame_bytes_max: int) -> None:
        """`frame_bytes_max` bounds the frames of an unauthenticated client."""
        self.frame_bytes_max = frame_bytes_max
        # Set by the owner of the connection; called when the bound is lifted.
        self.on_open: Callable[[], None] = lambda: None

    @abstractmethod
    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        """As RequestHandler."""


class HandlerOf(Protocol):
    """Makes the handler of a new connection."""

    def __call__(
        self, listener: str, host: str, certificate: bytes | None = None, /
    ) -> RequestHandler | AuthenticationGate:
        """`host` is the plain address of the peer, and `certificate` its own, in DER.

        Raises CloseConnectionError if it must not come in.
        """
        ...
