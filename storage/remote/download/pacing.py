"""Work on many bytes in small steps with sleeps between them, beside live traffic.

    ┌ 128 KiB ┐          ┌ 128 KiB ┐          ┌ 128 KiB ┐
    │  work   │  sleep   │  work   │  sleep   │  work   │       as many bytes as are due by now

A chunk of 8 MiB in one stroke keeps a core for milliseconds, and whoever wants that core waits for
all of it, however seldom it is. In steps nobody waits longer than one of them takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.storage.clock import Clock

# Some hundredths of a millisecond of work.
STEP_BYTES = 128 * 1024


class PacedSteps:
    """How large a step is, and the sleep after it. Sleeps, so not for the event loop."""

    def __init__(self, clock: Clock, *, wait_s: Callable[[float], object] | None = None) -> None:
        """`wait_s` waits so many seconds; it is given with a clock that is not the system's."""
        self._clock = clock
        self._wait_s = wait_s or threading.Event().wait
        self._bytes_per_s = 0
        self._begun_s = 0.0
        self._until_s = 0.0

    def begin(self, bytes_per_s: int, *, until_s: float) -> None:
        """Work begins that goes no faster than that, 0: in one go; no sleep goes past `until_s`."""
        self._bytes_per_s = bytes_per_s
        self._begun_s = self._clock.monotonic_s() if bytes_per_s else 0.0
        self._until_s = until_s

    def step_bytes(self, unbounded_bytes: int) -> int:
        """What may be done in one go; `unbounded_bytes` where there is no rate."""
        return STEP_BYTES if self._bytes_per_s else unbounded_bytes

    def rest(self, done_bytes: int) -> None:
        """Sleeps until so many bytes, counted from `begin`, are due."""
        if self._bytes_per_s:
            due_s = min(self._begun_s + done_bytes / self._bytes_per_s, self._until_s)
            self._wait_s(max(due_s - self._clock.monotonic_s(), 0.0))
