"""CreateTopics: creates topics.

v4  -1 for partitions and replication factor means the broker's default (KIP-464)
v5  flexible; the answer has partitions, replication and configs    v7  topic ids
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class CreatableReplicaAssignment(Struct):
    partition_index: int = wire.int32()
    broker_ids: Sequence[int] = wire.array(wire.int32)


class CreatableTopicConfig(Struct):
    name: str = wire.string()
    value: str | None = wire.string(nullable="0+")


class CreatableTopic(Struct):
    """One topic to create; its counts are -1 with assignments, or for the broker's defaults."""

    name: str = wire.string()
    num_partitions: int = wire.int32()
    replication_factor: int = wire.int16()
    assignments: Sequence[CreatableReplicaAssignment] = wire.array(
        CreatableReplicaAssignment, default=()
    )
    configs: Sequence[CreatableTopicConfig] = wire.array(CreatableTopicConfig, default=())


class CreateTopicsRequest(Request, api=ApiKey.CREATE_TOPICS):
    topics: Sequence[CreatableTopic] = wire.array(CreatableTopic)
    timeout_ms: int = wire.int32(default=60_000)
    validate_only: bool = wire.boolean("1+", default=False)


class CreatedTopicConfig(Struct):
    name: str = wire.string()
    value: str | None = wire.string(nullable="0+")
    read_only: bool = wire.boolean(default=False)
    config_source: int = wire.int8(default=-1)
    is_sensitive: bool = wire.boolean(default=False)


class CreatableTopicResult(Struct):
    """One created topic; `configs` is None with a `topic_config_error_code`."""

    name: str = wire.string()
    topic_id: uuid.UUID = wire.uuid_("7+", default=wire.ZERO_UUID)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string("1+", nullable="0+", default=None)
    topic_config_error_code: int = wire.int16("5+", tag=0, default=0)
    num_partitions: int = wire.int32("5+", default=-1)
    replication_factor: int = wire.int16("5+", default=-1)
    configs: Sequence[CreatedTopicConfig] | None = wire.array(
        CreatedTopicConfig, "5+", nullable="5+", default=()
    )


class CreateTopicsResponse(Response, api=ApiKey.CREATE_TOPICS):
    throttle_time_ms: int = wire.int32("2+", default=0)
    topics: Sequence[CreatableTopicResult] = wire.array(CreatableTopicResult)
