"""DeleteRecords: moves the log start of partitions forward. Flexible from v2."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class DeleteRecordsPartition(Struct):
    """One partition; `offset` becomes its log start, -1 is the high watermark."""

    partition_index: int = wire.int32()
    offset: int = wire.int64()


class DeleteRecordsTopic(Struct):
    name: str = wire.string()
    partitions: Sequence[DeleteRecordsPartition] = wire.array(DeleteRecordsPartition)


class DeleteRecordsRequest(Request, api=ApiKey.DELETE_RECORDS):
    topics: Sequence[DeleteRecordsTopic] = wire.array(DeleteRecordsTopic)
    timeout_ms: int = wire.int32()


class DeleteRecordsPartitionResult(Struct):
    """One result; `low_watermark` is the log start afterwards, -1 with an error."""

    partition_index: int = wire.int32()
    low_watermark: int = wire.int64(default=-1)
    error_code: int = wire.int16(default=0)


class DeleteRecordsTopicResult(Struct):
    name: str = wire.string()
    partitions: Sequence[DeleteRecordsPartitionResult] = wire.array(DeleteRecordsPartitionResult)


class DeleteRecordsResponse(Response, api=ApiKey.DELETE_RECORDS):
    throttle_time_ms: int = wire.int32(default=0)
    topics: Sequence[DeleteRecordsTopicResult] = wire.array(DeleteRecordsTopicResult)
