"""OffsetForLeaderEpoch: the end offset of a leader epoch, for clients that detect truncation.

v2  current leader epoch, throttle time    v3  replica id    v4  flexible
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class OffsetForLeaderPartition(Struct):
    partition: int = wire.int32()
    current_leader_epoch: int = wire.int32("2+", default=-1)
    leader_epoch: int = wire.int32()


class OffsetForLeaderTopic(Struct):
    topic: str = wire.string()
    partitions: Sequence[OffsetForLeaderPartition] = wire.array(OffsetForLeaderPartition)


class OffsetForLeaderEpochRequest(Request, api=ApiKey.OFFSET_FOR_LEADER_EPOCH):
    """The epochs to look up; `replica_id` is -1 for consumers, -2 in versions without it."""

    replica_id: int = wire.int32("3+", default=-2)
    topics: Sequence[OffsetForLeaderTopic] = wire.array(OffsetForLeaderTopic)


class EpochEndOffset(Struct):
    """The largest known epoch up to the requested one, and its exclusive end; -1 if unknown."""

    error_code: int = wire.int16(default=0)
    partition: int = wire.int32()
    leader_epoch: int = wire.int32("1+", default=-1)
    end_offset: int = wire.int64(default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = wire.string()
    partitions: Sequence[EpochEndOffset] = wire.array(EpochEndOffset)


class OffsetForLeaderEpochResponse(Response, api=ApiKey.OFFSET_FOR_LEADER_EPOCH):
    throttle_time_ms: int = wire.int32("2+", default=0)
    topics: Sequence[OffsetForLeaderTopicResult] = wire.array(OffsetForLeaderTopicResult)
