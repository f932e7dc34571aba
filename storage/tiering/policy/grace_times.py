"""Ends grace times of deletion marks by the monotonic clock, whatever the wall clock does.

    marked_ms         first seen by this process                 over
        |---- wall -----------|------------ monotonic -----------|
        |<-------------- the grace time, at least -------------->|

A mark carries a wall time, since it must survive this process. But a wall clock jumps: forward, and
readers would lose objects that they are reading; back, and marks lie in the future, so no object is
deleted for as long as the clock was wrong, and new marks are refused. So the wall clock is read
once for each mark, when it is first seen, and counts for no more than the grace time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from strandline.storage.clock import Clock
from strandline.storage.model import TimestampMs

MarkT = TypeVar("MarkT")


class GraceTimes(Generic[MarkT]):
    """Grace times of one owner's marks; remembers the marks of the last call."""

    def __init__(self, clock: Clock, *, grace_ms: int) -> None:
        self._clock = clock
        self._grace_ms = grace_ms
        self._over_s: dict[MarkT, float] = {}

    def over(self, marks: Iterable[tuple[MarkT, TimestampMs]]) -> list[MarkT]:
        """Returns the due marks, given all current marks with their wall times."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        known = self._over_s
        self._over_s = {
            mark: known[mark] if mark in known else now_s + self._left_ms(now_ms, marked_ms) / 1000
            for mark, marked_ms in marks
        }
        return [mark for mark, over_s in self._over_s.items() if now_s >= over_s]

    def _left_ms(self, now_ms: TimestampMs, marked_ms: TimestampMs) -> int:
        passed_ms = now_ms - marked_ms
        return max(0, self._grace_ms - max(0, passed_ms))

    def __repr__(self) -> str:
        return f"<GraceTimes grace_ms={self._grace_ms} waiting={len(self._over_s)}>"
