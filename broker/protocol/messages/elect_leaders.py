"""ElectLeaders: preferred or unclean election of partition leaders.

v1  election type, top-level error    v2  flexible
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ElectionType(IntEnum):
    """The kinds of election; v0 has the preferred one only."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectLeadersTopic(Struct):
    topic: str = wire.string()
    partitions: Sequence[int] = wire.array(wire.int32)


class ElectLeadersRequest(Request, api=ApiKey.ELECT_LEADERS):
    """The partitions to elect leaders for; `topic_partitions` None requests all of them."""

    election_type: int = wire.int8("1+", default=0)
    topic_partitions: Sequence[ElectLeadersTopic] | None = wire.array(
        ElectLeadersTopic, nullable="0+"
    )
    timeout_ms: int = wire.int32(default=60_000)


class PartitionResult(Struct):
    partition_id: int = wire.int32()
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)


class ReplicaElectionResult(Struct):
    topic: str = wire.string()
    partition_result: Sequence[PartitionResult] = wire.array(PartitionResult)


class ElectLeadersResponse(Response, api=ApiKey.ELECT_LEADERS):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16("1+", default=0)
    replica_election_results: Sequence[ReplicaElectionResult] = wire.array(
        ReplicaElectionResult, default=()
    )
