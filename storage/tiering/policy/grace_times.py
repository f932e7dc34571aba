"""When the grace time of what was let go is over, whatever the wall clock does meanwhile.

    marked_ms         first seen by this process                 over
        |---- wall -----------|------------ monotonic -----------|
        |<-------------- the grace time, at least -------------->|

A mark carries a wall time, for it has to outlive this process. But a wall clock jumps: ahead, and
readers would lose what they are reading; back, and marks lie in the future, so that nothing is
deleted for as long as the clock was wrong, and no further marks find room. So the wall clock is
asked once for each mark, when it is first seen, and counts for no more than the grace time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from strandline.storage.clock import Clock
from strandline.storage.model import TimestampMs

MarkT = TypeVar("MarkT")


class GraceTimes(Generic[MarkT]):
    """Of the marks of one owner; it remembers those that it was last asked about."""

    def __init__(self, clock: Clock, *, grace_ms: int) -> None:
        self._clock = clock
        self._grace_ms = grace_ms
        self._over_s: dict[MarkT, float] = {}

    def over(self, marks: Iterable[tuple[MarkT, TimestampMs]]) -> list[MarkT]:
        """Those whose time is over, of all that wait now, with the wall times they were marked."""
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
