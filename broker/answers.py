"""What a handler gives back to the network, and nothing of either.

parts       bytes and file ranges, framed, ready to send
Deferred    parts that come by callback: a parked fetch, without a task
awaitable   parts that come from a coroutine
None        no answer (acks=0)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from strandline.broker.protocol.schema import Part

Parts: TypeAlias = Sequence[Part]


class CloseConnectionError(Exception):
    """Raised by a handler whose only right answer is to close, as Kafka does; says why."""


class Deferred:
    """An answer that comes later by callback, without a task: a parked fetch.

    `complete` may be called once; `cancel_hook` is called if the client goes away first.
    """

    __slots__ = ("_callback", "cancel_hook", "done")

    def __init__(self, cancel_hook: Callable[[], None] | None = None) -> None:
        self._callback: Callable[[Parts], None] | None = None
        self.cancel_hook = cancel_hook
        self.done = False

    def attach(self, callback: Callable[[Parts], None]) -> None:
        self._callback = callback

    def complete(self, parts: Parts) -> None:
        self.done = True
        if self._callback is not None:
            self._callback(parts)

    def cancel(self) -> None:
        self._callback = None
        if not self.done and self.cancel_hook is not None:
            self.done = True
            self.cancel_hook()


Answer: TypeAlias = Parts | Deferred | Awaitable[Parts | None] | None


class RequestHandler(Protocol):
    """What the server asks of the layer above."""

    def handle(self, frame: memoryview, peer: str) -> Answer:
        """Answers one request frame: parts to send, something that brings them later, or None.

        Raises CloseConnectionError if the connection must be closed instead.
        """
        ...
