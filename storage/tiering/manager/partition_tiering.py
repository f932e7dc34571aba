"""Takes the steps of one partition's archive, in order.

One step of who leads the archive, under the partition's lock; each file numbers its own steps:

    load       the manifest, if it must be read; log start := the higher of both   manifest_owner.py
    claim      the manifest, if an earlier leader wrote it                         manifest_owner.py
    copy       the log start into the manifest, then a closed segment,                copy/steps.py
               or a part of those that cannot be copied yet                    copy/open_segment.py
    expire     segments below the log start                                           expiration.py
    merge      small segments                                                    rewrite/merging.py
    compact    the archive of a compacted topic                               rewrite/compaction.py

A read-only replica takes the steps of `following.py` instead. Where another broker leads the
partition there is no step: the log grows by replication, and the archive by its leader. Retention
and the fetcher ask for what `replica_restart.py` does.

Each kind of work has its own retries (`retry.py`): a failing delete does not delay copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from strandline.storage.errors import (
    ObjectNotFound,
    OutOfResources,
    RecordsRejected,
    StorageError,
    TierUnavailable,
)
from strandline.storage.tiering.changes.change_reader import PolledChanges
from strandline.storage.tiering.copy.open_segment import OpenSegmentSteps
from strandline.storage.tiering.copy.steps import CopySteps
from strandline.storage.tiering.log.exposure import Exposure, ExposureAge, covered_by, exposure
from strandline.storage.tiering.log.statistics import (
    PartitionStatistics,
    TopicCounters,
    statistics_of,
)
from strandline.storage.tiering.manager.workers import ArchiveWorkers
from strandline.storage.tiering.partition.expiration import ExpirationSteps
from strandline.storage.tiering.partition.following import FollowingSteps
from strandline.storage.tiering.partition.manifest_owner import ManifestChanged, ManifestOwner
from strandline.storage.tiering.partition.replica_restart import restart_replica, take_newest
from strandline.storage.tiering.policy.archive_state import ArchiveState
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState
from strandline.storage.tiering.policy.store_health import StoreHealth
from strandline.storage.tiering.rewrite.compaction import CompactionSteps
from strandline.storage.tiering.rewrite.merging import MergeSteps


class PartitionTiering:
    """The steps of one partition's archive, in order. Used on the event loop only."""

    def __init__(
        self,
        owner: ManifestOwner,
        workers: ArchiveWorkers,
        *,
        health: StoreHealth,
        retry: RetryPolicy,
        counters: TopicCounters,
        is_replica: bool = False,
    ) -> None:
        """`is_replica`: the log is what the archive has, see `following.py`."""
        self.log = owner.log
        self.remote = owner.remote
        self._life = owner.life
        self.owner = owner
        self._health = health
        self._following: FollowingSteps | None = None
        if is_replica:
            self._following = FollowingSteps(self.log, self.remote, threads=owner.threads)
            self.remote.follow = self.step
        elif not self.is_led:
            threads = owner.threads
            self.remote.follow = partial(
                self._as_replica, partial(take_newest, self.remote, threads=threads)
            )
            self.remote.restart_replica = partial(
                self._as_replica, partial(restart_replica, self.log, self.remote, threads=threads)
            )
        else:
            self.remote.find_held = self._find_held
        self._lock = asyncio.Lock()
        state = partial(
            RetryState, subject=str(self.log.topic_partition), policy=retry, clock=owner.clock
        )
        self._copying, self._deleting = state("copy"), state("delete")
        self._merging, self._compacting = state("merge"), state("compact")
        self._counters = counters
        self._exposure_age = ExposureAge()
        self._copies = CopySteps(owner, workers.copier, counters, retry=self._copying)
        self._open_segment = OpenSegmentSteps(owner, workers.open_segments)
        self._expiration = ExpirationSteps(owner, workers.expirer, counters)
        self._merges = MergeSteps(owner, workers.merger)
        self._compaction = CompactionSteps(owner, workers.compactor)

    # --- for the manager ---------------------------------------------------------------------

    def detach(self) -> None:
        """Starts no new work, and cancels running work without a commit."""
        self._life.move(ArchiveState.DETACHED)
        self._copies.forget_all()
        if not self._lock.locked():
            self._compaction.end_round()
        self.log.remote = None
        self.log.local.on_segment_closed = None

    @property
    def is_idle(self) -> bool:
        """Whether no step or copy is running. A detached partition stays idle."""
        return not self._lock.locked() and self._copies.is_idle

    async def wait_until_idle(self) -> None:
        """Waits until no step or copy is running."""
        async with self._lock:
            await self._copies.wait_until_idle()

    @property
    def is_led(self) -> bool:
        """Whether this broker leads the partition, and so its archive."""
        return not self._life.is_followed

    async def _as_replica(self, work: Callable[[], Awaitable[None]]) -> None:
        """One of `replica_restart.py`, unless the store is away. Raises StorageError."""
        async with self._lock:
            if self._life.is_detached():
                return
            await self._ask(work)

    async def _find_held(self) -> None:
        """Raises StorageError unless the store has the manifest that is held here.

        It waits for no step: a copy takes long. If the store has another one, or none, the next
        step reads it, and tells what is wrong with it.
        """
        held = self.remote.stored
        if held is None:
            return
        try:
            await self._ask(partial(self.owner.find_held, held))
        except (ObjectNotFound, ManifestChanged) as error:
            if self.remote.stored is not held or not self._life.may_commit:
                # A commit is under way, or what is wrong is known.
                raise TierUnavailable(error.key, "find", "it changes") from error
            self._life.doubt()
            raise

    async def _ask(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does what needs the store, unless it is away. Raises StorageError."""
        if not self._health.is_up:
            raise TierUnavailable(str(self.log.topic_partition), "read", "the store is away")
        try:
            await work()
        except TierUnavailable as error:
            self._health.failed(error)
            raise

    async def load(self) -> None:
        """Loads the manifest if it is not known yet; a failure is recorded and retried later."""
        following = self._following
        if following is None and not self.is_led:
            return
        load = self.owner.load_if_needed if following is None else following.step
        async with self._lock:
            if not self._life.is_detached() and self._copying.may_try:
                await self._guard(self._copying, self._counters.add_copy_error, load)

    @property
    def is_due(self) -> bool:
        """Whether there may be work; a replica waits for announced changes."""
        return self.is_led if self._following is None else self._following.expectation.is_due

    def apply_changes(self, changes: PolledChanges) -> bool:
        """As `TieringManager.apply_changes`; only for who follows the archive."""
        assert self._following is not None, self
        key = self.log.topic_id, self.log.topic_partition.partition
        return self._following.expectation.apply_changes(changes, key, self.remote.manifest)

    async def step(self) -> bool:
        """Does the work that is due; True if there is more to do right away."""
        if self._following is not None:
            if self._health.is_up:
                await self.load()
            return False
        if not self.is_led:
            return False
        self._exposed()
        async with self._lock:
            more, life = False, self._life
            if not life.is_detached() and self.log.is_tiered and self._health.is_up:
                more = await self._next_step()
            if life.is_detached() or life.is_fenced or not self.log.is_tiered:
                ended = self._compaction.end_round()
                if ended is not None:
                    await ended
            return more and not life.is_detached()

    # --- one step ----------------------------------------------------------------------------

    async def _next_step(self) -> bool:
        more, counters, owner = False, self._counters, self.owner
        if self._life.lead is not Lead.CONFIRMED and self.remote.known:
            return False
        if self._copying.may_try:
            more = await self._guard(self._copying, counters.add_copy_error, self._copy)
        if owner.may_change and self._deleting.may_try:
            more |= await self._guard(
                self._deleting, counters.add_delete_error, self._expiration.step
            )
        if not self._health.takes_writes:
            return more
        may_merge = not self._compaction.is_under_way
        may_merge = may_merge and owner.may_change and self._merging.may_try
        if may_merge and (not more or self._merges.is_crowded):
            more |= await self._guard(self._merging, counters.add_copy_error, self._merges.step)
        # A running round continues beside copies: other partitions wait for its turn.
        may_compact = owner.may_change and self._compacting.may_try
        if may_compact and (not more or self._compaction.is_under_way):
            more |= await self._guard(
                self._compacting,
                counters.add_copy_error,
                self._compaction.step,
                # Only the end of a round is a success: a failing round may take a thousand good
                # steps first, and the next one starts over.
                is_over=lambda: not self._compaction.is_under_way,
            )
        return more

    async def _copy(self) -> bool:
        owner = self.owner
        await owner.load_if_needed()
        if not owner.life.may_commit or not self._health.takes_writes:
            return False
        await owner.claim()
        await owner.move_log_start()
        if self.remote.manifest is not None:
            # Its topic may have been altered, and nothing more may be copied for a long time.
            await owner.topic.ensure()
        if await self._copies.step():
            return True
        return owner.life.may_commit and await self._open_segment.step()

    async def _guard(
        self,
        state: RetryState,
        add_error: Callable[[], None],
        work: Callable[[], Awaitable[bool | None]],
        *,
        is_over: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Runs `work`; records an error of disk or store, so that the work is retried later.

        A return counts as success if `is_over` then.
        """
        try:
            more = await work()
        except (StorageError, RecordsRejected) as error:
            if self._life.is_detached():
                # Its log was removed meanwhile: no failure, and no retry.
                return False
            add_error()
            state.failed(error)
            if not self.remote.known:
                self.remote.load_error = error
            if isinstance(error, TierUnavailable):
                self._health.failed(error)
            return False
        except MemoryError:
            add_error()
            state.failed(OutOfResources("no memory for it"))
            return False
        if is_over():
            state.succeeded()
        return bool(more)

    # --- what an operator sees ---------------------------------------------------------------

    def statistics(self) -> PartitionStatistics:
        """Current statistics of the partition."""
        return statistics_of(
            self.log,
            self.remote,
            copy_failure=self._copying.failure,
            delete_failure=self._deleting.failure,
            merge_failure=self._merging.failure,
            exposed=self._exposed(),
        )

    def _exposed(self) -> Exposure | None:
        """Returns the records that only this machine has; None while that is not known."""
        if not self.is_led:
            # The leader tells; and a replica has nothing that is not in the archive.
            return Exposure()
        covered = covered_by(self.log, self.remote)
        if covered is None:
            return None
        clock, config = self.owner.clock, self.log.config
        age_s = self._exposure_age.note(
            covered, self.log.high_watermark, now_s=clock.monotonic_s(), now_ms=clock.now_ms()
        )
        is_off = config.remote_log_copy_disable
        promised_ms = -1 if is_off else config.strandline_remote_active_segment_upload_ms
        return exposure(self.log.local, covered, age_s=age_s, promised_ms=promised_ms)

    def __repr__(self) -> str:
        return f"<PartitionTiering {self.log!r} {self.remote!r} {self._copying!r}>"
