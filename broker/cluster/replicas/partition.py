"""A replica of this broker: its log, who leads it, and the fetches waiting for records.

The leader owns the log's high watermark. Of a single replica each append moves it to the end; with
followers `leading` does (`in_sync/leading.py`). A follower takes it from the leader's answers.
Of a partition that another broker leads, consumers are served (KIP-392); other requests are told
the leader (KIP-951).

A fetch that found too little data registers a waiter. When the high watermark moves, the waiters
are told by how many bytes, and decide whether that is enough. Followers wait for the log's end
instead. Both are woken after the producer's answer is sent, not during the append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from strandline.broker.cluster.in_sync.leading import LeaderContext, Leading
from strandline.broker.cluster.metadata.image import PartitionImage
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.broker.protocol.messages.fetch import FetchResponsePartition
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.concurrency.tasks import result_of
from strandline.storage.errors import DiskError, RecordsRejected
from strandline.storage.local.log.log import AppendInfo, AppendOrigin, LocalLog
from strandline.storage.model import (
    NO_EPOCH,
    Epoch,
    EpochStart,
    Offset,
    TopicId,
    TopicPartition,
)
from strandline.storage.tiering.log.unified_log import UnifiedLog


class LeaderRefusal(NamedTuple):
    """Why this broker does not serve a request as the leader of a partition.

    The current leader is named where it helps the client (KIP-951), and -1 elsewhere.
    """

    code: ErrorCode
    leader_id: int = -1
    leader_epoch: Epoch = NO_EPOCH


class PartitionGone(RecordsRejected):
    """The partition was deleted while an append to it was prepared."""

    kafka_code = 3  # UNKNOWN_TOPIC_OR_PARTITION


class RecordsCut(DiskError):
    """Records that were to be flushed were truncated meanwhile: no fault of the disk."""


class NotLeader(RecordsRejected):
    """Another broker was elected before the append, which belongs into that one's log."""

    kafka_code = 6  # NOT_LEADER_OR_FOLLOWER


class HighWatermarkWaiter(Protocol):
    """Waits for bytes below the high watermark, an error, or the end of this broker's lead."""

    def on_high_watermark(self, size_bytes: int) -> None:
        """So many bytes came below it. Called inside an append; must only take note and return."""
        ...

    def on_gone(self) -> None:
        """The partition was deleted, went offline, or is led by another broker."""
        ...


class AppendWatcher(Protocol):
    """Watches the end of a log that this broker leads, for a follower."""

    def on_append(self, partition: Partition, size_bytes: int) -> None:
        """Called inside an append; must only take note and return."""
        ...

    def on_gone(self, partition: Partition) -> None:
        """As HighWatermarkWaiter.on_gone."""
        ...


class Partition:
    """One replica; used on the event loop only."""

    __slots__ = (
        "_flushing",
        "_is_gone",
        "_last_prepared",
        "_syncs",
        "_waiters",
        "_watchers",
        "is_internal",
        "is_leader",
        "last_empty_answer",
        "leader_epoch",
        "leader_id",
        "leading",
        "log",
        "partition_epoch",
        "topic_id",
        "topic_partition",
        "traffic",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        log: UnifiedLog,
        leader_epoch: int,
        *,
        leader_id: int,
        is_leader: bool = True,
        has_one_replica: bool = True,
        syncs: Callable[[LocalLog], Executor],
        traffic: TopicTraffic,
    ) -> None:
        """`is_leader`: whether `leader_id` is this broker. `syncs` runs the flushes of a log;
        `traffic` counts for the whole topic.
        """
        self._syncs = syncs
        self._flushing: asyncio.Future[None] | None = None
        # The newest append whose records are still being prepared.
        self._last_prepared: asyncio.Future[None] | None = None
        self._is_gone = False
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.traffic = traffic
        self.leader_epoch = leader_epoch
        self.leader_id = leader_id
        # An attribute, since each request asks.
        self.is_leader = is_leader
        self._waiters: dict[HighWatermarkWaiter, None] = {}
        self._watchers: dict[AppendWatcher, None] = {}
        # The lead of a partition with followers; None without those, or if another broker leads.
        self.leading: Leading | None = None
        self.partition_epoch = -1
        # The last answer without records; see `partition_answers.answer_without_read`.
        self.last_empty_answer: FetchResponsePartition | None = None
        if is_leader and has_one_replica:
            log.local.advance_high_watermark(log.end_offset)

    def __repr__(self) -> str:
        return f"<Partition {self.topic_partition} epoch={self.leader_epoch} {self.log!r}>"

    @property
    def high_watermark(self) -> int:
        """Exclusive end of the records on all in-sync replicas."""
        return self.log.local.high_watermark

    @property
    def is_offline(self) -> bool:
        """Whether the log folder failed: no state of this partition would survive a restart."""
        return self.log.local.failure is not None

    @property
    def last_stable_offset(self) -> int:
        return self.log.local.last_stable_offset

    def begin_leading(
        self, leader_id: int, leader_epoch: Epoch, *, has_one_replica: bool = True
    ) -> None:
        """This broker was elected, or elected again."""
        was_leader = self.is_leader
        self.leader_id, self.leader_epoch, self.is_leader = leader_id, leader_epoch, True
        if has_one_replica:
            self.log.local.advance_high_watermark(self.log.end_offset)
        if not was_leader:
            self._tell_waiters()

    def end_leading(self, leader_id: int, leader_epoch: Epoch) -> None:
        """Another broker was elected, or nobody (-1): whoever waits is told."""
        self.leader_id, self.leader_epoch, self.is_leader = leader_id, leader_epoch, False
        self._end_replication(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._tell_waiters()

    def replicate(self, image: PartitionImage, cluster: LeaderContext) -> None:
        """Follows the metadata of a partition that this broker leads: who its followers are."""
        leading = self.leading
        if len(image.replicas) > 1:
            is_new = leading is None
            if leading is None:
                leading = self.leading = Leading(
                    cluster, self.topic_id, self.log.local, on_advanced=self._on_advanced
                )
            leading.follow(image, is_new=is_new)
        elif leading is not None:
            self._end_replication(ErrorCode.NONE)
            self.log.local.advance_high_watermark(self.log.end_offset)
            self._on_advanced(1)

    def follow_high_watermark(self, high_watermark: Offset, size_bytes: int) -> None:
        """Takes over the leader's: consumers that fetch from this follower are told that so many
        bytes came below it.
        """
        local = self.log.local
        known = local.high_watermark
        local.advance_high_watermark(min(high_watermark, local.end_offset))
        if self._waiters and local.high_watermark > known:
            self._on_advanced(size_bytes)

    def _end_replication(self, code: ErrorCode) -> None:
        leading, self.leading = self.leading, None
        if leading is not None:
            leading.waits.tell_all(code)

    def _on_advanced(self, size_bytes: int) -> None:
        if self._waiters:
            for waiter in tuple(self._waiters):
                waiter.on_high_watermark(size_bytes)

    def refusal(self, epoch: Epoch = NO_EPOCH) -> LeaderRefusal | None:
        """Returns the refusal of a client that knows the leader in another epoch, and of any if
        this broker does not lead; None for others.

        -1 means that the client does not check (KIP-320).
        """
        refusal = self.epoch_refusal(epoch)
        if refusal is not None or self.is_leader:
            return refusal
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return LeaderRefusal(code, self.leader_id, self.leader_epoch)

    def fetch_refusal(self, epoch: Epoch, offset: Offset) -> LeaderRefusal | None:
        """As `refusal`, for a fetch at `offset` of a client that any replica serves (KIP-392).

        A follower does not say what lies behind its end. Kafka's calls it out of range: then a
        consumer without leader epochs, which takes a follower that lost its newest records for the
        leader, begins again at `auto.offset.reset`.
        """
        refusal = self.epoch_refusal(epoch)
        if refusal is not None or self.is_leader or offset <= self.log.end_offset:
            return refusal
        return self.refusal()

    def epoch_refusal(self, epoch: Epoch) -> LeaderRefusal | None:
        """Returns the refusal of a client that knows the leader in another epoch."""
        if epoch in (NO_EPOCH, self.leader_epoch):
            return None
        if epoch > self.leader_epoch:
            return LeaderRefusal(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return LeaderRefusal(ErrorCode.FENCED_LEADER_EPOCH, self.leader_id, self.leader_epoch)

    def epoch_for(self, offset: int) -> int:
        """Returns the leader epoch of `offset`, which may lie ahead; -1 if before the lineage."""
        if offset >= self.log.end_offset:
            return self.leader_epoch
        return self.log.local.leader_epochs.epoch_for(offset)

    def epoch_end(self, epoch: int) -> EpochStart:
        """Returns the largest epoch <= `epoch` and its end offset; (-1, -1) if there is none.

        The log knows an epoch from its first record on. Clients know it before: those that began
        at the end of the log ask for it after the next start, and would take "unknown" for lost
        records. So the current epoch starts at the end of the log, as in Kafka's
        Partition.makeLeader.
        """
        end_offset = self.log.end_offset
        if epoch == self.leader_epoch:
            return EpochStart(epoch, end_offset)
        latest_epoch = self.log.local.leader_epochs.latest_epoch
        if latest_epoch < epoch < self.leader_epoch:
            return EpochStart(epoch if latest_epoch == NO_EPOCH else latest_epoch, end_offset)
        return self.log.local.leader_epochs.end_offset_for(epoch, end_offset)

    def append(
        self,
        records: memoryview,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        records_checked: bool = False,
    ) -> AppendInfo:
        """Appends one batch; see LocalLog.append for what it raises. Raises NotLeader.

        Who led a moment ago may not have heard of the election, as a coordinator's timer. Its
        records would look like those of the leader of this epoch.
        """
        if not self.is_leader:
            raise NotLeader(f"{self.topic_partition} is led by broker {self.leader_id}")
        info = self.log.append(
            records,
            leader_epoch=self.leader_epoch,
            origin=origin,
            records_checked=records_checked,
        )
        if info.duplicate:
            return info
        self.traffic.bytes_in += info.size_bytes
        self.traffic.messages_in += info.last_offset - info.base_offset + 1
        leading = self.leading
        if leading is None:
            self.log.local.advance_high_watermark(info.last_offset + 1)
            if self._waiters:
                for waiter in tuple(self._waiters):
                    waiter.on_high_watermark(info.size_bytes)
            return info
        leading.appended(info)
        for watcher in self._watchers:
            watcher.on_append(self, info.size_bytes)
        return info

    def replace_local(self, local: LocalLog) -> None:
        """Goes on with a log over the same files, or their copy; see UnifiedLog.replace_local."""
        self.log.replace_local(local)
        if self.leading is not None:
            self.leading.replace_local(local)
        elif self.is_leader:
            local.advance_high_watermark(local.end_offset)

    async def append_prepared(
        self,
        preparing: Awaitable[memoryview],
        origin_of: Callable[[memoryview], AppendOrigin] = lambda _: AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Appends the batch that `preparing` returns, in the order of the calls.

        `origin_of` is asked right before the append.

        Preparations run concurrently, but appends keep the order of the calls, so a producer's
        batches reach the log in the order sent. Raises what `preparing` and `append` raise, and
        PartitionGone or NotLeader if the partition was deleted, or led by another broker meanwhile.
        """
        before = self._last_prepared
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_prepared = mine
        try:
            records = await preparing
            if before is not None and not before.done():
                await result_of(before)
            if self._is_gone:
                raise PartitionGone(f"{self.topic_partition} was deleted")
            if not self.is_leader:
                # Before `origin_of`, which asks what this log knows of the transaction.
                raise NotLeader(f"{self.topic_partition} is led by broker {self.leader_id}")
            return self.append(records, origin=origin_of(records), records_checked=True)
        finally:
            # As in `result_of`: the error of a refused batch must not keep its request's buffer.
            del preparing
            if self._last_prepared is mine:
                self._last_prepared = before if before and not before.done() else None
            if before is None or before.done():
                mine.set_result(None)
            else:
                before.add_done_callback(lambda _: mine.set_result(None))

    @property
    def is_gone(self) -> bool:
        """Whether the partition was deleted."""
        return self._is_gone

    @property
    def must_flush(self) -> bool:
        """Whether `flush.messages` demands an fsync before the last append is answered."""
        local = self.log.local
        return local.unflushed_record_count >= local.config.flush_messages

    def may_rely_on(self, end_offset: Offset) -> bool:
        """Returns whether others may be written that depend on the records before `end_offset`.

        These must be below the high watermark, and with flush.messages=1 on this device.
        """
        local = self.log.local
        is_flushed = local.config.flush_messages > 1 or local.recovery_point >= end_offset
        return is_flushed and local.high_watermark >= end_offset

    async def flush(self, up_to: Offset | None = None) -> None:
        """Returns when all before `up_to`, or appended before the call, is on the device.

        Group commit: callers that come during an fsync share the next one. Raises StorageError to
        each of them if it fails, RecordsCut if the log was truncated meanwhile.
        """
        wanted_end = self.log.end_offset if up_to is None else up_to
        while (local := self.log.local).recovery_point < wanted_end:
            if self.log.end_offset < wanted_end:
                # The outcome of these records is unknown, and others may get their offsets.
                raise RecordsCut(f"{self.topic_partition} was cut below {wanted_end}")
            # One that has ended began before the records that are missing from the device.
            if self._flushing is None or self._flushing.done():
                loop = asyncio.get_running_loop()
                syncs = self._syncs(local)
                self._flushing = loop.run_in_executor(syncs, local.flush, wanted_end)
            try:
                await result_of(self._flushing)
            except DiskError:
                # A move replaced the folder during the flush: its copy was synced before.
                if self.log.local is local:
                    raise
            finally:
                # The error of one that failed references this frame, and so the log's open files.
                if self._flushing is not None and self._flushing.done():
                    self._flushing = None

    async def lower_recovery_point(self, offset: Offset) -> None:
        """Prepares a truncation to `offset`: what it has to sync is on the device then.

        Raises DiskError.
        """
        local, loop = self.log.local, asyncio.get_running_loop()
        # Also where nothing is to be lowered: another cut may be under way, and is awaited there.
        await result_of(
            loop.run_in_executor(self._syncs(local), local.lower_recovery_point, offset)
        )

    def wait(self, waiter: HighWatermarkWaiter) -> None:
        self._waiters[waiter] = None

    def stop_waiting(self, waiter: HighWatermarkWaiter) -> None:
        self._waiters.pop(waiter, None)

    def watch(self, watcher: AppendWatcher) -> None:
        """`watcher` is told of appends, while this broker leads with followers."""
        self._watchers[watcher] = None

    def stop_watching(self, watcher: AppendWatcher) -> None:
        self._watchers.pop(watcher, None)

    def gone(self) -> None:
        """Wakes all waiters for good: the partition is deleted or offline."""
        self._is_gone = True
        self._end_replication(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._tell_waiters()

    def _tell_waiters(self) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            waiter.on_gone()
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers:
            watcher.on_gone(self)
