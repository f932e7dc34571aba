"""Shared state of the object store: reachable or not, and writable or not.

    up ── a request ends in TierUnavailable ──► down ── a probe is answered ──► up, all are woken
                                                  └── a probe fails: wait 0.5, 1, 2 ... 5 s

While it is unreachable no partition uploads, inspects or counts attempts; one small probe at a time
stands for all of them. So an outage costs little however many partitions there are, is logged once,
and ends within seconds of the store's return.

Only TierUnavailable means down. A store that refuses a request (403) is reachable, and the refusal
concerns only that partition: except for the start's probe, which stands for all of them. While its
write is refused the archive is read, and no copies are made; the prober reports when that ends.
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
    """Health of the object store, shared by all partitions. Used on the event loop only."""

    def __init__(self, store: ObjectStore, *, executor: Executor, clock: Clock) -> None:
        self._store = store
        self._executor = executor
        self._clock = clock
        self._probe_at_s = 0.0
        # Why the store is unreachable; None: it is reachable.
        self._outage: FailureInfo | None = None
        # Why the store refuses writes, and since when; None: it accepts them, as far as is known.
        self.write_refusal: FailureInfo | None = None

    @property
    def is_up(self) -> bool:
        return self._outage is None

    @property
    def takes_writes(self) -> bool:
        return self.write_refusal is None

    def note_probe(self, refusal: TierError | None) -> bool:
        """Records the result of a write probe; returns whether writes are accepted from now on."""
        before, self.write_refusal = self.write_refusal, None
        if refusal is not None:
            now_s = self._clock.monotonic_s()
            self.write_refusal = FailureInfo.after(before, refusal, now_s)
        return before is not None and refusal is None

    def failed(self, error: TierUnavailable) -> None:
        """Records that the store is unreachable; logs it if that is new."""
        if self._outage is None:
            self._note_outage(error)
            log.warning(
                "remote tier is unreachable: copying and deleting wait, nothing local is freed",
                extra={"fields": {"url": self._store.url, "reason": str(error)}},
            )

    def _note_outage(self, error: TierUnavailable) -> None:
        now_s = self._clock.monotonic_s()
        self._outage = FailureInfo.after(self._outage, error, now_s)
        self._probe_at_s = now_s + PROBE_BACKOFF.wait_s(self._outage.attempts)

    async def probe_if_due(self) -> bool:
        """Probes an unreachable store if it is time to; True if it is reachable again."""
        outage = self._outage
        if outage is None or self._clock.monotonic_s() < self._probe_at_s:
            return False
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._store.check)
        except TierUnavailable as error:
            self._note_outage(error)
            # Another reason may be a missing bucket in place of a dead server.
            if type(error).__name__ != outage.kind:
                log.warning(
                    "remote tier is still unreachable, for another reason",
                    extra={"fields": {"url": self._store.url, "reason": str(error)}},
                )
            return False
        except StorageError:
            # The store answered, if only with a refusal.
            pass
        away_s = self._clock.monotonic_s() - outage.since_s
        self._outage = None
        log.info(
            "remote tier is back, copying goes on",
            extra={"fields": {"url": self._store.url, "away_s": round(away_s, 1)}},
        )
        return True

    def __repr__(self) -> str:
        return f"<StoreHealth {'up' if self._outage is None else f'down: {self._outage.reason}'}>"
