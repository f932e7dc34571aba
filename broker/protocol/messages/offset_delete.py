"""OffsetDelete: deletes offsets of topics that the group does not subscribe to. Never flexible."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = wire.int32()


class OffsetDeleteRequestTopic(Struct):
    name: str = wire.string()
    partitions: Sequence[OffsetDeleteRequestPartition] = wire.array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(Request, api=ApiKey.OFFSET_DELETE):
    group_id: str = wire.string()
    topics: Sequence[OffsetDeleteRequestTopic] = wire.array(OffsetDeleteRequestTopic)


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)


class OffsetDeleteResponseTopic(Struct):
    name: str = wire.string()
    partitions: Sequence[OffsetDeleteResponsePartition] = wire.array(OffsetDeleteResponsePartition)


class OffsetDeleteResponse(Response, api=ApiKey.OFFSET_DELETE):
    """One result per partition; `topics` is empty if the error concerns the whole group."""

    error_code: int = wire.int16(default=0)
    throttle_time_ms: int = wire.int32(default=0)
    topics: Sequence[OffsetDeleteResponseTopic] = wire.array(OffsetDeleteResponseTopic, default=())
