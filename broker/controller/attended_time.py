"""Time that counts against others: seconds in which this process could hear them.

A process that is stopped, swapped out or busy hears no heartbeat, and afterwards its timers run
before it reads its sockets. So its own clock proves nothing about others. Here one gap between two
looks counts for at most GAP_MAX_S:

    looks      .  .  .  .                         .  .  .
    clock      0  1  2  3        stopped         60 61 62
    attended   0  1  2  3                         4  5  6

A loop that runs looks more often than that (`ControllerSessions`).
"""

from __future__ import annotations

from collections.abc import Callable

# Two turns of the loop that looks; heartbeats come every two seconds.
GAP_MAX_S = 1.0


class AttendedTime:
    """A clock that stands still while its process does."""

    def __init__(self, monotonic_s: Callable[[], float], gap_max_s: float = GAP_MAX_S) -> None:
        self._monotonic_s = monotonic_s
        self._gap_max_s = gap_max_s
        self._looked_s = monotonic_s()
        self._attended_s = 0.0

    def now_s(self) -> float:
        """Returns the attended seconds since the beginning; they only grow."""
        looked_s = self._monotonic_s()
        self._attended_s += min(looked_s - self._looked_s, self._gap_max_s)
        self._looked_s = looked_s
        return self._attended_s
