"""Writes the markers that end transactions: the way from a coordinator to the partitions.

    coordinator --> EndMarker --> LocalMarkers  --> partitions that this broker leads
                              --> MarkerChannel --> WriteTxnMarkers to the leader, whose handler
                                                    calls `LocalMarkers.write`

In a partition of this broker a marker is an append; with followers it counts once all in sync have
it: a transaction that is complete must not lose its end to an election. In a cluster it also has to
be on the device, where `flush.messages` demands that: only a lone broker writes again what a loss
of power took (`power_loss/repair.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import NamedTuple, Protocol

from strandline.broker.cluster.in_sync.leading import Leading
from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.records.offset_records import LoadedMarker
from strandline.broker.coordination.transactions.transaction import (
    LogEnd,
    ProducerIdentity,
    TransactionVersion,
)
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.model import Offset, TopicPartition
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.marker import (
    MarkerType,
    TransactionMarker,
    encode_marker_batch,
)


class EndMarker(NamedTuple):
    """The end of a producer's transaction, for each of its partitions.

    `coordinator_epoch` is the leader epoch of the coordinator's partition: a marker of an older
    coordinator is refused.
    """

    producer: ProducerIdentity
    end: MarkerType
    coordinator_epoch: int
    version: TransactionVersion


OnReplicated = Callable[[ErrorCode], None]
Spawn = Callable[[Coroutine[object, object, None]], object]


class _ReplicatedMarker:
    """A marker that followers have yet to get."""

    __slots__ = ("_on_replicated",)
    is_over = False

    def __init__(self, on_replicated: OnReplicated) -> None:
        self._on_replicated = on_replicated

    def acknowledged(self, _place: int, code: ErrorCode) -> None:
        # Not inside the append or fetch that tells it.
        asyncio.get_running_loop().call_soon(self._on_replicated, code)


class CommittedOffsets(Protocol):
    """Who keeps the offsets that transactions commit."""

    def may_end_transaction(self, partition: TopicPartition) -> bool: ...

    def ended_transaction(self, partition: TopicPartition, ended: LoadedMarker) -> None: ...


class LocalMarkers:
    """Appends markers to the partitions of this broker. Used on the event loop only."""

    def __init__(
        self,
        replicas: ReplicaManager,
        offsets: CommittedOffsets,
        clock: Clock,
        *,
        spawn: Spawn | None = None,
    ) -> None:
        """`spawn` runs a task; a lone broker, which waits for no device, has none."""
        self._replicas = replicas
        self._spawn = spawn
        self._offsets = offsets
        self._clock = clock
        # The last marker: one transaction writes the same to all its partitions.
        self._marker: EndMarker | None = None
        self._encoded = b""

    def log_ends(self, partitions: Iterable[TopicPartition]) -> tuple[LogEnd, ...]:
        """Returns where the logs of these partitions end, by topic.

        Not of those offline, nor of those that may have another end when they know their archive.
        """
        found = (self._replicas.partition(one.topic, one.partition) for one in sorted(partitions))
        return tuple(
            LogEnd(one.topic_partition, one.topic_id, one.leader_epoch, one.log.end_offset)
            for one in found
            if one is not None and one.is_leader and one.log.may_append
        )

    def write(
        self,
        marker: EndMarker,
        where: TopicPartition,
        on_replicated: OnReplicated = lambda _: None,
    ) -> ErrorCode | None:
        """Writes the marker to one partition; see WriteTxnMarkers for the codes.

        None: `on_replicated` gets the code in a later turn, when device and followers have it, or
        never will.
        """
        partition = self._replicas.leader(where.topic, where.partition)
        if isinstance(partition, LeaderRefusal):
            return partition.code
        has_offsets = where.topic == OFFSETS_TOPIC
        if has_offsets and not self._offsets.may_end_transaction(where):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            end_offset = self._append(marker, partition)
        except (RecordsRejected, StorageError) as error:
            return ErrorCode(error.kafka_code)
        if has_offsets:
            ended = LoadedMarker(marker.producer.producer_id, marker.end)
            self._offsets.ended_transaction(where, ended)
        leading = partition.leading
        if self._spawn is not None and partition.must_flush:
            self._spawn(_once_flushed(partition, leading, end_offset, on_replicated))
            return None
        return _replicated(leading, end_offset, on_replicated)

    def _append(self, marker: EndMarker, partition: Partition) -> Offset:
        producer = marker.producer
        if partition.leading is not None:
            partition.leading.check_enough_in_sync()
        if marker.version.bumps_epoch:
            producers = partition.log.local.producers
            producers.check_marker_of_new_epoch(producer.producer_id, producer.epoch)
        if marker is not self._marker:
            self._marker, self._encoded = marker, encode_end_marker(marker, self._clock.now_ms())
        # A copy, for the append stamps it as its topic demands.
        batch = memoryview(bytearray(self._encoded))
        return partition.append(batch, origin=AppendOrigin.COORDINATOR).last_offset + 1


def _replicated(
    leading: Leading | None, end_offset: Offset, on_replicated: OnReplicated
) -> ErrorCode | None:
    if leading is None:
        return ErrorCode.NONE
    code = leading.wait(end_offset)
    if code is None:
        leading.waits.add(end_offset, _ReplicatedMarker(on_replicated), 0)
    return code


async def _once_flushed(
    partition: Partition, leading: Leading | None, end_offset: Offset, on_replicated: OnReplicated
) -> None:
    try:
        await partition.flush(end_offset)
    except StorageError as error:
        on_replicated(ErrorCode(error.kafka_code))
        return
    code: ErrorCode | None = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if partition.is_leader and partition.leading is leading:
        code = _replicated(leading, end_offset, on_replicated)
    if code is not None:
        on_replicated(code)


def encode_end_marker(marker: EndMarker, now_ms: int) -> bytes:
    """Encodes the control batch."""
    return encode_marker_batch(
        TransactionMarker(marker.end, marker.coordinator_epoch),
        producer_id=marker.producer.producer_id,
        producer_epoch=marker.producer.epoch,
        now_ms=now_ms,
    )


def log_missing_marker(
    quiet_log: QuietLog, whose: str, partition: TopicPartition, code: ErrorCode
) -> None:
    """Logs a marker that is to be written later: one line for all partitions of a folder that
    fails, as the metrics count them.
    """
    fields = {"transactional_id": whose, "partition": str(partition), "error": code.name}
    quiet_log.say(logging.WARNING, "transaction marker not written", code, fields)
