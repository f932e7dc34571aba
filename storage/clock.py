"""Wall clock and monotonic clock; no other module reads the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records and retention, monotonic time for waits."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that only grow."""
        ...


class SystemClock:
    """The clocks of the machine."""

    monotonic_s = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
