"""Fetch and FetchSnapshot of `__cluster_metadata-0`, as KafkaRaftClient answers them.

Fetch          by name up to 12, by the topic's id from 13 on; 12 the epoch of the last record;
               17 the follower's folder, 18 its high watermark
FetchSnapshot  0-1

    the follower's epoch is lower     FENCED_LEADER_EPOCH, with leader and epoch: so it finds them
    higher                            UNKNOWN_LEADER_EPOCH
    it is behind the start            the id of the snapshot that it has to take
    at the end                        waits for the next entry, up to its `max_wait_ms`

A feed has one partition and no sessions. One follower waits at a time on a connection.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Container
from typing import Final

from strandline.broker.cluster.metadata.topic_names import METADATA_TOPIC
from strandline.broker.config.listeners import Listener
from strandline.broker.controller.feed import (
    Batches,
    Diverged,
    NeedsSnapshot,
    OffsetAndEpoch,
    ServedMetadataLog,
)
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.messages.describe_quorum import ReplicaState
from strandline.broker.protocol.messages.fetch import (
    FetchCurrentLeader,
    FetchDivergingEpoch,
    FetchNodeEndpoint,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    FetchSnapshotId,
)
from strandline.broker.protocol.messages.fetch_snapshot import (
    FetchSnapshotPartition,
    FetchSnapshotPartitionResult,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    FetchSnapshotTopicResult,
    SnapshotId,
    SnapshotLeader,
    SnapshotNodeEndpoint,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock

METADATA_TOPIC_ID: Final = uuid.UUID(int=1)
# Kafka's followers ask for half a second.
WAIT_MS_MAX: Final = 30_000
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
# That are remembered: a fetch says its id itself, and nobody has checked that.
FOLLOWERS_MAX: Final = 1000


class FollowerHandlers:
    """Handlers for those who follow the metadata log."""

    def __init__(
        self,
        feed: ServedMetadataLog,
        *,
        node_id: int,
        cluster_id: str,
        advertised: Callable[[str], Listener],
        snapshot: Callable[[OffsetAndEpoch], Awaitable[bytes | None]],
        clock: Clock,
    ) -> None:
        """`snapshot` returns the bytes of one, None if there is no such."""
        self._feed = feed
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._advertised = advertised
        self._snapshot = snapshot
        self._clock = clock
        self._news = asyncio.Event()
        # How far each was at its last fetch, by its id.
        self._followers: dict[int, ReplicaState] = {}

    def observers(self, brokers: Container[int]) -> list[ReplicaState]:
        """Returns the followers among these brokers, by their ids, for DescribeQuorum."""
        return [one for node_id, one in sorted(self._followers.items()) if node_id in brokers]

    def wake(self) -> None:
        """Answers those who wait: there is a new entry."""
        self._news.set()
        self._news = asyncio.Event()

    # --- Fetch -----------------------------------------------------------------------------------

    async def fetch(self, request: FetchRequest, context: RequestContext) -> FetchResponse:
        if request.cluster_id not in (None, self._cluster_id):
            return FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=())
        wanted = _only_partition(request)
        if wanted is None:
            return FetchResponse(error_code=ErrorCode.INVALID_REQUEST, topics=())
        answer = self._answer(request, wanted)
        if self._must_wait(request, wanted, answer):
            news = self._news
            wait_s = min(request.max_wait_ms, WAIT_MS_MAX) / 1000
            try:
                async with asyncio.timeout(wait_s):
                    await news.wait()
            except TimeoutError:
                pass
            answer = self._answer(request, wanted)
        topic = request.topics[0]
        return FetchResponse(
            topics=[
                FetchResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[answer])
            ],
            node_endpoints=[self._endpoint(context)],
        )

    def _must_wait(
        self, request: FetchRequest, wanted: FetchPartition, answer: FetchResponsePartition
    ) -> bool:
        return (
            request.max_wait_ms > 0
            and answer.error_code == ErrorCode.NONE
            and not answer.records_bytes
            and answer.snapshot_id is None
            and answer.diverging_epoch is None
            and wanted.high_watermark >= answer.high_watermark
        )

    def _answer(self, request: FetchRequest, wanted: FetchPartition) -> FetchResponsePartition:
        feed = self._feed
        code = self._fault(request, wanted)
        if code is not ErrorCode.NONE:
            return FetchResponsePartition(
                index=wanted.partition,
                error_code=code,
                high_watermark=-1,
                current_leader=self._leader(),
            )
        self._note(request, wanted)
        bytes_max = min(request.max_bytes, FETCH_BYTES_MAX)
        read = feed.read(wanted.fetch_offset, wanted.last_fetched_epoch, bytes_max)
        batches = read.batches if isinstance(read, Batches) else ()
        snapshot = diverged = None
        if isinstance(read, NeedsSnapshot):
            snapshot = FetchSnapshotId(end_offset=read.snapshot.offset, epoch=read.snapshot.epoch)
        elif isinstance(read, Diverged):
            diverged = FetchDivergingEpoch(epoch=read.common.epoch, end_offset=read.common.offset)
        return FetchResponsePartition(
            index=wanted.partition,
            high_watermark=feed.end,
            log_start_offset=feed.start.offset,
            current_leader=self._leader(),
            snapshot_id=snapshot,
            diverging_epoch=diverged,
            records=list(batches),
            records_bytes=sum(map(len, batches)),
        )

    def _fault(self, request: FetchRequest, wanted: FetchPartition) -> ErrorCode:
        epoch = wanted.current_leader_epoch
        if (
            request.max_wait_ms < 0
            or wanted.fetch_offset < 0
            or not 0 <= wanted.last_fetched_epoch <= epoch
        ):
            return ErrorCode.INVALID_REQUEST
        return self._epoch_fault(epoch)

    def _epoch_fault(self, epoch: int) -> ErrorCode:
        if epoch < self._feed.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > self._feed.epoch else ErrorCode.NONE

    def _note(self, request: FetchRequest, wanted: FetchPartition) -> None:
        state = request.replica_state
        replica_id = request.replica_id if state is None else state.replica_id
        if replica_id < 0:
            return
        before = self._followers.pop(replica_id, None)
        if len(self._followers) >= FOLLOWERS_MAX:
            # Those that fetch come back: the first is the one that has not for longest.
            del self._followers[next(iter(self._followers))]
        now_ms = self._clock.now_ms()
        is_caught_up = wanted.fetch_offset >= self._feed.end
        caught_up_ms = -1 if before is None else before.last_caught_up_timestamp
        self._followers[replica_id] = ReplicaState(
            replica_id=replica_id,
            replica_directory_id=wanted.replica_directory_id,
            log_end_offset=wanted.fetch_offset,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms if is_caught_up else caught_up_ms,
        )

    def _leader(self) -> FetchCurrentLeader:
        return FetchCurrentLeader(leader_id=self._node_id, leader_epoch=self._feed.epoch)

    def _endpoint(self, context: RequestContext) -> FetchNodeEndpoint:
        address = self._advertised(context.caller.listener)
        return FetchNodeEndpoint(node_id=self._node_id, host=address.host, port=address.port)

    # --- FetchSnapshot ---------------------------------------------------------------------------

    async def fetch_snapshot(
        self, request: FetchSnapshotRequest, context: RequestContext
    ) -> FetchSnapshotResponse:
        if request.cluster_id not in (None, self._cluster_id):
            return FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST)
        (topic,) = request.topics
        (wanted,) = topic.partitions
        if (topic.name, wanted.partition) != (METADATA_TOPIC, 0):
            result = _refused(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            result = await self._piece(wanted, request.max_bytes)
        result = result.replaced(
            current_leader=SnapshotLeader(leader_id=self._node_id, leader_epoch=self._feed.epoch)
        )
        address = self._advertised(context.caller.listener)
        return FetchSnapshotResponse(
            topics=[FetchSnapshotTopicResult(name=topic.name, partitions=[result])],
            node_endpoints=[
                SnapshotNodeEndpoint(node_id=self._node_id, host=address.host, port=address.port)
            ],
        )

    async def _piece(
        self, wanted: FetchSnapshotPartition, bytes_max: int
    ) -> FetchSnapshotPartitionResult:
        code = self._epoch_fault(wanted.current_leader_epoch)
        if code is not ErrorCode.NONE:
            return _refused(wanted, code)
        asked = OffsetAndEpoch(wanted.snapshot_id.end_offset, wanted.snapshot_id.epoch)
        snapshot = await self._snapshot(asked)
        if snapshot is None:
            return _refused(wanted, ErrorCode.SNAPSHOT_NOT_FOUND)
        if not 0 <= wanted.position < len(snapshot):
            return _refused(wanted, ErrorCode.POSITION_OUT_OF_RANGE)
        end = wanted.position + max(1, min(bytes_max, FETCH_BYTES_MAX))
        return FetchSnapshotPartitionResult(
            index=wanted.partition,
            snapshot_id=wanted.snapshot_id,
            size=len(snapshot),
            position=wanted.position,
            unaligned_records=snapshot[wanted.position : end],
        )


def _refused(wanted: FetchSnapshotPartition, code: ErrorCode) -> FetchSnapshotPartitionResult:
    return FetchSnapshotPartitionResult(
        index=wanted.partition, error_code=code, snapshot_id=SnapshotId(end_offset=-1, epoch=-1)
    )


def _only_partition(request: FetchRequest) -> FetchPartition | None:
    """Returns the partition that is asked for; None unless it is that of the metadata alone."""
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    (topic,) = request.topics
    is_metadata = (
        topic.name == METADATA_TOPIC
        if topic.topic_id is None
        else topic.topic_id == METADATA_TOPIC_ID
    )
    (wanted,) = topic.partitions
    return wanted if is_metadata and wanted.partition == 0 else None
