"""CreatePartitions: adds partitions to topics. Flexible from v2."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class CreatePartitionsAssignment(Struct):
    broker_ids: Sequence[int] = wire.array(wire.int32)


class CreatePartitionsTopic(Struct):
    """One topic with its new total `count`; without `assignments` the broker places them."""

    name: str = wire.string()
    count: int = wire.int32()
    assignments: Sequence[CreatePartitionsAssignment] | None = wire.array(
        CreatePartitionsAssignment, nullable="0+", default=None
    )


class CreatePartitionsRequest(Request, api=ApiKey.CREATE_PARTITIONS):
    topics: Sequence[CreatePartitionsTopic] = wire.array(CreatePartitionsTopic)
    timeout_ms: int = wire.int32()
    validate_only: bool = wire.boolean(default=False)


class CreatePartitionsTopicResult(Struct):
    name: str = wire.string()
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)


class CreatePartitionsResponse(Response, api=ApiKey.CREATE_PARTITIONS):
    throttle_time_ms: int = wire.int32(default=0)
    results: Sequence[CreatePartitionsTopicResult] = wire.array(CreatePartitionsTopicResult)
