"""DescribeQuorum: the nodes that keep the metadata log, and how far each of them is.

v1  times of the last fetch (KIP-836)    v2  error messages, directory ids, the nodes' addresses
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct

UNKNOWN_MS = -1


class DescribeQuorumRequestPartition(Struct):
    partition_index: int = wire.int32()


class DescribeQuorumRequestTopic(Struct):
    topic_name: str = wire.string()
    partitions: Sequence[DescribeQuorumRequestPartition] = wire.array(
        DescribeQuorumRequestPartition
    )


class DescribeQuorumRequest(Request, api=ApiKey.DESCRIBE_QUORUM):
    topics: Sequence[DescribeQuorumRequestTopic] = wire.array(DescribeQuorumRequestTopic)


class ReplicaState(Struct):
    replica_id: int = wire.int32()
    replica_directory_id: uuid.UUID = wire.uuid_("2+", default=wire.ZERO_UUID)
    log_end_offset: int = wire.int64()
    last_fetch_timestamp: int = wire.int64("1+", default=UNKNOWN_MS)
    last_caught_up_timestamp: int = wire.int64("1+", default=UNKNOWN_MS)


class DescribeQuorumPartition(Struct):
    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string("2+", nullable="2+", default=None)
    leader_id: int = wire.int32(default=-1)
    leader_epoch: int = wire.int32(default=-1)
    high_watermark: int = wire.int64(default=-1)
    current_voters: Sequence[ReplicaState] = wire.array(ReplicaState, default=())
    observers: Sequence[ReplicaState] = wire.array(ReplicaState, default=())


class DescribeQuorumTopic(Struct):
    topic_name: str = wire.string()
    partitions: Sequence[DescribeQuorumPartition] = wire.array(DescribeQuorumPartition)


class QuorumListener(Struct):
    name: str = wire.string()
    host: str = wire.string()
    port: int = wire.uint16()


class QuorumNode(Struct):
    node_id: int = wire.int32()
    listeners: Sequence[QuorumListener] = wire.array(QuorumListener)


class DescribeQuorumResponse(Response, api=ApiKey.DESCRIBE_QUORUM):
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string("2+", nullable="2+", default=None)
    topics: Sequence[DescribeQuorumTopic] = wire.array(DescribeQuorumTopic, default=())
    nodes: Sequence[QuorumNode] = wire.array(QuorumNode, "2+", default=())
