"""How fast something goes, and how long it must pause to be slow enough again. Pure: time comes in.

    SampledRate   bytes and time per second: the mean over the last `window_count` windows
    TokenBucket   changes of the metadata: a burst is paid back at the rate of the quota

Both follow Kafka (`Rate`, `SampledStat`, `TokenBucket`, `QuotaUtils.throttleTime`), so that a quota
means the same here. With an observed rate O over a window W and a bound B, a pause X brings it down
where O * W / (W + X) = B, thus X = (O - B) / B * W.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from strandline.storage.config.definition import INT, key

# What `throttle_time_ms` can say: 24 days. A quota of 1 byte per second, which is how clients are
# shut out, asks for more after two megabytes.
THROTTLE_MS_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWindows:
    """Over which time the rates of clients are taken: all full windows but the current one."""

    count: int = key(
        "quota.window.num",
        INT,
        11,
        "Number of windows over which the broker measures a client's rate for its quota.",
        minimum=1,
        maximum=1000,
    )
    length_ms: int = key(
        "quota.window.size.seconds",
        INT,
        1,
        "Length of one of these windows.",
        minimum=1,
        maximum=3600,
        convert=lambda seconds: 1000 * seconds,
    )

    @property
    def full_ms(self) -> int:
        """What is surely behind us when a rate is said to be known."""
        return (self.count - 1) * self.length_ms


class _Sample:
    """One window; begun by the first event after the one before was over."""

    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.last_ms = start_ms
        self.value = 0.0


class SampledRate:
    """The rate per second of something that is counted now and then."""

    __slots__ = ("_samples", "_windows")

    def __init__(self, windows: QuotaWindows) -> None:
        self._windows = windows
        # One more than counts: a window that began before the time that is looked at overlaps it.
        self._samples: deque[_Sample] = deque(maxlen=windows.count + 1)

    def record(self, value: float, now_ms: int) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1].start_ms >= self._windows.length_ms:
            samples.append(_Sample(now_ms))
        newest = samples[-1]
        newest.value += value
        newest.last_ms = now_ms

    def per_second(self, now_ms: int) -> float:
        window_ms = self.window_ms(now_ms)
        return sum(sample.value for sample in self._samples) * 1000 / window_ms

    def window_ms(self, now_ms: int) -> int:
        """The time over which the rate is a mean; a young one counts as if it had been idle."""
        windows = self._windows
        expiry_ms = windows.count * windows.length_ms
        while self._samples and now_ms - self._samples[0].last_ms >= expiry_ms:
            self._samples.popleft()
        elapsed_ms = now_ms - self._samples[0].start_ms if self._samples else 0
        missing = windows.count - 1 - elapsed_ms // windows.length_ms
        if missing > 0:
            elapsed_ms += missing * windows.length_ms
        return max(elapsed_ms, 1)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long to pause until the rate is `bound`: 0 if it is not above, THROTTLE_MS_MAX at
        most.
        """
        window_ms = self.window_ms(now_ms)
        rate = self.per_second(now_ms)
        return _pause_ms((rate - bound) / bound * window_ms) if rate > bound else 0


class TokenBucket:
    """Credits that grow at the quota's rate, up to what all windows together may take."""

    __slots__ = ("_tokens", "_updated_ms", "_windows")

    def __init__(self, windows: QuotaWindows) -> None:
        self._windows = windows
        self._tokens = float("inf")
        self._updated_ms = 0

    def tokens(self, bound: float, now_ms: int) -> float:
        burst = bound * self._windows.count * self._windows.length_ms / 1000
        grown = bound * (now_ms - self._updated_ms) / 1000
        self._tokens = min(burst, self._tokens + grown)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, count: float, bound: float, now_ms: int) -> None:
        """Takes credits, also those that are not there."""
        self._tokens = self.tokens(bound, now_ms) - count

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long until nothing is owed any more, THROTTLE_MS_MAX at most."""
        tokens = self.tokens(bound, now_ms)
        return _pause_ms(-tokens / bound * 1000) if tokens < 0 else 0


def _pause_ms(exact_ms: float) -> int:
    return round(min(exact_ms, THROTTLE_MS_MAX))
