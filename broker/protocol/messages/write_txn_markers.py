"""WriteTxnMarkers: a coordinator ends transactions in the partitions that another broker leads.

v1  flexible    v2  the transaction's version (KIP-1228)
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class WritableTxnMarkerTopic(Struct):
    name: str = wire.string()
    partition_indexes: Sequence[int] = wire.array(wire.int32)


class WritableTxnMarker(Struct):
    """One transaction to end in its partitions; `transaction_result` True commits it."""

    producer_id: int = wire.int64()
    producer_epoch: int = wire.int16()
    transaction_result: bool = wire.boolean()
    topics: Sequence[WritableTxnMarkerTopic] = wire.array(WritableTxnMarkerTopic)
    coordinator_epoch: int = wire.int32()
    transaction_version: int = wire.int8("2+", default=0)


class WriteTxnMarkersRequest(Request, api=ApiKey.WRITE_TXN_MARKERS):
    markers: Sequence[WritableTxnMarker] = wire.array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)


class WritableTxnMarkerTopicResult(Struct):
    name: str = wire.string()
    partitions: Sequence[WritableTxnMarkerPartitionResult] = wire.array(
        WritableTxnMarkerPartitionResult
    )


class WritableTxnMarkerResult(Struct):
    producer_id: int = wire.int64()
    topics: Sequence[WritableTxnMarkerTopicResult] = wire.array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Response, api=ApiKey.WRITE_TXN_MARKERS):
    markers: Sequence[WritableTxnMarkerResult] = wire.array(WritableTxnMarkerResult)
