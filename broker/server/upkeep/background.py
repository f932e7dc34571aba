"""Background loops over the logs, and the supervisor that restarts a failed loop.

    flush       closed segments, and open ones whose flush.ms or flush.messages is due; new epochs
    checkpoint  log starts
    revive      log folders that were offline and can be written again; room on a full disk
    expire      idempotent producers after producer.id.expiration.ms without a batch
    purges      deleted topics without data in either tier

A failed loop is logged and restarted; it never stops the broker. `archive_upkeep.py` has the loops
of the bucket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice

from strandline.broker.cluster.metadata.controller_messages import (
    Controller,
    FinishPurges,
    RaiseLeaderEpochs,
)
from strandline.broker.cluster.replicas.partition import Partition, RecordsCut
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.server.workers import SYNC_THREADS
from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import side_by_side
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.errors import DiskError, StrandlineError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.local.log_dirs.log_dir import LogDir
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.local.log_dirs.revival import RevivedLog
from strandline.storage.model import TimestampMs, TopicId
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# Pause before a failed loop restarts.
RESTARTS = Backoff(1.0, 60.0)
# Closed segments are synced at the next check; flush.ms is kept to this precision.
FLUSH_CHECK_S = 1.0
# Kafka's replica.high.watermark.checkpoint.interval.ms.
CHECKPOINT_S = 5.0
# An offline folder is probed with one small file, often enough that no operator has to restart.
REVIVE_CHECK_S = 1.0
# Each attempt to create a missing folder (mostly the disk is full) changes the metadata: a file,
# and an object in the bucket.
UNCREATED_RETRY_S = 60.0
PURGE_CHECK_S = 0.5
# An entry of the metadata log stays small: some 20 bytes for each.
PURGES_PER_CHANGE_MAX = 1000
# Kafka's producer.id.expiration.check.interval.ms.
PRODUCER_CHECK_S = 600.0


async def keep_running(name: str, begin: Callable[[], Awaitable[None]]) -> None:
    """Runs a loop, and restarts it with a growing pause if it fails.

    The pause resets after a minute without failure: last week's failures are no reason to leave a
    log folder offline for a minute.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        begun_s = loop.time()
        try:
            await begin()
        except Exception as error:
            failures = 1 if loop.time() - begun_s >= RESTARTS.max_s else failures + 1
            if isinstance(error, StrandlineError):
                wait_s = RESTARTS.wait_s(failures)
                log.warning(
                    "background task failed, will be restarted",
                    extra={"fields": {"task": name, "wait_s": wait_s, "error": str(error)}},
                )
            else:
                log.exception("background task failed", extra={"fields": {"task": name}})
        await asyncio.sleep(RESTARTS.wait_s(failures))


def delayed(delay_ms: int, begin: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Returns the same loop, which starts `delay_ms` later."""

    async def wait_and_begin() -> None:
        await asyncio.sleep(delay_ms / 1000)
        await begin()

    return wait_and_begin


class LogUpkeep:
    """The loops over this broker's logs and their folders."""

    def __init__(
        self,
        replicas: ReplicaManager,
        log_dirs: LogDirs,
        *,
        controller: Controller,
        running: RunningConfig,
        folders: FolderWork,
        clock: Clock,
        believed_ms: Callable[[], TimestampMs],
        on_revived: Callable[[], None] = lambda: None,
        revives: bool = True,
    ) -> None:
        """`believed_ms` is the time by which producers expire: no jump is believed at once.

        `on_revived` is called when logs of an offline folder are served again, unless a folder that
        failed stays offline until the next start.
        """
        self._revives = revives
        self._replicas = replicas
        self._log_dirs = log_dirs
        self._controller = controller
        self._running = running
        self._folders = folders
        self._clock = clock
        # What a folder that came back has not answered yet.
        self._reviving: dict[LogDir, asyncio.Future[list[RevivedLog]]] = {}
        # Reopened logs that are not served yet: the metadata log has to record them first.
        self._revived: list[RevivedLog] = []
        self._believed_ms = believed_ms
        self._on_revived = on_revived

    async def flush_forever(self) -> None:
        """Syncs closed segments, and open ones whose flush.ms or flush.messages is due; writes new
        leader epochs.
        """
        quiet_log = QuietLog(log, self._clock)
        # A loop for each: a disk that hangs delays that of its folder alone.
        await side_by_side(
            *(self._flush_folder_forever(one, quiet_log) for one in self._log_dirs.directories)
        )

    async def _flush_folder_forever(self, folder: LogDir, quiet_log: QuietLog) -> None:
        while True:
            await asyncio.sleep(FLUSH_CHECK_S)
            now_s = self._clock.monotonic_s()
            await self._flush_folder(folder, await self._due(folder, now_s), quiet_log, now_s)

    async def _due(self, folder: LogDir, now_s: float) -> list[Partition]:
        """Returns the partitions of a folder with something to sync."""
        found: list[Partition] = []
        async for key in in_turns(tuple(folder.logs)):
            partition = self._replicas.partition(key.topic, key.partition)
            if partition is not None and (
                partition.log.local.leader_epochs.is_unwritten
                or _must_be_flushed(partition.log.local, now_s)
            ):
                found.append(partition)
        return found

    async def _flush_folder(
        self, folder: LogDir, due: list[Partition], quiet_log: QuietLog, now_s: float
    ) -> None:
        unwritten = [one for one in due if one.log.local.leader_epochs.is_unwritten]
        while due:
            # Removed: this round must not hold a partition that is deleted later.
            together = [due.pop() for _ in due[:SYNC_THREADS]]
            await asyncio.gather(
                *(
                    _flush(one, quiet_log, now_s)
                    for one in together
                    if _must_be_flushed(one.log.local, now_s)
                )
            )
            together.clear()
        if unwritten:
            await self._folders.start(folder, partial(_write_epochs, unwritten, quiet_log))

    async def checkpoint_forever(self) -> None:
        """Checkpoints the log start offsets."""
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            await self._replicas.checkpoint_log_starts()

    async def revive_folders_forever(self) -> None:
        """Reopens offline log folders that are writable again."""
        tried_s = -UNCREATED_RETRY_S
        while True:
            await asyncio.sleep(REVIVE_CHECK_S)
            if self._log_dirs.is_short_of_room:
                await self._make_room()
            if self._revives and (self._log_dirs.has_failed or self._reviving):
                self._revived += await self._revive()
            revived = self._revived
            now_s = self._clock.monotonic_s()
            is_to_create = (
                self._replicas.has_uncreated
                and not self._log_dirs.has_failed
                and (revived or now_s - tried_s >= UNCREATED_RETRY_S)
            )
            if is_to_create:
                tried_s = now_s
            if is_to_create or any(pair.lost_records for pair in revived):
                await self._controller.ask(RaiseLeaderEpochs(self._running.static.node_id))
            self._replicas.replace_logs(revived)
            if revived:
                self._on_revived()
            revived.clear()

    async def _revive(self) -> list[RevivedLog]:
        """Returns what came back; a folder that hangs is asked once, and waited for no longer."""
        for one in self._log_dirs.directories:
            if one.failure is not None and one not in self._reviving:
                revive = partial(self._log_dirs.revive, (one,))
                self._reviving[one] = self._folders.start(one, revive)
        if self._reviving:
            await asyncio.wait(self._reviving.values(), timeout=REVIVE_CHECK_S)
        answered = [one for one, answer in self._reviving.items() if answer.done()]
        return [log for one in answered for log in self._reviving.pop(one).result()]

    async def _make_room(self) -> None:
        """Unlinks what waits for its deletion, since a write found no room."""
        try:
            counts = await self._folders.on_each(
                self._log_dirs.directories, lambda one: self._log_dirs.make_room((one,))
            )
        except DiskError as error:
            log.warning("files not unlinked", extra={"fields": {"reason": str(error)}})
        else:
            if count := sum(counts.values()):
                log.info(
                    "no room: what waited for its deletion is removed at once",
                    extra={"fields": {"removed": count}},
                )

    async def expire_producers_forever(self) -> None:
        """Expires idempotent producers after `producer.id.expiration.ms` without a batch."""
        while True:
            await asyncio.sleep(PRODUCER_CHECK_S)
            now_ms, config = self._believed_ms(), self._running.current.partitions
            async for partition in in_turns(self._replicas.partitions()):
                partition.log.local.producers.expire(now_ms, config.producer_expiration_ms)


async def _flush(partition: Partition, quiet_log: QuietLog, now_s: float) -> None:
    local = partition.log.local
    try:
        # A roll waits for no record behind it, as in Kafka: on a late disk there is always one.
        is_due = local.flush_is_due(now_s)
        await partition.flush(None if is_due else local.active_segment.base_offset)
    except RecordsCut:
        # A follower that goes on from its leader's log; the next round flushes what it has then.
        return
    except DiskError as error:
        _report(quiet_log, "flush failed", partition, error)


def _write_epochs(partitions: Sequence[Partition], quiet_log: QuietLog) -> None:
    """Writes new leader epochs of the logs; blocks."""
    for partition in partitions:
        try:
            partition.log.local.write_epochs()
        except DiskError as error:
            _report(quiet_log, "leader epochs not written", partition, error)


def _report(quiet_log: QuietLog, event: str, partition: Partition, error: DiskError) -> None:
    if not partition.is_gone:
        where = partition.topic_partition
        fields = {"partition": str(where), "error": str(error)}
        quiet_log.say(logging.ERROR, event, where, fields)


def _must_be_flushed(local: LocalLog, now_s: float) -> bool:
    """Whether closed segments wait for their fsync, or flush.messages or flush.ms is due."""
    if local.failure is not None:
        return False
    return local.recovery_point < local.active_segment.base_offset or local.flush_is_due(now_s)


class FinishedPurges:
    """Topics that are purged from both tiers but not yet from the metadata log."""

    def __init__(self) -> None:
        self._topic_ids: set[TopicId] = set()

    def add(self, topic_id: TopicId) -> None:
        self._topic_ids.add(topic_id)

    async def note_forever(self, controller: Controller) -> None:
        while True:
            await asyncio.sleep(PURGE_CHECK_S)
            while self._topic_ids:
                # Together: each change is a file, and an object in the bucket.
                topic_ids = frozenset(islice(self._topic_ids, PURGES_PER_CHANGE_MAX))
                await controller.ask(FinishPurges(topic_ids))
                self._topic_ids -= topic_ids
