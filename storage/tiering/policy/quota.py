"""Quotas on bytes per second to and from the remote tier (KIP-956).

As Kafka's: the rate is measured over the last windows (`storage/rates.py`), and what exceeds the
limit is paid for by waiting afterwards. A copy is counted when it begins, a read when it ends, so
one segment goes at full speed and the next one waits for it.

Deciding (`throttle_s`) takes the time and changes nothing but the windows; waiting is the caller's,
or `wait_a_step`'s.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from strandline.storage.clock import Clock
from strandline.storage.config.definition import INT, LONG, LONG_MAX, key
from strandline.storage.errors import TierUnavailable
from strandline.storage.rates import WindowRate

# A worker waits at most this long for the copy quota at a time; deletes run in between.
THROTTLE_STEP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    """Limits of one quota, and its measuring windows."""

    bytes_per_second_max: int = key(
        "remote.log.manager.{way}.max.bytes.per.second",
        LONG,
        LONG_MAX,
        "Bytes per second {what} the remote tier by this broker, over the quota's windows.",
        minimum=1,
        dynamic=True,
    )
    window_count: int = key(
        "remote.log.manager.{way}.quota.window.num",
        INT,
        11,
        "Windows that the rate of the {way} quota is measured over.",
        minimum=1,
    )
    window_s: int = key(
        "remote.log.manager.{way}.quota.window.size.seconds",
        INT,
        1,
        "Seconds that a window of the {way} quota lasts.",
        minimum=1,
    )


class QuotaExceeded(TierUnavailable):
    """The quota of remote fetches is used up for now; retriable."""


class TierQuota:
    """One of the two quotas. Thread-safe: uploads count from their own threads."""

    def __init__(self, limits: QuotaLimits, clock: Clock) -> None:
        self.limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = WindowRate(
            count=limits.window_count, length_ms=1000 * limits.window_s, counts_idle=False
        )
        # Since the start: transferred bytes, and seconds of waiting.
        self.bytes_total = 0
        self.throttled_s = 0.0

    def record(self, size_bytes: int) -> None:
        """Counts transferred bytes."""
        with self._lock:
            self.bytes_total += size_bytes
            self._rate.record(size_bytes, self._now_ms())

    def throttle_s(self) -> float:
        """Seconds until the rate is within the limit; 0 if it is."""
        if self.limits.bytes_per_second_max >= LONG_MAX:
            return 0.0
        with self._lock:
            return self._rate.throttle_ms(self.limits.bytes_per_second_max, self._now_ms()) / 1000

    async def wait_a_step(self) -> bool:
        """Waits for a part of the throttle time, if there is any; returns whether there was."""
        wait_s = self.throttle_s()
        if wait_s <= 0:
            return False
        waited_s = min(wait_s, THROTTLE_STEP_S)
        self.note_throttled(waited_s)
        await asyncio.sleep(waited_s)
        return True

    def note_throttled(self, waited_s: float) -> None:
        """Counts a throttle; for `strandline_remote_throttled_seconds_total`."""
        with self._lock:
            self.throttled_s += waited_s

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    def __repr__(self) -> str:
        limit = self.limits.bytes_per_second_max
        return f"<TierQuota {limit} B/s, {self.bytes_total} bytes, waited {self.throttled_s} s>"


class ReadGate:
    """Bounds concurrent reads of the remote tier. Used on the event loop only.

    `remote.log.reader.max.pending.tasks` reads may wait besides those that have a thread; further
    reads get TierUnavailable, which a fetch answers with no records. A read that is served from
    memory alone does not wait, and only the quota bounds it.
    """

    def __init__(self, *, reads_max: int, quota: TierQuota) -> None:
        self.quota = quota
        # May be changed at any time; reads under way continue.
        self.reads_max = reads_max
        # Reads that run or wait.
        self.reads = 0

    def check_quota(self, subject: object) -> None:
        """Raises QuotaExceeded if nothing may be read for `subject` at present."""
        wait_s = self.quota.throttle_s()
        if wait_s > 0:
            self.quota.note_throttled(wait_s)
            raise QuotaExceeded(str(subject), "read", f"over the fetch quota for {wait_s:.2f} s")

    @contextmanager
    def waiting(self, subject: object) -> Iterator[None]:
        """Around a read that has to wait. Raises TierUnavailable if too many wait already."""
        if self.reads >= self.reads_max:
            raise TierUnavailable(str(subject), "read", f"{self.reads} remote reads are under way")
        self.reads += 1
        try:
            yield
        finally:
            self.reads -= 1

    def __repr__(self) -> str:
        return f"<ReadGate {self.reads} of {self.reads_max} {self.quota!r}>"
