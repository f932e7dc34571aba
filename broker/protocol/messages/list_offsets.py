"""ListOffsets: the offset at a timestamp, or at one of the special positions.

v0  base offsets of segments before a time, newest first (gone in Kafka 4)
v1  one offset per partition   v6  flexible              v9   -5, latest tiered
v2  isolation level            v7  -3, max timestamp     v10  timeout
v4  leader epochs              v8  -4, earliest local    v11  -6, earliest pending upload
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ListOffsetsPartition(Struct):
    """One lookup; `timestamp` is in ms, -1 latest, -2 earliest, or -3 to -6 as above."""

    partition_index: int = wire.int32()
    current_leader_epoch: int = wire.int32("4+", default=-1)
    timestamp: int = wire.int64()
    max_num_offsets: int = wire.int32("0", default=1)


class ListOffsetsTopic(Struct):
    name: str = wire.string()
    partitions: Sequence[ListOffsetsPartition] = wire.array(ListOffsetsPartition)


class ListOffsetsRequest(Request, api=ApiKey.LIST_OFFSETS):
    replica_id: int = wire.int32(default=-1)
    isolation_level: int = wire.int8("2+", default=0)
    topics: Sequence[ListOffsetsTopic] = wire.array(ListOffsetsTopic)
    timeout_ms: int = wire.int32("10+", default=0)


class ListOffsetsResponsePartition(Struct):
    """One result; timestamp and offset are -1 if no record was found."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)
    old_style_offsets: Sequence[int] = wire.array(wire.int64, "0", default=())
    timestamp: int = wire.int64("1+", default=-1)
    offset: int = wire.int64("1+", default=-1)
    leader_epoch: int = wire.int32("4+", default=-1)


class ListOffsetsResponseTopic(Struct):
    name: str = wire.string()
    partitions: Sequence[ListOffsetsResponsePartition] = wire.array(ListOffsetsResponsePartition)


class ListOffsetsResponse(Response, api=ApiKey.LIST_OFFSETS):
    throttle_time_ms: int = wire.int32("2+", default=0)
    topics: Sequence[ListOffsetsResponseTopic] = wire.array(ListOffsetsResponseTopic)
