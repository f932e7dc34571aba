"""Fetch: record batches from partitions, with incremental sessions.

v0 to v3   old message formats; v1 throttle time, v3 limit of the whole answer
v4   isolation, last stable offset   v12  flexible, last fetched epoch, diverging epoch
v5   log start offset                v13  topic ids instead of names
v7   sessions, top-level error       v15  replica id moves into a tag
v9   current leader epoch            v16  node endpoints (KIP-951)
v10  zstd allowed                    v17  replica directory id
v11  rack id, preferred replica      v18  follower's high watermark
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct

# The high watermark that a consumer, which is no follower, sends.
HIGH_WATERMARK_UNKNOWN: Final = 0x7FFFFFFFFFFFFFFF


class FetchReplicaState(Struct):
    """The follower that fetches (v15+)."""

    replica_id: int = wire.int32(default=-1)
    replica_epoch: int = wire.int64(default=-1)


class FetchPartition(Struct):
    partition: int = wire.int32()
    current_leader_epoch: int = wire.int32("9+", default=-1)
    fetch_offset: int = wire.int64()
    last_fetched_epoch: int = wire.int32("12+", default=-1)
    log_start_offset: int = wire.int64("5+", default=-1)
    partition_max_bytes: int = wire.int32()
    replica_directory_id: uuid.UUID = wire.uuid_("17+", tag=0, default=wire.ZERO_UUID)
    high_watermark: int = wire.int64("18+", tag=1, default=HIGH_WATERMARK_UNKNOWN)


class FetchTopic(Struct):
    """One topic of the request; `topic_id` is None in versions that name the topic."""

    name: str = wire.string("0-12", default="")
    topic_id: uuid.UUID | None = wire.optional_uuid("13+", default=None)
    partitions: Sequence[FetchPartition] = wire.array(FetchPartition)


class ForgottenTopic(Struct):
    """Partitions that leave the fetch session."""

    name: str = wire.string("7-12", default="")
    topic_id: uuid.UUID | None = wire.optional_uuid("13+", default=None)
    partitions: Sequence[int] = wire.array(wire.int32, "7+")


class FetchRequest(Request, api=ApiKey.FETCH):
    """One fetch; a follower's id is in `replica_state` from v15 on. Consumers send none."""

    cluster_id: str | None = wire.string("12+", nullable="12+", tag=0, default=None)
    replica_id: int = wire.int32("0-14", default=-1)
    replica_state: FetchReplicaState | None = wire.optional_struct(
        FetchReplicaState, "15+", tag=1, default=None
    )
    max_wait_ms: int = wire.int32()
    min_bytes: int = wire.int32()
    max_bytes: int = wire.int32("3+", default=0x7FFFFFFF)
    isolation_level: int = wire.int8("4+", default=0)
    session_id: int = wire.int32("7+", default=0)
    session_epoch: int = wire.int32("7+", default=-1)
    topics: Sequence[FetchTopic] = wire.array(FetchTopic)
    forgotten_topics: Sequence[ForgottenTopic] = wire.array(ForgottenTopic, "7+", default=())
    rack_id: str = wire.string("11+", default="")


class FetchDivergingEpoch(Struct):
    """The offset and epoch at which the log of the follower or consumer diverged from ours."""

    epoch: int = wire.int32(default=-1)
    end_offset: int = wire.int64(default=-1)


class FetchCurrentLeader(Struct):
    """The partition's current leader, with NOT_LEADER_OR_FOLLOWER."""

    leader_id: int = wire.int32(default=-1)
    leader_epoch: int = wire.int32(default=-1)


class FetchSnapshotId(Struct):
    """A snapshot of Kafka's metadata quorum, of which this broker has none."""

    end_offset: int = wire.int64(default=-1)
    epoch: int = wire.int32(default=-1)


class FetchAbortedTransaction(Struct):
    producer_id: int = wire.int64()
    first_offset: int = wire.int64()


class FetchResponsePartition(Struct):
    """One partition of the answer.

    `records` are parts that follow each other on the wire: buffers, or objects with `length`.

    `records_bytes` is their total; it is written in front of them and must be right.
    `aborted_transactions` is None for readers of uncommitted data.
    """

    index: int = wire.int32()
    error_code: int = wire.int16(default=0)
    high_watermark: int = wire.int64()
    last_stable_offset: int = wire.int64("4+", default=-1)
    log_start_offset: int = wire.int64("5+", default=-1)
    diverging_epoch: FetchDivergingEpoch | None = wire.optional_struct(
        FetchDivergingEpoch, "12+", tag=0, default=None
    )
    current_leader: FetchCurrentLeader | None = wire.optional_struct(
        FetchCurrentLeader, "12+", tag=1, default=None
    )
    snapshot_id: FetchSnapshotId | None = wire.optional_struct(
        FetchSnapshotId, "12+", tag=2, default=None
    )
    aborted_transactions: Sequence[FetchAbortedTransaction] | None = wire.array(
        FetchAbortedTransaction, "4+", nullable="4+", default=None
    )
    preferred_read_replica: int = wire.int32("11+", default=-1)
    records: Sequence[wire.Part] = wire.record_parts(default=())
    records_bytes: int = wire.unserialized(default=0)


class FetchResponseTopic(Struct):
    name: str = wire.string("0-12", default="")
    topic_id: uuid.UUID | None = wire.optional_uuid("13+", default=None)
    partitions: Sequence[FetchResponsePartition] = wire.array(FetchResponsePartition)


class FetchNodeEndpoint(Struct):
    """The address of a leader that `current_leader` names."""

    node_id: int = wire.int32()
    host: str = wire.string()
    port: int = wire.int32()
    rack: str | None = wire.string(nullable="0+", default=None)


class FetchResponse(Response, api=ApiKey.FETCH):
    throttle_time_ms: int = wire.int32("1+", default=0)
    error_code: int = wire.int16("7+", default=0)
    session_id: int = wire.int32("7+", default=0)
    topics: Sequence[FetchResponseTopic] = wire.array(FetchResponseTopic)
    node_endpoints: Sequence[FetchNodeEndpoint] = wire.array(
        FetchNodeEndpoint, "16+", tag=0, default=()
    )
