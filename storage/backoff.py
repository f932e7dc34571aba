"""The wait before a failed call is retried."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage import entropy

# 2^20 times the first wait is days.
_DOUBLINGS_MAX = 20


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `first_s` up to `max_s`.

    Each is off by up to `jitter` of itself, so that callers that failed together do not retry
    in step.
    """

    first_s: float
    max_s: float
    jitter: float = 0.0

    def wait_s(self, failures: int) -> float:
        """Returns the wait before the next attempt, after this many failures in a row."""
        doublings = min(max(failures - 1, 0), _DOUBLINGS_MAX)
        wait_s = min(self.first_s * (1 << doublings), self.max_s)
        return wait_s * (1 + self.jitter * (2 * entropy.fraction() - 1))
