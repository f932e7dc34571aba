"""AssignReplicasToDirs: a broker says in which log folders its replicas are (KIP-858)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class AssignedPartition(Struct):
    partition_index: int = wire.int32()


class AssignedTopic(Struct):
    topic_id: uuid.UUID = wire.uuid_()
    partitions: Sequence[AssignedPartition] = wire.array(AssignedPartition)


class AssignedDirectory(Struct):
    id: uuid.UUID = wire.uuid_()
    topics: Sequence[AssignedTopic] = wire.array(AssignedTopic)


class AssignReplicasToDirsRequest(Request, api=ApiKey.ASSIGN_REPLICAS_TO_DIRS):
    broker_id: int = wire.int32()
    broker_epoch: int = wire.int64(default=-1)
    directories: Sequence[AssignedDirectory] = wire.array(AssignedDirectory)


class AssignedPartitionResult(Struct):
    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)


class AssignedTopicResult(Struct):
    topic_id: uuid.UUID = wire.uuid_()
    partitions: Sequence[AssignedPartitionResult] = wire.array(AssignedPartitionResult)


class AssignedDirectoryResult(Struct):
    id: uuid.UUID = wire.uuid_()
    topics: Sequence[AssignedTopicResult] = wire.array(AssignedTopicResult)


class AssignReplicasToDirsResponse(Response, api=ApiKey.ASSIGN_REPLICAS_TO_DIRS):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    directories: Sequence[AssignedDirectoryResult] = wire.array(AssignedDirectoryResult, default=())
