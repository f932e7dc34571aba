"""AlterPartition: a leader asks the controller for another set of replicas in sync (KIP-497).

v2  topic ids    v3  the epochs of the brokers in sync (KIP-903)
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ReplicaInSync(Struct):
    """A broker, and its epoch as the leader knows it; -1 is not checked."""

    broker_id: int = wire.int32()
    broker_epoch: int = wire.int64(default=-1)


class AlteredPartition(Struct):
    """The epochs are those that the leader knows; `leader_recovery_state` is 1 in recovery."""

    partition_index: int = wire.int32()
    leader_epoch: int = wire.int32()
    new_isr: Sequence[int] = wire.array(wire.int32, "0-2", default=())
    new_isr_with_epochs: Sequence[ReplicaInSync] = wire.array(ReplicaInSync, "3+", default=())
    leader_recovery_state: int = wire.int8(default=0)
    partition_epoch: int = wire.int32()


class AlteredTopic(Struct):
    topic_id: uuid.UUID = wire.uuid_()
    partitions: Sequence[AlteredPartition] = wire.array(AlteredPartition)


class AlterPartitionRequest(Request, api=ApiKey.ALTER_PARTITION):
    broker_id: int = wire.int32()
    broker_epoch: int = wire.int64(default=-1)
    topics: Sequence[AlteredTopic] = wire.array(AlteredTopic)


class AlteredPartitionResult(Struct):
    """The state of the partition after the change, which the log will have."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)
    leader_id: int = wire.int32(default=0)
    leader_epoch: int = wire.int32(default=0)
    isr: Sequence[int] = wire.array(wire.int32, default=())
    leader_recovery_state: int = wire.int8(default=0)
    partition_epoch: int = wire.int32(default=0)


class AlteredTopicResult(Struct):
    topic_id: uuid.UUID = wire.uuid_()
    partitions: Sequence[AlteredPartitionResult] = wire.array(AlteredPartitionResult)


class AlterPartitionResponse(Response, api=ApiKey.ALTER_PARTITION):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    topics: Sequence[AlteredTopicResult] = wire.array(AlteredTopicResult, default=())
