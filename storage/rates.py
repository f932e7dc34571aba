"""Measures rates and computes the pauses that throttle them. Pure: the caller passes the time.

    WindowRate    the mean over the last windows, of `length_ms` each: [ 3 ][ 5 ][ 1 ][ now ... ]
    TokenBucket   tokens grow at a rate, up to a burst; tokens taken beyond that are a debt

Both follow Kafka (`SampledStat` with `Rate` and `SimpleRate`, `TokenBucket`), so that a quota means
the same here. With an observed rate O over a time W and a bound B, a pause X brings it down where
O * W / (W + X) = B, thus X = (O - B) / B * W.
"""

from __future__ import annotations

from collections import deque

# The largest `throttle_time_ms`: 24 days. A quota of 1 byte per second, which shuts clients
# out, asks for more after two megabytes.
THROTTLE_MS_MAX = 2**31 - 1


class _Window:
    """One window of the mean; begun by the first event after the previous window was over."""

    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.last_ms = start_ms
        self.value = 0.0


class WindowRate:
    """The rate per second of recorded events."""

    __slots__ = ("_count", "_counts_idle", "_length_ms", "_windows")

    def __init__(self, *, count: int, length_ms: int, counts_idle: bool) -> None:
        """`counts_idle`: a young rate counts as if the time before had been idle (`Rate`), so that
        a client may have a burst of all windows; else it is taken over one window at least
        (`SimpleRate`), so that a link is kept free from the first second on.
        """
        self._count = count
        self._length_ms = length_ms
        self._counts_idle = counts_idle
        # One more than counts: a window that began before the measured time overlaps it.
        self._windows: deque[_Window] = deque(maxlen=count + 1)

    def record(self, value: float, now_ms: int) -> None:
        windows = self._windows
        if not windows or now_ms - windows[-1].start_ms >= self._length_ms:
            windows.append(_Window(now_ms))
        newest = windows[-1]
        newest.value += value
        newest.last_ms = now_ms

    def per_second(self, now_ms: int) -> float:
        elapsed_ms = self.elapsed_ms(now_ms)
        return sum(window.value for window in self._windows) * 1000 / elapsed_ms

    def elapsed_ms(self, now_ms: int) -> int:
        """Returns the time over which the rate is a mean."""
        windows, length_ms = self._windows, self._length_ms
        while windows and now_ms - windows[0].last_ms >= self._count * length_ms:
            windows.popleft()
        elapsed_ms = now_ms - windows[0].start_ms if windows else 0
        if not self._counts_idle:
            return max(elapsed_ms, length_ms)
        missing = max(self._count - 1 - elapsed_ms // length_ms, 0)
        return max(elapsed_ms + missing * length_ms, 1)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long to pause until the rate is `bound`: 0 if it is not above, THROTTLE_MS_MAX at
        most.
        """
        elapsed_ms = self.elapsed_ms(now_ms)
        rate = self.per_second(now_ms)
        return _pause_ms((rate - bound) / bound * elapsed_ms) if rate > bound else 0


class TokenBucket:
    """Tokens that grow at a rate; full at first."""

    __slots__ = ("_now_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = float("inf")
        self._now_s = 0.0

    def tokens(self, now_s: float, *, per_s: float, burst: float) -> float:
        """Returns the tokens at hand; negative if more were taken than there were."""
        self._tokens = min(self._tokens + (now_s - self._now_s) * per_s, burst)
        self._now_s = now_s
        return self._tokens

    def take(self, count: float) -> None:
        """Takes tokens, also more than there are; `tokens` was called before."""
        self._tokens -= count

    def debt_ms(self, per_s: float) -> int:
        """Returns how long until the debt is paid, THROTTLE_MS_MAX at most."""
        return _pause_ms(-self._tokens / per_s * 1000) if self._tokens < 0 else 0


def _pause_ms(exact_ms: float) -> int:
    return round(min(exact_ms, THROTTLE_MS_MAX))
