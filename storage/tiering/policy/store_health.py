"""Shared state of the object store: whether it answers, and whether it takes writes.

    up ── a request fails as below, or a probe does ──► down ── a probe is answered ──► up
     └── every 20 s: a probe                             └── a probe fails: wait 0.5, 1, 2 ... 5 s

Down is a store that does not answer (TierUnavailable), or that refuses the claim of the archive or
the read of a probe. What the store says of a single partition (403) concerns only that one. After
a failed claim only the next claim ends it: an empty folder, whose volume is not mounted, answers
probes.

While it is down no partition uploads, inspects or counts attempts; one small probe at a time stands
for all of them. So an outage costs little however many partitions there are, and ends within
seconds of the store's return. Cold reads that fail have a probe sent at once. It is logged when it
begins and ends, and every minute in between.

A probe reads cluster.json, and writes: it replaces an object that does not exist (If-Match), so
that the store answers and nothing changes. A broker that is idle learns so within 30 s that its
store hangs. Writes are probed once the claim has succeeded. While they are refused the archive is
read, and no copies are made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import ignore_late_error
from strandline.storage.errors import (
    AccessDenied,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    StoreFull,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.keys import CLUSTER_KEY, PROBE_PREFIX
from strandline.storage.remote.object_store.interface import BucketMissing, IfMatches, ObjectStore
from strandline.storage.tiering.policy.retry import FailureInfo

log = logging.getLogger(__name__)

PROBE_BACKOFF = Backoff(0.5, 5.0)
# With the wait for an answer, and for the next look, less than 30 s.
PROBE_INTERVAL_S = 20.0
PROBE_ANSWER_S = 8.0
REMINDER_S = 60.0
# Never written: no object has this etag.
_PROBE_KEY = f"{PROBE_PREFIX}absent"
_PROBE_CONDITION = IfMatches('"none"')


@dataclass(slots=True)
class _Probe:
    """A request that tries out reads or writes, with its last answer."""

    send: Callable[[], None]
    answered_s: float
    # The one in flight, which may outlive the caller's patience.
    asking: asyncio.Future[None] | None = field(default=None)


class StoreHealth:
    """Health of the object store, shared by all partitions. Used on the event loop only."""

    def __init__(
        self, store: ObjectStore, *, executor: Executor, clock: Clock, writes: bool = True
    ) -> None:
        """`writes`: whether this broker ever writes to the store."""
        self._url = store.url
        self._executor = executor
        self._clock = clock
        now_s = clock.monotonic_s()
        self._read = _Probe(lambda: _read(store), now_s)
        self._write = _Probe(lambda: _write(store), now_s) if writes else None
        self._probe_at_s = now_s + PROBE_INTERVAL_S
        self._told_s = now_s
        self._is_claimed = False
        # Whether the last claim could not read; then the store may answer, and yet not serve us.
        self._claim_fails = False
        # Why the store is down; None: it is up.
        self.outage: FailureInfo | None = None
        # Why the store refuses writes, and since when; None: it accepts them, as far as is known.
        self.write_refusal: FailureInfo | None = None

    @property
    def is_up(self) -> bool:
        return self.outage is None

    @property
    def takes_writes(self) -> bool:
        return self.write_refusal is None

    @property
    def last_answers_s(self) -> Mapping[str, float]:
        """When the store last answered a read and a write, or this began; monotonic."""
        probes = {"read": self._read, "write": self._write}
        return {what: probe.answered_s for what, probe in probes.items() if probe is not None}

    # --- what others found -------------------------------------------------------------------

    def note_claim(self, failure: TierError | None, refusal: TierError | None) -> bool:
        """Records an attempt to claim the archive; returns whether more is possible from now on.

        `failure`: why it could not be read; `refusal`: why it takes no writes.
        """
        self._claim_fails = failure is not None
        if failure is not None:
            self.failed(failure)
            return False
        self._is_claimed = refusal is None
        self._read.answered_s = self._clock.monotonic_s()
        is_back = self._note_write(refusal)
        return self._note_return() or is_back

    def failed(self, error: TierError) -> None:
        """Records that the store is down; logs it if that is new."""
        if self.outage is None:
            self._note_outage(error)

    def doubt(self) -> None:
        """Has the store probed soon: a request failed for a reason that may be its own."""
        if self.is_up:
            soon_s = self._clock.monotonic_s() + PROBE_BACKOFF.first_s
            self._probe_at_s = min(self._probe_at_s, soon_s)

    # --- probes ------------------------------------------------------------------------------

    async def watch(self, on_return: Callable[[], None]) -> None:
        """Probes the store until it is cancelled; calls `on_return` when more is possible again."""
        while True:
            if await self.probe_if_due():
                on_return()
            self.remind()
            await asyncio.sleep(PROBE_BACKOFF.first_s)

    async def probe_if_due(self) -> bool:
        """Probes the store if it is time to; True if more is possible than before."""
        if self._clock.monotonic_s() < self._probe_at_s:
            return False
        self._probe_at_s = self._clock.monotonic_s() + PROBE_INTERVAL_S
        failure = await self._ask(self._read)
        if isinstance(failure, TierUnavailable | AccessDenied):
            self._note_outage(failure)
            return False
        is_back = False
        if self._write is not None and self._is_claimed:
            refusal = await self._ask(self._write)
            if isinstance(refusal, TierUnavailable):
                self._note_outage(refusal)
                return False
            is_refused = isinstance(refusal, AccessDenied | StoreFull)
            is_back = self._note_write(refusal if is_refused else None)
        if self._claim_fails:
            return is_back
        return self._note_return() or is_back

    async def _ask(self, probe: _Probe) -> TierError | None:
        """Returns the error of the probe; that it did not answer in time is one."""
        if probe.asking is None:
            loop = asyncio.get_running_loop()
            probe.asking = loop.run_in_executor(self._executor, probe.send)
            ignore_late_error(probe.asking)
        asking = probe.asking
        # It may answer while the wait ends: what counts is whether there is an answer.
        await asyncio.wait((asking,), timeout=PROBE_ANSWER_S)
        if not asking.done():
            silent_s = self._clock.monotonic_s() - probe.answered_s
            return TierUnavailable("", "probe", f"no answer for {silent_s:.0f} s")
        probe.asking = None
        try:
            asking.result()
        except TierUnavailable as error:
            return error
        except TierError as error:
            probe.answered_s = self._clock.monotonic_s()
            return error
        except StorageError:
            # The machine's own trouble.
            return None
        finally:
            # An error's traceback references this frame, and would keep the future that has it.
            del asking
        probe.answered_s = self._clock.monotonic_s()
        return None

    # --- states ------------------------------------------------------------------------------

    def _note_outage(self, error: TierError) -> None:
        now_s = self._clock.monotonic_s()
        before = self.outage
        self.outage = FailureInfo.after(before, error, now_s)
        self._probe_at_s = now_s + PROBE_BACKOFF.wait_s(self.outage.attempts)
        # Another reason may be a missing bucket in place of a dead server.
        if before is None or before.kind != self.outage.kind:
            self._told_s = now_s
            fields = {"url": self._url, "reason": str(error)}
            if isinstance(error, TierUnavailable):
                log.warning(
                    "remote tier is unreachable: copying and deleting wait, nothing local is freed",
                    extra={"fields": fields},
                )
            else:
                log.warning(
                    "remote tier refuses reads: copying and deleting wait, nothing local is freed",
                    extra={"fields": fields},
                )

    def _note_return(self) -> bool:
        """Ends an outage; whether there was one."""
        outage, self.outage = self.outage, None
        if outage is None:
            return False
        away_s = self._clock.monotonic_s() - outage.since_s
        log.info(
            "remote tier is back, copying goes on",
            extra={"fields": {"url": self._url, "away_s": round(away_s, 1)}},
        )
        return True

    def _note_write(self, refusal: TierError | None) -> bool:
        """Records the answer to a write; returns whether writes are accepted from now on."""
        now_s = self._clock.monotonic_s()
        if self._write is not None:
            self._write.answered_s = now_s
        before, self.write_refusal = self.write_refusal, None
        if refusal is not None:
            self.write_refusal = FailureInfo.after(before, refusal, now_s)
            if before is None:
                self._told_s = now_s
        return before is not None and refusal is None

    def remind(self) -> None:
        """Repeats each minute what still is so."""
        now_s = self._clock.monotonic_s()
        failure = self.outage or self.write_refusal
        if failure is None or now_s - self._told_s < REMINDER_S:
            return
        self._told_s = now_s
        fields = {
            "url": self._url,
            "reason": failure.reason,
            "for_s": round(now_s - failure.since_s),
        }
        if self.outage is not None:
            log.warning("remote tier still does not serve this broker", extra={"fields": fields})
        else:
            log.warning("remote tier still refuses writes", extra={"fields": fields})

    def __repr__(self) -> str:
        return f"<StoreHealth {'up' if self.outage is None else f'down: {self.outage.reason}'}>"


def _read(store: ObjectStore) -> None:
    """Raises the store's error unless it serves reads; blocks."""
    try:
        store.get(CLUSTER_KEY)
    except (ObjectNotFound, BucketMissing):
        # Not claimed yet, or deleted: at least the bucket has to be there, or a folder's parent.
        store.check()


def _write(store: ObjectStore) -> None:
    """Raises the store's error unless it would take a write; blocks, and writes nothing."""
    try:
        store.put(_PROBE_KEY, b"", condition=_PROBE_CONDITION)
    except PreconditionFailed:
        return
