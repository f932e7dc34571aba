"""Fetches that wait for bytes (Kafka's fetch purgatory), without a task per fetch.

A parked fetch completes on the first of three events: enough bytes came below the high watermark,
one of its partitions was removed, or its wait timed out. In each case the answer is built once, in
a later turn of the loop: many appends of one turn wake a fetch once, and a producer never waits
while a consumer's answer is built.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from strandline.broker.cluster.replicas.partition import Partition


class ParkedFetch:
    """One waiting fetch; registers itself with its partitions."""

    __slots__ = (
        "__weakref__",
        "_finish",
        "_loop",
        "_missing_bytes",
        "_partitions",
        "_scheduled",
        "_timer",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        partitions: Sequence[Partition],
        *,
        missing_bytes: int,
        wait_ms_max: int,
        finish: Callable[[], None],
    ) -> None:
        """`finish` is called exactly once, never from inside this constructor."""
        self._loop = loop
        self._partitions = partitions
        self._missing_bytes = missing_bytes
        self._finish: Callable[[], None] | None = finish
        self._scheduled = False
        self._timer = loop.call_later(wait_ms_max / 1000, self._end)
        for partition in partitions:
            partition.wait(self)

    def on_high_watermark(self, size_bytes: int) -> None:
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self._end_soon()

    def on_gone(self) -> None:
        self._end_soon()

    def _end_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        finish = self._finish
        if finish is not None:
            self.cancel()
            finish()

    def cancel(self) -> None:
        """Ends the wait without an answer: the client disconnected."""
        # `finish` references the answer, which references this object. If the cycle stayed, each
        # fetch at the end of a log would be left to the garbage collector.
        self._finish = None
        self._timer.cancel()
        for partition in self._partitions:
            partition.stop_waiting(self)
