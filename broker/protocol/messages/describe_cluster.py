"""DescribeCluster: brokers, controller, cluster id. Flexible from v0.

v1  endpoint type (1 brokers, 2 controllers)    v2  fenced brokers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strandline.broker.protocol.messages.metadata import OPERATIONS_UNKNOWN
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct

ENDPOINT_BROKERS: Final = 1
ENDPOINT_CONTROLLERS: Final = 2


class DescribeClusterRequest(Request, api=ApiKey.DESCRIBE_CLUSTER):
    include_cluster_authorized_operations: bool = wire.boolean(default=False)
    endpoint_type: int = wire.int8("1+", default=ENDPOINT_BROKERS)
    include_fenced_brokers: bool = wire.boolean("2+", default=False)


class DescribeClusterBroker(Struct):
    broker_id: int = wire.int32()
    host: str = wire.string()
    port: int = wire.int32()
    rack: str | None = wire.string(nullable="0+", default=None)
    is_fenced: bool = wire.boolean("2+", default=False)


class DescribeClusterResponse(Response, api=ApiKey.DESCRIBE_CLUSTER):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    endpoint_type: int = wire.int8("1+", default=ENDPOINT_BROKERS)
    cluster_id: str = wire.string()
    controller_id: int = wire.int32(default=-1)
    brokers: Sequence[DescribeClusterBroker] = wire.array(DescribeClusterBroker)
    cluster_authorized_operations: int = wire.int32(default=OPERATIONS_UNKNOWN)
