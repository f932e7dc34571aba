"""FetchSnapshot: pieces of a snapshot of the metadata log (KIP-630).

v1  replica directory id, address of the leader (KIP-853)
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class SnapshotId(Struct):
    """A snapshot has all records before `end_offset`; the last of them is of `epoch`."""

    end_offset: int = wire.int64()
    epoch: int = wire.int32()


class FetchSnapshotPartition(Struct):
    partition: int = wire.int32()
    current_leader_epoch: int = wire.int32()
    snapshot_id: SnapshotId = wire.struct(SnapshotId)
    position: int = wire.int64()
    replica_directory_id: uuid.UUID = wire.uuid_("1+", tag=0, default=wire.ZERO_UUID)


class FetchSnapshotTopic(Struct):
    name: str = wire.string()
    partitions: Sequence[FetchSnapshotPartition] = wire.array(FetchSnapshotPartition)


class FetchSnapshotRequest(Request, api=ApiKey.FETCH_SNAPSHOT):
    """`max_bytes` counts those of all snapshots together."""

    cluster_id: str | None = wire.string(nullable="0+", tag=0, default=None)
    replica_id: int = wire.int32(default=-1)
    max_bytes: int = wire.int32(default=0x7FFFFFFF)
    topics: Sequence[FetchSnapshotTopic] = wire.array(FetchSnapshotTopic)


class SnapshotLeader(Struct):
    """The leader of the log, -1 if it is not known."""

    leader_id: int = wire.int32()
    leader_epoch: int = wire.int32()


class FetchSnapshotPartitionResult(Struct):
    """Bytes of a snapshot from `position` on; its batches may begin and end anywhere in them."""

    index: int = wire.int32()
    error_code: int = wire.int16(default=0)
    snapshot_id: SnapshotId = wire.struct(SnapshotId)
    current_leader: SnapshotLeader | None = wire.optional_struct(
        SnapshotLeader, tag=0, default=None
    )
    size: int = wire.int64(default=0)
    position: int = wire.int64(default=0)
    unaligned_records: bytes = wire.byte_string(default=b"")


class FetchSnapshotTopicResult(Struct):
    name: str = wire.string()
    partitions: Sequence[FetchSnapshotPartitionResult] = wire.array(FetchSnapshotPartitionResult)


class SnapshotNodeEndpoint(Struct):
    """The address of a leader that `current_leader` names."""

    node_id: int = wire.int32()
    host: str = wire.string()
    port: int = wire.uint16()


class FetchSnapshotResponse(Response, api=ApiKey.FETCH_SNAPSHOT):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    topics: Sequence[FetchSnapshotTopicResult] = wire.array(FetchSnapshotTopicResult, default=())
    node_endpoints: Sequence[SnapshotNodeEndpoint] = wire.array(
        SnapshotNodeEndpoint, "1+", tag=0, default=()
    )
