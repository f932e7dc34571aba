"""OffsetFetch: the offsets that groups have committed.

v2  null requests all topics; top-level error    v7   require_stable, for open transactions
v3  throttle time                                v8   several groups; `groups` replaces `topics`
v5  leader epoch                                 v9   member id and epoch (KIP-848)
v6  flexible                                     v10  topics by id
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class OffsetFetchRequestTopic(Struct):
    name: str = wire.string("0-7", default="")
    partition_indexes: Sequence[int] = wire.array(wire.int32, "0-7", default=())


class OffsetFetchRequestTopics(Struct):
    """One topic of a group: by name, or (v10) by id."""

    name: str = wire.string("8-9", default="")
    topic_id: uuid.UUID = wire.uuid_("10+", default=wire.ZERO_UUID)
    partition_indexes: Sequence[int] = wire.array(wire.int32, "8+", default=())


class OffsetFetchRequestGroup(Struct):
    """One group; `topics` None requests all of its offsets."""

    group_id: str = wire.string("8+")
    member_id: str | None = wire.string("9+", nullable="9+", default=None)
    member_epoch: int = wire.int32("9+", default=-1)
    topics: Sequence[OffsetFetchRequestTopics] | None = wire.array(
        OffsetFetchRequestTopics, "8+", nullable="8+", default=()
    )


class OffsetFetchRequest(Request, api=ApiKey.OFFSET_FETCH):
    """The offsets to read: `group_id` and `topics` (None: all) up to v7, `groups` from v8 on."""

    group_id: str = wire.string("0-7", default="")
    topics: Sequence[OffsetFetchRequestTopic] | None = wire.array(
        OffsetFetchRequestTopic, "0-7", nullable="2-7", default=()
    )
    groups: Sequence[OffsetFetchRequestGroup] = wire.array(
        OffsetFetchRequestGroup, "8+", default=()
    )
    require_stable: bool = wire.boolean("7+", default=False)


class OffsetFetchResponsePartition(Struct):
    """One committed offset; -1 with empty metadata and no error if there is none."""

    partition_index: int = wire.int32()
    committed_offset: int = wire.int64(default=-1)
    committed_leader_epoch: int = wire.int32("5+", default=-1)
    metadata: str | None = wire.string(nullable="0+", default="")
    error_code: int = wire.int16(default=0)


class OffsetFetchResponseTopic(Struct):
    name: str = wire.string("0-9", default="")
    topic_id: uuid.UUID = wire.uuid_("10+", default=wire.ZERO_UUID)
    partitions: Sequence[OffsetFetchResponsePartition] = wire.array(OffsetFetchResponsePartition)


class OffsetFetchResponseGroup(Struct):
    group_id: str = wire.string("8+")
    topics: Sequence[OffsetFetchResponseTopic] = wire.array(
        OffsetFetchResponseTopic, "8+", default=()
    )
    error_code: int = wire.int16("8+", default=0)


class OffsetFetchResponse(Response, api=ApiKey.OFFSET_FETCH):
    """The committed offsets. In v1 each partition has the error that is top-level later."""

    throttle_time_ms: int = wire.int32("3+", default=0)
    topics: Sequence[OffsetFetchResponseTopic] = wire.array(
        OffsetFetchResponseTopic, "0-7", default=()
    )
    error_code: int = wire.int16("2-7", default=0)
    groups: Sequence[OffsetFetchResponseGroup] = wire.array(
        OffsetFetchResponseGroup, "8+", default=()
    )
