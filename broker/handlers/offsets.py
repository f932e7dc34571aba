"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where things begin and end.

ListOffsets  1  first served, one offset per partition
             2  isolation level: latest means the last stable offset for read_committed
             4  leader epochs; 6 flexible; 7 -3; 8 -4; 9 -5; 10 timeout; 11 -6

    timestamp   answer                                             from
           -1   the end: high watermark, or last stable offset
           -2   the log start, remote tier included
           -3   the record with the largest timestamp              KIP-734; local tier, as in Kafka
           -4   the first offset on local disk                     KIP-405
           -5   the last offset in the remote tier, -1 if none     KIP-1005
           -6   the first offset that is not yet uploaded          KIP-1023
         >= 0   the first record at or after that time             both tiers

OffsetForLeaderEpoch 2-4   4 flexible
DeleteRecords        0-2   2 flexible
"""

from __future__ import annotations

import asyncio

from strandline.broker.cluster.partition import Partition
from strandline.broker.handlers.services import RequestContext, Services
from strandline.broker.protocol.errors import ErrorCode
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
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.model import NO_EPOCH, NO_TIMESTAMP, Isolation, TimestampOffset

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The first version whose clients know what each special timestamp means.
_FIRST_VERSION = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
HIGH_WATERMARK = -1


class OffsetHandlers:
    """The three APIs that speak of offsets alone."""

    def __init__(self, services: Services) -> None:
        self._replicas = services.replicas
        self._list_timeout_s = services.config.remote_list_offsets_request_timeout_ms / 1000

    # --- ListOffsets -------------------------------------------------------------------------

    async def list_offsets(
        self, request: ListOffsetsRequest, context: RequestContext
    ) -> ListOffsetsResponse:
        """Partitions are looked up in parallel: each may have to ask the object store."""
        answers = await asyncio.gather(
            *(
                self._list_offset(topic.name, wanted, request, context.api_version)
                for topic in request.topics
                for wanted in topic.partitions
            )
        )
        in_order = iter(answers)
        return ListOffsetsResponse(
            topics=[
                ListOffsetsResponseTopic(
                    name=topic.name, partitions=[next(in_order) for _ in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    async def _list_offset(
        self, topic: str, wanted: ListOffsetsPartition, request: ListOffsetsRequest, version: int
    ) -> ListOffsetsResponsePartition:
        index = wanted.partition_index
        partition = self._replicas.partition(topic, index)
        if partition is None:
            return ListOffsetsResponsePartition(
                partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        if version < _FIRST_VERSION.get(wanted.timestamp, 0) or wanted.timestamp < min(
            _FIRST_VERSION
        ):
            return ListOffsetsResponsePartition(
                partition_index=index, error_code=ErrorCode.UNSUPPORTED_VERSION
            )
        try:
            partition.check_leader_epoch(wanted.current_leader_epoch)
            async with asyncio.timeout(self._list_timeout_s):
                found = await self._find(partition, wanted.timestamp, request.isolation_level)
        except TimeoutError:
            return ListOffsetsResponsePartition(
                partition_index=index, error_code=ErrorCode.REQUEST_TIMED_OUT
            )
        except (RecordsRejected, StorageError) as error:
            return ListOffsetsResponsePartition(partition_index=index, error_code=error.kafka_code)
        if found is None:
            return ListOffsetsResponsePartition(partition_index=index)
        return ListOffsetsResponsePartition(
            partition_index=index,
            timestamp=found.timestamp_ms,
            offset=found.offset,
            leader_epoch=found.leader_epoch,
        )

    async def _find(
        self, partition: Partition, timestamp: int, isolation: int
    ) -> TimestampOffset | None:
        tiers = partition.log
        match timestamp:
            case -1:
                offset = (
                    partition.last_stable_offset
                    if isolation == Isolation.READ_COMMITTED
                    else partition.high_watermark
                )
                return TimestampOffset(NO_TIMESTAMP, offset, partition.leader_epoch)
            case -2:
                offset = tiers.log_start_offset
            case -3:
                return await tiers.max_timestamp()
            case -4:
                offset = tiers.local_start_offset
            case -5:
                offset = tiers.highest_remote_offset
            case -6:
                offset = tiers.earliest_pending_upload
            case _:
                found = await tiers.find_timestamp(timestamp)
                if found is None or found.offset >= partition.high_watermark:
                    return None
                return found
        epoch = tiers.local.leader_epochs.epoch_for(offset) if offset >= 0 else NO_EPOCH
        return TimestampOffset(NO_TIMESTAMP, offset, epoch)

    # --- OffsetForLeaderEpoch ----------------------------------------------------------------

    def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, _context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
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
        partition = self._replicas.partition(topic, wanted.partition)
        if partition is None:
            return EpochEndOffset(
                partition=wanted.partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        try:
            partition.check_leader_epoch(wanted.current_leader_epoch)
        except RecordsRejected as error:
            return EpochEndOffset(partition=wanted.partition, error_code=error.kafka_code)
        if wanted.leader_epoch == partition.leader_epoch:
            # The current epoch ends where the log ends, even before its first record (KIP-320).
            return EpochEndOffset(
                partition=wanted.partition,
                leader_epoch=partition.leader_epoch,
                end_offset=partition.high_watermark,
            )
        end = partition.log.offset_for_epoch(wanted.leader_epoch)
        return EpochEndOffset(
            partition=wanted.partition, leader_epoch=end.epoch, end_offset=end.start_offset
        )

    # --- DeleteRecords -----------------------------------------------------------------------

    async def delete_records(
        self, request: DeleteRecordsRequest, _context: RequestContext
    ) -> DeleteRecordsResponse:
        """Answers when the new log starts are durable."""
        response = DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[self._delete(topic.name, wanted) for wanted in topic.partitions],
                )
                for topic in request.topics
            ]
        )
        await self._replicas.checkpoint_log_starts()
        return response

    def _delete(self, topic: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        index = wanted.partition_index
        partition = self._replicas.partition(topic, index)
        if partition is None:
            return DeleteRecordsPartitionResult(
                partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        before = partition.high_watermark if wanted.offset == HIGH_WATERMARK else wanted.offset
        if not 0 <= before <= partition.high_watermark:
            return DeleteRecordsPartitionResult(
                partition_index=index, error_code=ErrorCode.OFFSET_OUT_OF_RANGE
            )
        try:
            low_watermark = partition.log.delete_records(before)
        except (RecordsRejected, StorageError) as error:
            return DeleteRecordsPartitionResult(partition_index=index, error_code=error.kafka_code)
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark)
