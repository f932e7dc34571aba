"""Schedules the work of all tiered partitions and of the topics that are removed from the tier.

    segment closed ──wake──┐
    every interval ────────┤ queue: each partition, and each topic being purged, at most once
    log start moved ───────┘   │
                               ▼
                     N workers, one step each: load, copy one segment, mark, delete

A step copies at most one segment, and a partition with more goes to the end of the queue, so that a
long backlog does not delay the other partitions. Blocking calls run in executors; the state is used
on the event loop only.

While the store is unreachable, steps do nothing (see `store_health.py`): appends and hot reads do
not depend on it, nothing local is freed, and copying resumes when it is back. Other failures are
retried with growing waits, up to `retry.backoff_ms_max`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from strandline.storage.clock import Clock
from strandline.storage.concurrency.alterations import Alterations
from strandline.storage.concurrency.tasks import side_by_side
from strandline.storage.errors import StorageError, TierError, TierUnavailable
from strandline.storage.local.cleaner.process import CleanerProcess
from strandline.storage.model import Epoch, TimestampMs, TopicId, TopicIdPartition, TopicPartition
from strandline.storage.remote.keys import CHANGES_KEY
from strandline.storage.remote.manifest.store import ManifestPages
from strandline.storage.remote.manifest.topic_info import TopicInfo, list_topics
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.reader.cold_reader import ColdReader
from strandline.storage.tiering.changes.change_reader import PolledChanges
from strandline.storage.tiering.changes.change_writer import ChangeWriter
from strandline.storage.tiering.copy.inspector import SegmentInspector
from strandline.storage.tiering.copy.open_segment import tail_check_ms
from strandline.storage.tiering.log.remote_log import RemoteLog
from strandline.storage.tiering.log.statistics import PartitionStatistics, TopicCounters
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.manager.housekeeping import Housekeeping
from strandline.storage.tiering.manager.partition_tiering import PartitionTiering
from strandline.storage.tiering.manager.topic_purge import TopicPurge
from strandline.storage.tiering.manager.topic_removal import TopicRemovals, WaitingPartition
from strandline.storage.tiering.manager.worker_pool import WorkerPool
from strandline.storage.tiering.manager.workers import ArchiveWorkers
from strandline.storage.tiering.partition.config import TieringConfig, TieringExecutors
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.partition.topic_registration import (
    TopicRegistration,
    TopicRegistrations,
)
from strandline.storage.tiering.policy.archive_state import ArchiveLife
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads
from strandline.storage.tiering.policy.quota import ReadGate, TierQuota
from strandline.storage.tiering.policy.retry import RetryState
from strandline.storage.tiering.policy.store_health import StoreHealth

log = logging.getLogger(__name__)

# Manifests are small; with so many parallel loads a thousand partitions take seconds.
PARALLEL_LOADS_MAX = 16
HOUSEKEEPING_INTERVAL_S = 15.0

# A partition that is tiered, or a topic that is purged.
WorkKey: TypeAlias = TopicPartition | TopicId


class TieringManager:
    """Owner of all tiered partitions and of topic removals. Used on the event loop only."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        reader: ColdReader,
        executors: TieringExecutors,
        clock: Clock,
        config: TieringConfig,
        inspector: SegmentInspector | None = None,
        cleaner: CleanerProcess | None = None,
        on_topic_purged: Callable[[TopicInfo], None] | None = None,
        on_restarted: Callable[[], None] = lambda: None,
        believed_ms: Callable[[], TimestampMs] | None = None,
        lead: Lead = Lead.CONFIRMED,
        is_caretaker: Callable[[], bool] = lambda: True,
        changes_key: str = CHANGES_KEY,
        alterations: Alterations | None = None,
    ) -> None:
        """`on_topic_purged` is called when the bucket has no object of a topic and gets none,
        `on_restarted` when a log was restarted behind its archive, before it takes appends.

        `believed_ms` is the time by which tombstones expire; None: the clock's. `lead` is what
        this broker is to the archives of the partitions that it leads; a replica follows them all.
        `is_caretaker` tells whether it purges topics and deletes orphans, also in other threads;
        `changes_key` is the name of its list of changes.
        `alterations` end the schedule's sleep when the settings of a topic or the broker are
        altered; None: none are.
        """
        self.lead = lead
        self._is_caretaker = is_caretaker
        self.health = StoreHealth(
            store,
            executor=executors.probes or executors.metadata,
            clock=clock,
            writes=not self.is_replica,
        )
        self.fetch_quota = TierQuota(config.fetch_quota, clock)
        self.changes = ChangeWriter(
            store,
            executor=executors.changes or executors.metadata,
            clock=clock,
            retry=config.retry,
            may_write=self.may_write,
            interval_ms=config.changes_interval_ms,
            key=changes_key,
        )
        self._threads = MetadataThreads(store, executors.metadata)
        self._reader = reader
        self._clock = clock
        self._config = config
        self._alterations = alterations or Alterations()
        # Existing topics that are not tiered: start-up deletes their archives.
        self.untiered: set[TopicId] = set()
        self.counters: dict[str, TopicCounters] = {}
        # Of removed topics, so that a sum over all never decreases.
        self.departed = TopicCounters()
        self._on_topic_purged = on_topic_purged
        self._on_restarted = on_restarted
        self._pages = ManifestPages(store)
        self._gate = ReadGate(reads_max=config.reads_max, quota=self.fetch_quota)
        self._inspector = inspector or SegmentInspector(clock)
        self._workers = ArchiveWorkers.new(
            store,
            executors,
            config,
            clock=clock,
            believed_ms=believed_ms or clock.now_ms,
            inspector=self._inspector,
            cleaner=cleaner or CleanerProcess(clock),
        )
        self.copy_quota = self._workers.copier.quota
        self._housekeeping = Housekeeping(
            self._threads,
            config,
            clock=clock,
            health=self.health,
            may_write=lambda: is_caretaker() and self.may_write(),
            end_idle=self._end_idle,
        )
        self._partitions: dict[TopicPartition, PartitionTiering] = {}
        # The same by topic, so that work for one of thousands need not scan the others.
        self._of_topic: dict[TopicId, dict[TopicPartition, PartitionTiering]] = {}
        self._topics = TopicRegistrations()
        self._removals = TopicRemovals(
            self._workers.expirer.threads,
            clock=clock,
            config=config,
            on_away=self.health.failed,
            may_delete=is_caretaker,
        )
        self._pool: WorkerPool[WorkKey] = WorkerPool(config.workers, self._step, clock=clock)
        self._tombstones_read = False

    # --- which partitions there are ----------------------------------------------------------

    def attach(
        self,
        unified_log: UnifiedLog,
        topic_info: TopicInfo,
        *,
        leader_epoch: Epoch,
        is_leader: bool = True,
        is_lone: bool = True,
        is_recovering: bool = False,
        is_new: bool = False,
    ) -> None:
        """Makes the partition tiered. `is_new`: its topic was just created, under a new id.

        `start` or the next step loads its manifest; until then only hot offsets can be read. The
        archive of a partition that another broker leads is left alone. `is_lone`: the partition has
        no other replica, which would have what this disk may have lost. `is_recovering`: its leader
        was elected although it may lack records, which the archive may have.
        """
        assert topic_info.topic_id == unified_log.topic_id, (topic_info, unified_log)
        wanted = WaitingPartition(
            unified_log, topic_info, leader_epoch, is_leader, is_lone, is_recovering
        )
        if not self._removals.defer(wanted):
            self._attach(wanted, is_new=is_new)

    def _attach(
        self,
        wanted: WaitingPartition,
        *,
        is_new: bool = False,
        past: PartitionTiering | None = None,
    ) -> None:
        """`past` held the manifest before; it is read again before it is relied on."""
        unified_log, topic_info = wanted.log, wanted.info
        topic_partition = unified_log.topic_partition
        assert topic_partition not in self._partitions, topic_partition
        lead = self.lead if wanted.is_leader else Lead.FOLLOWING
        life = ArchiveLife(lead, wanted.leader_epoch, refuses_if_lost=self._config.refuses_if_lost)
        remote = RemoteLog(
            TopicIdPartition(
                topic_partition.topic, unified_log.topic_id, topic_partition.partition
            ),
            pages=self._pages,
            reader=self._reader,
            executor=self._threads.executor,
            gate=self._gate,
            life=life,
            on_unavailable=self.health.doubt,
        )
        if is_new and not self.is_replica:
            remote.adopt(None)
        elif past is not None and past.remote.known:
            remote.adopt(past.remote.stored)
        unified_log.remote = remote
        unified_log.local.on_segment_closed = lambda _closed: self.wake(topic_partition)
        owner = ManifestOwner(
            unified_log,
            remote,
            topic=self.update_topic(topic_info),
            past_generation=self._removals.past_generation(
                topic_info.topic_id, topic_partition.partition
            ),
            threads=self._threads,
            health=self.health,
            changes=self.changes,
            on_restarted=self._on_restarted,
            is_lone=wanted.is_lone,
        )
        if past is not None:
            life.doubt()
        if wanted.is_leader and wanted.is_recovering:
            owner.recover()
        partition = PartitionTiering(
            owner,
            self._workers,
            is_replica=self.is_replica,
            health=self.health,
            retry=self._config.retry,
            counters=self.counters.setdefault(topic_partition.topic, TopicCounters()),
        )
        self._partitions[topic_partition] = partition
        self._of_topic.setdefault(topic_info.topic_id, {})[topic_partition] = partition
        self._pool.add(topic_partition)

    def detach(self, topic_partition: TopicPartition) -> None:
        """Ends tiering of the partition; running work is not committed any more."""
        partition = self._partitions.pop(topic_partition, None)
        if partition is None:
            return
        topic_id = partition.log.topic_id
        del self._of_topic[topic_id][topic_partition]
        if not self._of_topic[topic_id]:
            del self._of_topic[topic_id]
        partition.detach()
        if not self.is_replica:
            self._removals.add(partition)
        elif topic_id not in self._of_topic and self._topics.remove(topic_id):
            # A replica purges nothing: the origin does.
            self._retire_counters(topic_partition.topic)

    def _retire_counters(self, topic: str) -> None:
        """Retires the counters of a removed topic, unless another one has its name."""
        if not self._topics.has_name(topic):
            self.departed.add(self.counters.pop(topic, TopicCounters()))

    def update_topic(self, topic_info: TopicInfo) -> TopicRegistration:
        """Registers a topic, or its changed partitions or properties, for topic.json."""
        known = self._topics.get(topic_info.topic_id)
        if known is None:
            known = TopicRegistration(topic_info, self._threads)
            self._topics.add(known)
        elif known.info != topic_info:
            known.update(topic_info)
            for topic_partition in self._of_topic.get(topic_info.topic_id, ()):
                self.wake(topic_partition)
        return known

    def disable_topic(self, topic_info: TopicInfo) -> None:
        """As `delete_topic`, for a topic that still exists and may be tiered again."""
        self._empty(topic_info, stays=True)

    def delete_topic(self, topic_info: TopicInfo) -> None:
        """Detaches the topic's partitions and empties its folder in the bucket, in the background.

        Idempotent, also after a restart.
        """
        self._empty(topic_info, stays=False)
        self._removals.forget(topic_info.topic_id)

    def keep_topic(self, topic_id: TopicId) -> None:
        """The topic is tiered again; its archive stays if nothing of it was deleted yet."""
        self._removals.keep(topic_id)

    def leave_topic(self, topic_info: TopicInfo) -> None:
        """Detaches the topic's partitions; its folder is another broker's to empty."""
        self._removals.stop_waiting(topic_info.topic_id)
        for topic_partition in tuple(self._of_topic.get(topic_info.topic_id, ())):
            self.detach(topic_partition)
        self._topics.remove(topic_info.topic_id)

    def _empty(self, topic_info: TopicInfo, *, stays: bool) -> None:
        self.leave_topic(topic_info)
        if self._is_caretaker() and not self._removals.is_purged_once(topic_info.topic_id):
            self._removals.purge(topic_info, stays=stays)
            self._pool.add(topic_info.topic_id)

    def _go_on_with_purge(self, info: TopicInfo) -> None:
        """Resumes a purge of an earlier run; a topic that is tiered again waits for its end."""
        tiered = tuple(self._of_topic.get(info.topic_id, {}).values())
        self._empty(info, stays=bool(tiered) or info.topic_id in self.untiered)
        self._removals.wait(info.topic_id, tiered)

    def _end_purge(self, purge: TopicPurge) -> None:
        self._retire_counters(purge.info.topic)
        if purge.is_second and self._on_topic_purged is not None:
            self._on_topic_purged(purge.info)
        known = self._topics.get(purge.info.topic_id)
        for waiting in self._removals.end(purge):
            # The earlier archive is gone, so there is no manifest to load.
            if waiting.log.config.remote_storage_enable:
                # The topic may have been altered meanwhile.
                info = waiting.info if known is None else known.info
                self._attach(replace(waiting, info=info), is_new=True)

    def begin_leading(
        self,
        topic_partition: TopicPartition,
        leader_epoch: Epoch,
        *,
        is_lone: bool = True,
        is_recovering: bool = False,
    ) -> None:
        """This broker leads the partition under that epoch.

        The manifest is read, and claimed, in the background: a late commit of an earlier leader
        fails from then on. One that is recovering takes no records before that.
        """
        partition = self._partitions.get(topic_partition)
        if partition is not None and (partition.is_led or self.is_replica):
            partition.owner.lead(leader_epoch, is_lone=is_lone)
            if is_recovering:
                partition.owner.recover()
        elif partition is not None:
            self._attach_again(
                partition, leader_epoch, is_lone=is_lone, is_recovering=is_recovering
            )
        self.wake(topic_partition)
        self._removals.elect(topic_partition, leader_epoch, is_leader=True)

    def end_leading(self, topic_partition: TopicPartition) -> None:
        """Another broker leads the partition, or nobody.

        Running work commits nothing more under this broker's epoch, and none begins: no copy, no
        deletion, no merge. The archive stays readable as far as the held manifest tells.
        """
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.is_led:
            epoch = partition.remote.life.leader_epoch
            self._attach_again(partition, epoch, is_leader=False, is_lone=False)
        self._removals.elect(topic_partition, None, is_leader=False)

    def _attach_again(
        self,
        partition: PartitionTiering,
        leader_epoch: Epoch,
        *,
        is_leader: bool = True,
        is_lone: bool,
        is_recovering: bool = False,
    ) -> None:
        """Gives the partition another life: steps of the one before change nothing of it."""
        info = partition.owner.topic.info
        self.detach(partition.log.topic_partition)
        again = WaitingPartition(
            partition.log, info, leader_epoch, is_leader, is_lone, is_recovering
        )
        self._attach(again, past=partition)

    def wake(self, topic_partition: TopicPartition) -> None:
        """Queues the partition, after a segment was closed or the log start moved."""
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.is_due:
            self._pool.add(topic_partition)

    # --- running -----------------------------------------------------------------------------

    def confirm(self) -> None:
        """Confirms that the archive is this broker's, and starts the work that waited for that."""
        if self.lead is Lead.UNKNOWN:
            self._take(Lead.CONFIRMED)
            self._add_all()

    def lose(self, reason: str) -> None:
        """Marks the archive as another broker's, until this one restarts."""
        if self.lead is not Lead.LOST:
            self._take(Lead.LOST)
            log.error(
                "the archive is another broker's: nothing is archived, and nothing freed",
                extra={"fields": {"reason": reason}},
            )

    def _take(self, lead: Lead) -> None:
        self.lead = lead
        for partition in self._partitions.values():
            if partition.is_led:
                partition.remote.life.take(lead)

    def may_write(self) -> bool:
        """Returns whether the archives of what this broker leads are known to be its own."""
        return self.lead is Lead.CONFIRMED

    def caretaker_changed(self) -> None:
        """Another broker purges topics and deletes orphans now, or this one instead of another.

        One that takes over looks for what the one before it has not finished.
        """
        self._tombstones_read = False
        self._removals.give_up()
        self._add_all()

    def note_claim(self, failure: TierError | None, refusal: TierError | None) -> None:
        """Records an attempt to claim the archive; see `StoreHealth.note_claim`."""
        if self.health.note_claim(failure, refusal):
            self._add_all()

    @property
    def is_waiting(self) -> bool:
        """Whether a partition has yet to claim its archive, or to continue behind it."""
        return any(partition.remote.life.awaits_claim for partition in self._partitions.values())

    async def start(self) -> None:
        """Loads all manifests and finds interrupted purges, as far as the store answers.

        Called again when it is known whose archive it is. Never raises for the store: `run` retries
        failed loads.
        """
        try:
            async with asyncio.timeout(self._config.start_timeout_ms / 1000):
                if not self._must_read_tombstones or await self._read_tombstones():
                    await self._load_all(list(self._partitions.values()))
        except TimeoutError:
            log.warning(
                "remote tier is slow, the start continues without it",
                extra={"fields": {"timeout_ms": self._config.start_timeout_ms}},
            )

    @property
    def _must_read_tombstones(self) -> bool:
        return not self._tombstones_read and not self.is_replica and self._is_caretaker()

    async def _load_all(self, partitions: Iterable[PartitionTiering]) -> None:
        limit = asyncio.Semaphore(PARALLEL_LOADS_MAX)

        async def load(partition: PartitionTiering) -> None:
            async with limit:
                await partition.load()

        await asyncio.gather(*map(load, partitions))

    async def watch_store(self) -> None:
        """Keeps the store's health up to date until it is cancelled, also before `run`."""
        await self.health.watch(self._add_all)

    async def run(self) -> None:
        """Works until it is cancelled."""
        works = [self._schedule(), self._pool.run()]
        if not self.is_replica:
            works += [self._keep_house(), self.changes.run()]
        await side_by_side(*works)

    def apply_changes(self, changes: PolledChanges) -> bool:
        """Applies a poll of the change list on a replica; whether it lacked an earlier change."""
        silent = [partition.apply_changes(changes) for partition in self._partitions.values()]
        self._add_all()
        return any(silent)

    @property
    def is_replica(self) -> bool:
        """Whether the archives are another broker's, which this one only reads."""
        return self.lead is Lead.FOLLOWING

    @property
    def is_following(self) -> bool:
        """Whether a replica has manifests to read that its last poll asked for."""
        return any(partition.is_due for partition in self._partitions.values())

    async def write_last_changes(self) -> None:
        """Announces the last changes to replicas, after `run` has ended.

        If the outcome of a commit is unknown, it tells them to check every manifest.
        """
        if any(one.is_led and one.remote.life.in_doubt for one in self._partitions.values()):
            self.changes.doubt()
        await self.changes.step(is_last=True)

    def reconfigure(self, config: TieringConfig) -> None:
        """Applies the dynamic settings: quotas, parallel copies and reads, memory for keys."""
        self.copy_quota.limits = config.copy_quota
        self.fetch_quota.limits = config.fetch_quota
        self._gate.reads_max = config.reads_max
        self._pool.resize(config.workers)
        self._workers.copier.copies_max = config.workers
        self._workers.compactor.key_bytes_max = config.compaction_key_bytes_max

    async def _schedule(self) -> None:
        while True:
            self._removals.begin_second_purges()
            self._add_all()
            await self._alterations.sleep(lambda: self._interval_ms() / 1000)

    def _interval_ms(self) -> int:
        """Ms until every partition is checked again: the shortest that one of them needs."""
        uploads_ms = (
            p.log.config.strandline_remote_active_segment_upload_ms
            for p in self._partitions.values()
        )
        interval_ms = self._config.task_interval_ms
        wanted = (tail_check_ms(interval_ms, one_ms) for one_ms in uploads_ms if one_ms >= 0)
        return min(wanted, default=interval_ms)

    async def _keep_house(self) -> None:
        while True:
            if self.health.is_up and self._must_read_tombstones:
                await self._read_tombstones()
            await self._housekeeping.step()
            await asyncio.sleep(HOUSEKEEPING_INTERVAL_S)

    def _add_all(self) -> None:
        for topic_partition in self._partitions:
            self.wake(topic_partition)
        self._removals.release_idle()
        for topic_id in self._removals:
            self._pool.add(topic_id)

    async def _step(self, key: WorkKey) -> bool:
        if isinstance(key, TopicPartition):
            partition = self._partitions.get(key)
            if partition is None:
                return False
            return await partition.step()
        purge = self._removals.purge_of(key)
        may_purge = self.may_write() and self._is_caretaker()
        if purge is None or not self.health.is_up or not may_purge:
            return False
        more = await purge.step()
        # Another broker may have become the caretaker meanwhile.
        if purge.done and self._removals.purge_of(key) is purge:
            self._end_purge(purge)
        return more

    async def run_once(self) -> None:
        """Does all work that is due, until none is left: for tests and tools."""
        if not self.health.is_up:
            await self.health.probe_if_due()
        if self._must_read_tombstones:
            await self._read_tombstones()
        self._removals.begin_second_purges()
        while await self.step_each():
            pass

    async def step_each(self) -> bool:
        """Takes one step of every partition and purge; whether one has more to do: for tests."""
        keys: list[WorkKey] = [*self._partitions, *self._removals]
        return any([await self._step(key) for key in keys])

    # --- purges of an earlier run -------------------------------------------------------------

    async def _read_tombstones(self) -> bool:
        """Resumes purges that a crash interrupted; False if the store does not answer."""
        try:
            topics = await self._threads.run(partial(list_topics, self._threads.store))
        except TierUnavailable as error:
            self.health.failed(error)
            return False
        except StorageError as error:
            # One damaged topic.json, or a forbidden LIST, must not stop all other work.
            log.warning(
                "deleted topics cannot be looked up, purges of an earlier run wait",
                extra={"fields": {"reason": str(error)}},
            )
            return True
        self._tombstones_read = True
        for info in topics:
            if (known := self._topics.get(info.topic_id)) is not None:
                known.found(info)
            if info.is_deleted or info.topic_id in self.untiered:
                self._go_on_with_purge(info)
        return True

    def close(self) -> None:
        """Ends the child processes; blocks while an inspection runs."""
        self._inspector.close()
        self._workers.compactor.close()

    def _end_idle(self) -> None:
        self._inspector.end_if_idle()
        self._workers.compactor.end_if_idle()

    # --- what an operator sees ---------------------------------------------------------------

    def statistics_of(self, topic_partition: TopicPartition) -> PartitionStatistics | None:
        """Statistics of one partition; None if it is not tiered."""
        partition = self._partitions.get(topic_partition)
        return None if partition is None else partition.statistics()

    @property
    def failing(self) -> list[RetryState]:
        """The work that fails now and is of no partition: purges of topics, the list of changes."""
        return [*self._removals.failing, *self.changes.failing]

    def __repr__(self) -> str:
        return (
            f"<TieringManager {self._threads.store.url} partitions={len(self._partitions)} "
            f"purges={len(self._removals)} {self._pool!r}>"
        )
