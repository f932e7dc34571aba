"""OffsetCommit: a member, or a consumer without membership, commits its offsets.

v0  no membership; v1  commit timestamps (both gone in Kafka 4)

v3  throttle time        v7  static members (group.instance.id)    v9   member epochs (KIP-848)
v5  no retention time    v8  flexible                              v10  topics by id
v6  leader epoch
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class OffsetCommitRequestPartition(Struct):
    """One offset. `committed_metadata` None is stored as empty; `commit_timestamp` is in ms."""

    partition_index: int = wire.int32()
    committed_offset: int = wire.int64()
    committed_leader_epoch: int = wire.int32("6+", default=-1)
    commit_timestamp: int = wire.int64("1", default=-1)
    committed_metadata: str | None = wire.string(nullable="0+", default=None)


class OffsetCommitRequestTopic(Struct):
    """One topic: by name, or (v10) by id."""

    name: str = wire.string("0-9", default="")
    topic_id: uuid.UUID = wire.uuid_("10+", default=wire.ZERO_UUID)
    partitions: Sequence[OffsetCommitRequestPartition] = wire.array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Request, api=ApiKey.OFFSET_COMMIT):
    """The offsets of one group.

    Generation -1 with an empty member id is a consumer that assigns its partitions itself.
    """

    group_id: str = wire.string()
    generation_id_or_member_epoch: int = wire.int32("1+", default=-1)
    member_id: str = wire.string("1+", default="")
    group_instance_id: str | None = wire.string("7+", nullable="7+", default=None)
    retention_time_ms: int = wire.int64("2-4", default=-1)
    topics: Sequence[OffsetCommitRequestTopic] = wire.array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Struct):
    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)


class OffsetCommitResponseTopic(Struct):
    name: str = wire.string("0-9", default="")
    topic_id: uuid.UUID = wire.uuid_("10+", default=wire.ZERO_UUID)
    partitions: Sequence[OffsetCommitResponsePartition] = wire.array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Response, api=ApiKey.OFFSET_COMMIT):
    throttle_time_ms: int = wire.int32("3+", default=0)
    topics: Sequence[OffsetCommitResponseTopic] = wire.array(OffsetCommitResponseTopic)
