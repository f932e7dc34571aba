"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

ListOffsets  0  base offsets of segments before a time; gone in Kafka 4, served for old clients
             1  one offset per partition
             2  isolation level: latest means the last stable offset for read_committed
             4  leader epochs; 6 flexible; 7 -3; 8 -4; 9 -5; 10 timeout; 11 -6

    timestamp   answer                                             from
           -1   the end: high watermark, or last stable offset
           -2   the log start, remote tier included
           -3   the record with the largest timestamp              KIP-734; both tiers
           -4   the first offset on local disk                     KIP-405
           -5   the last offset in the remote tier, -1 if none     KIP-1005
           -6   the first offset that is not yet uploaded          KIP-1023
         >= 0   the first record at or after that time             both tiers

OffsetForLeaderEpoch 0-4   1 the epoch of the answer; 4 flexible
DeleteRecords        0-2   2 flexible
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.handlers.services.limits import refuse_partition_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.model import NO_EPOCH, NO_TIMESTAMP, Isolation, TimestampOffset
from strandline.storage.tiering.log.segment_starts import offsets_before

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The version without record timestamps.
VERSION_OF_BORDERS = 0
# Followers tell where their logs begin with a fetch, twice a second at least.
FOLLOWERS_LOOK_S = 0.05
FIRST_VERSION_WITH_UNAVAILABLE = 5
# The first version whose clients know the special timestamp.
_FIRST_VERSION = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_IN_MEMORY = (LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """A timestamp lookup, and the position of its answer."""

    partition: Partition
    wanted: ListOffsetsPartition
    answers: list[ListOffsetsResponsePartition]
    position: int


class OffsetHandlers:
    """Handlers of the three APIs that deal with offsets only."""

    def __init__(self, services: Services) -> None:
        self._replicas = services.replicas
        self._services = services

    # --- ListOffsets -------------------------------------------------------------------------

    def list_offsets(
        self, request: ListOffsetsRequest, context: RequestContext
    ) -> ListOffsetsResponse | Coroutine[None, None, ListOffsetsResponse]:
        """Answers from memory if possible, and otherwise after timestamp lookups.

        The lookups run concurrently: each may decompress a batch or read from the object store.
        """
        refuse_partition_flood(topic.partitions for topic in request.topics)
        times_named = Counter(
            (topic.name, wanted.partition_index)
            for topic in request.topics
            for wanted in topic.partitions
        )
        isolation = (
            # A follower's log goes on to the end of its leader's.
            Isolation.LOG_END
            if request.replica_id >= 0
            else Isolation.of_consumer(request.isolation_level)
        )
        topics: list[ListOffsetsResponseTopic] = []
        lookups: list[_Lookup] = []
        for topic in request.topics:
            answers: list[ListOffsetsResponsePartition] = []
            for wanted in topic.partitions:
                is_repeated = times_named[topic.name, wanted.partition_index] > 1
                partition = self._find(
                    topic.name, wanted, version=context.api_version, is_repeated=is_repeated
                )
                if isinstance(partition, LeaderRefusal):
                    answer = _no_offset(wanted, partition.code)
                elif context.api_version == VERSION_OF_BORDERS:
                    answer = self._borders(partition, wanted)
                elif not _is_end_known(partition, wanted.timestamp, isolation):
                    answer = _no_offset(wanted, _unavailable(context.api_version))
                elif wanted.timestamp in _IN_MEMORY:
                    known = _known_offset(partition, wanted.timestamp, isolation)
                    answer = _offset(wanted, known)
                else:
                    lookups.append(_Lookup(partition, wanted, answers, len(answers)))
                    answer = _no_offset(wanted, ErrorCode.NONE)
                answers.append(answer)
            topics.append(ListOffsetsResponseTopic(name=topic.name, partitions=answers))
        response = ListOffsetsResponse(topics=topics)
        if not lookups:
            return response
        # As in Kafka's ReplicaManager: the client's timeout, which v10 sends, else the broker's.
        wait_ms = request.timeout_ms
        if wait_ms <= 0:
            wait_ms = self._services.config.remote_waits.list_offsets_ms_max
        return self._look_up_all(response, lookups, isolation, wait_ms)

    def _find(
        self, topic: str, wanted: ListOffsetsPartition, *, version: int, is_repeated: bool
    ) -> Partition | LeaderRefusal:
        """Returns the partition of a request for an offset, or the refusal."""
        if is_repeated:
            # As in Kafka. Lookups are expensive: repeating one a thousand times is refused.
            return LeaderRefusal(ErrorCode.INVALID_REQUEST)
        timestamp = wanted.timestamp
        if version < _FIRST_VERSION.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
            return LeaderRefusal(ErrorCode.UNSUPPORTED_VERSION)
        return self._served(topic, wanted.partition_index, wanted.current_leader_epoch)

    def _served(
        self, topic: str, index: int, leader_epoch: int = NO_EPOCH
    ) -> Partition | LeaderRefusal:
        """Returns a partition whose log is complete, or the refusal."""
        leader = self._replicas.leader(topic, index, leader_epoch)
        if isinstance(leader, Partition) and (leader.is_offline or leader.log.has_unknown_extent):
            return LeaderRefusal(ErrorCode.KAFKA_STORAGE_ERROR)
        return leader

    def _borders(
        self, partition: Partition, wanted: ListOffsetsPartition
    ) -> ListOffsetsResponsePartition:
        """Returns the answer of version 0: base offsets of segments complete at that time."""
        if wanted.timestamp == EARLIEST:
            offsets = [partition.log.log_start_offset][: max(0, wanted.max_num_offsets)]
        else:
            offsets = offsets_before(
                partition.log,
                None if wanted.timestamp == LATEST else wanted.timestamp,
                end_offset=partition.high_watermark,
                now_ms=self._services.clock.now_ms(),
                count_max=wanted.max_num_offsets,
            )
        return ListOffsetsResponsePartition(
            partition_index=wanted.partition_index, old_style_offsets=offsets
        )

    async def _look_up_all(
        self,
        response: ListOffsetsResponse,
        lookups: Sequence[_Lookup],
        isolation: Isolation,
        wait_ms: int,
    ) -> ListOffsetsResponse:
        waits = self._services.traffic.remote_lookups
        is_remote = any(lookup.partition.log.is_tiered for lookup in lookups)
        waits.waiting += is_remote
        try:
            await asyncio.gather(*(self._look_up(lookup, isolation, wait_ms) for lookup in lookups))
        finally:
            waits.waiting -= is_remote
        return response

    async def _look_up(self, lookup: _Lookup, isolation: Isolation, wait_ms: int) -> None:
        """Looks up one timestamp and sets its answer.

        A record that the client could not fetch yet is not found (Kafka's
        Partition.fetchOffsetForTimestamp).
        """
        partition, wanted = lookup.partition, lookup.wanted
        try:
            async with asyncio.timeout(wait_ms / 1000):
                if wanted.timestamp == MAX_TIMESTAMP:
                    found = await partition.log.max_timestamp()
                else:
                    found = await partition.log.find_timestamp(wanted.timestamp)
        except TimeoutError:
            self._services.traffic.remote_lookups.expired += 1
            answer = _no_offset(wanted, ErrorCode.REQUEST_TIMED_OUT)
        except (RecordsRejected, StorageError) as error:
            answer = _no_offset(wanted, error.kafka_code)
        else:
            if partition.is_gone:
                answer = _no_offset(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif found is None or found.offset >= partition.log.local.readable_end(isolation):
                answer = _no_offset(wanted, ErrorCode.NONE)
            else:
                answer = _offset(wanted, found)
        lookup.answers[lookup.position] = answer

    # --- OffsetForLeaderEpoch ----------------------------------------------------------------

    def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, _context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        refuse_partition_flood(topic.partitions for topic in request.topics)
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        self._epoch_end(topic.topic, wanted) for wanted in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _epoch_end(self, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
        partition = self._served(topic, wanted.partition, wanted.current_leader_epoch)
        if isinstance(partition, LeaderRefusal):
            return EpochEndOffset(partition=wanted.partition, error_code=partition.code)
        end = partition.epoch_end(wanted.leader_epoch)
        return EpochEndOffset(
            partition=wanted.partition, leader_epoch=end.epoch, end_offset=end.start_offset
        )

    # --- DeleteRecords -----------------------------------------------------------------------

    async def delete_records(
        self, request: DeleteRecordsRequest, _context: RequestContext
    ) -> DeleteRecordsResponse:
        """Answers when the new log starts are durable, and those of followers as high.

        If they cannot be, because a disk is full, the records may be back after a crash:
        KAFKA_STORAGE_ERROR, and the client retries.
        """
        refuse_partition_flood(topic.partitions for topic in request.topics)
        results_by_topic = [
            [self._delete(topic.name, wanted) for wanted in topic.partitions]
            for topic in request.topics
        ]
        failed = await self._replicas.checkpoint_log_starts()
        deadline_s = self._services.clock.monotonic_s() + request.timeout_ms / 1000
        for topic, results in zip(request.topics, results_by_topic, strict=True):
            for position, result in enumerate(results):
                if not result.error_code:
                    results[position] = await self._replicated(topic.name, result, deadline_s)
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[self._durably(topic.name, result, failed) for result in results],
                )
                for topic, results in zip(request.topics, results_by_topic, strict=True)
            ]
        )

    async def _replicated(
        self, topic: str, result: DeleteRecordsPartitionResult, deadline_s: float
    ) -> DeleteRecordsPartitionResult:
        """Waits until followers have deleted the records, too (Kafka's DelayedDeleteRecords)."""
        row = partial(DeleteRecordsPartitionResult, partition_index=result.partition_index)
        while True:
            partition = self._replicas.leader(topic, result.partition_index)
            if isinstance(partition, LeaderRefusal):
                return row(error_code=partition.code)
            leading = partition.leading
            if leading is None:
                return result
            low_watermark = leading.low_watermark(partition.log.log_start_offset)
            if low_watermark >= result.low_watermark:
                return row(low_watermark=low_watermark)
            if self._services.clock.monotonic_s() >= deadline_s:
                return row(error_code=ErrorCode.REQUEST_TIMED_OUT)
            await asyncio.sleep(FOLLOWERS_LOOK_S)

    def _durably(
        self, topic: str, result: DeleteRecordsPartitionResult, failed: frozenset[Path]
    ) -> DeleteRecordsPartitionResult:
        partition = self._replicas.partition(topic, result.partition_index)
        if result.error_code or partition is None:
            return result
        if partition.log.local.directory.parent not in failed:
            return result
        return DeleteRecordsPartitionResult(
            partition_index=result.partition_index, error_code=ErrorCode.KAFKA_STORAGE_ERROR
        )

    def _delete(self, topic: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        row = partial(DeleteRecordsPartitionResult, partition_index=wanted.partition_index)
        partition = self._served(topic, wanted.partition_index)
        if isinstance(partition, LeaderRefusal):
            return row(error_code=partition.code)
        if partition.is_internal:
            return row(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION)
        policy = partition.log.config.cleanup_policy
        if "compact" in policy and "delete" not in policy:
            # Kafka, too, refuses it for a compacted topic (Partition.deleteRecordsOnLeader).
            return row(error_code=ErrorCode.POLICY_VIOLATION)
        try:
            return row(low_watermark=partition.log.delete_records(wanted.offset))
        except (RecordsRejected, StorageError) as error:
            return row(error_code=error.kafka_code)


def _is_end_known(partition: Partition, timestamp: int, isolation: Isolation) -> bool:
    """Whether the answer cannot lie before what this client has seen of an earlier leader."""
    leading = partition.leading
    if leading is None or leading.is_end_known or isolation is Isolation.LOG_END:
        return True
    return timestamp not in (LATEST, MAX_TIMESTAMP) and timestamp < 0


def _unavailable(version: int) -> ErrorCode:
    if version < FIRST_VERSION_WITH_UNAVAILABLE:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.OFFSET_NOT_AVAILABLE


def _known_offset(partition: Partition, timestamp: int, isolation: Isolation) -> TimestampOffset:
    """Returns the answer to a special timestamp that needs no lookup."""
    unified_log = partition.log
    if timestamp == LATEST:
        end_offset = unified_log.local.readable_end(isolation)
        return TimestampOffset(NO_TIMESTAMP, end_offset, partition.leader_epoch)
    if timestamp == EARLIEST:
        offset = unified_log.log_start_offset
    elif timestamp == EARLIEST_LOCAL:
        offset = unified_log.local_start_offset
    elif timestamp == LATEST_TIERED:
        offset = unified_log.highest_remote_offset
    else:
        assert timestamp == EARLIEST_PENDING_UPLOAD, timestamp
        offset = unified_log.earliest_pending_upload
    epoch = partition.epoch_for(offset) if offset >= 0 else NO_EPOCH
    return TimestampOffset(NO_TIMESTAMP, offset, epoch)


def _offset(wanted: ListOffsetsPartition, found: TimestampOffset) -> ListOffsetsResponsePartition:
    return ListOffsetsResponsePartition(
        partition_index=wanted.partition_index,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


def _no_offset(wanted: ListOffsetsPartition, error_code: int) -> ListOffsetsResponsePartition:
    return ListOffsetsResponsePartition(
        partition_index=wanted.partition_index, error_code=error_code
    )
