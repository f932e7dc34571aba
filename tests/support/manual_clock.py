"""A clock that a test moves."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_s = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance_ms(self, delta_ms: int) -> None:
        """Moves both clocks by `delta_ms`; a negative delta moves the wall clock alone."""
        self._now_ms += delta_ms
        if delta_ms > 0:
            self._monotonic_s += delta_ms / 1000
