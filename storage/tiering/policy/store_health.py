"""Whether the object store answers, and takes writes, known once for all partitions.

    up ── a request ends in TierUnavailable ──► down ── a probe is answered ──► up, all are woken
                                                  └── a probe fails: wait 0.5, 1, 2 ... 5 s

While it is down nobody uploads, inspects or counts attempts; one small request at a time asks for
all of them. So an outage costs little however many partitions there are, is logged once, and ends
within seconds of the store's return.

Only TierUnavailable means down. Somebody who refuses us (403) is there, and what is refused is a
matter of the partition that asked: but for the probe of the start, which speaks for all of them.
While its write is refused the archive is read, and nobody copies; whoever probes says when it ends.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock
from strandline.storage.errors import StorageError, TierError, TierUnavailable
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.policy.retry import FailureInfo

log = logging.getLogger(__name__)

PROBE_BACKOFF = Backoff(0.5, 5.0)


class StoreHealth:
    """See the top of this file. Used on the event loop only."""

    def __init__(self, store: ObjectStore, *, executor: Executor, clock: Clock) -> None:
        self._store = store
        self._executor = executor
        self._clock = clock
        self._failures = 0
        self._probe_at_s = 0.0
        self._down_since_s: float | None = None
        self._kind = ""
        self.reason = ""
        # Why the store takes no writes, and since when; None: it does, as far as is known.
        self.write_refusal: FailureInfo | None = None

    @property
    def is_up(self) -> bool:
        return self._down_since_s is None

    @property
    def takes_writes(self) -> bool:
        return self.write_refusal is None

    def note_probe(self, refusal: TierError | None) -> bool:
        """What became of a write that speaks for all; whether writes are taken from now on."""
        before = self.write_refusal
        if refusal is None:
            self.write_refusal = None
            return before is not None
        self.write_refusal = FailureInfo(
            reason=str(refusal),
            kind=type(refusal).__name__,
            attempts=1 if before is None else before.attempts + 1,
            since_s=self._clock.monotonic_s() if before is None else before.since_s,
        )
        return False

    def failed(self, error: TierUnavailable) -> None:
        """A request found the store away; says so if that is new."""
        if self._down_since_s is not None:
            return
        now_s = self._clock.monotonic_s()
        self._down_since_s = now_s
        self._failures = 1
        self._probe_at_s = now_s + PROBE_BACKOFF.wait_s(1)
        self._kind, self.reason = type(error).__name__, str(error)
        log.warning(
            "remote tier is away: copying and deleting wait, nothing local is freed",
            extra={"fields": {"url": self._store.url, "reason": self.reason}},
        )

    async def probe_if_due(self) -> bool:
        """Asks a store that is down, if it is time to; True if it has just come back."""
        if self._down_since_s is None or self._clock.monotonic_s() < self._probe_at_s:
            return False
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._store.check)
        except TierUnavailable as error:
            self._failures += 1
            self._probe_at_s = self._clock.monotonic_s() + PROBE_BACKOFF.wait_s(self._failures)
            self._note_reason(error)
            return False
        except StorageError:
            # It answers, if only to refuse.
            pass
        away_s = self._clock.monotonic_s() - self._down_since_s
        self._down_since_s = None
        self.reason = ""
        log.info(
            "remote tier is back, copying goes on",
            extra={"fields": {"url": self._store.url, "away_s": round(away_s, 1)}},
        )
        return True

    def _note_reason(self, error: TierUnavailable) -> None:
        """Another kind of being away (a missing bucket, not a dead server) is another line."""
        kind = type(error).__name__
        if kind != self._kind:
            log.warning(
                "remote tier is still away, for another reason",
                extra={"fields": {"url": self._store.url, "reason": str(error)}},
            )
        self._kind, self.reason = kind, str(error)

    def __repr__(self) -> str:
        return f"<StoreHealth {'up' if self.is_up else f'down: {self.reason}'}>"
