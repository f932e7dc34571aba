"""Metadata: brokers, topics, partitions and their leaders.

v0   empty list = all topics          v8   authorized operations
v1   null = all, empty = none         v9   flexible
v2   cluster id                       v10  topic ids
v3   throttle time                    v11  cluster operations moved to DescribeCluster
v4   auto-creation can be declined    v12  topics by id alone
v5   offline replicas                 v13  top-level error (REBOOTSTRAP_REQUIRED)
v7   leader epoch
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct

# The bit field of an answer whose request did not ask for the authorized operations.
OPERATIONS_UNKNOWN: Final = -(2**31)


class MetadataRequestTopic(Struct):
    """One topic: by name, or (v12+) by id if the name is None."""

    topic_id: uuid.UUID = wire.uuid_("10+", default=wire.ZERO_UUID)
    name: str | None = wire.string(nullable="10+", default=None)


class MetadataRequest(Request, api=ApiKey.METADATA):
    """The topics to describe; None requests all of them, as does the empty list in v0."""

    topics: Sequence[MetadataRequestTopic] | None = wire.array(
        MetadataRequestTopic, nullable="1+", default=None
    )
    allow_auto_topic_creation: bool = wire.boolean("4+", default=True)
    include_cluster_authorized_operations: bool = wire.boolean("8-10", default=False)
    include_topic_authorized_operations: bool = wire.boolean("8+", default=False)


class MetadataResponseBroker(Struct):
    node_id: int = wire.int32()
    host: str = wire.string()
    port: int = wire.int32()
    rack: str | None = wire.string("1+", nullable="1+", default=None)


class MetadataResponsePartition(Struct):
    error_code: int = wire.int16(default=0)
    partition_index: int = wire.int32()
    leader_id: int = wire.int32()
    leader_epoch: int = wire.int32("7+", default=-1)
    replica_nodes: Sequence[int] = wire.array(wire.int32)
    isr_nodes: Sequence[int] = wire.array(wire.int32)
    offline_replicas: Sequence[int] = wire.array(wire.int32, "5+", default=())


class MetadataResponseTopic(Struct):
    """One topic; its `name` is None only if it was requested by an unknown id."""

    error_code: int = wire.int16(default=0)
    name: str | None = wire.string(nullable="12+")
    topic_id: uuid.UUID = wire.uuid_("10+", default=wire.ZERO_UUID)
    is_internal: bool = wire.boolean("1+", default=False)
    partitions: Sequence[MetadataResponsePartition] = wire.array(
        MetadataResponsePartition, default=()
    )
    topic_authorized_operations: int = wire.int32("8+", default=OPERATIONS_UNKNOWN)


class MetadataResponse(Response, api=ApiKey.METADATA):
    throttle_time_ms: int = wire.int32("3+", default=0)
    brokers: Sequence[MetadataResponseBroker] = wire.array(MetadataResponseBroker)
    cluster_id: str | None = wire.string("2+", nullable="2+", default=None)
    controller_id: int = wire.int32("1+", default=-1)
    topics: Sequence[MetadataResponseTopic] = wire.array(MetadataResponseTopic)
    cluster_authorized_operations: int = wire.int32("8-10", default=OPERATIONS_UNKNOWN)
    error_code: int = wire.int16("13+", default=0)
