"""AlterConfigs: replaces all dynamic configurations of topics or brokers. Flexible from v2.

A property that the request does not name goes back to its default, unlike in
IncrementalAlterConfigs.
Resource types are those of DescribeConfigs.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class AlterableConfig(Struct):
    name: str = wire.string()
    value: str | None = wire.string(nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    configs: Sequence[AlterableConfig] = wire.array(AlterableConfig)


class AlterConfigsRequest(Request, api=ApiKey.ALTER_CONFIGS):
    resources: Sequence[AlterConfigsResource] = wire.array(AlterConfigsResource)
    validate_only: bool = wire.boolean(default=False)


class AlterConfigsResourceResponse(Struct):
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    resource_type: int = wire.int8()
    resource_name: str = wire.string()


class AlterConfigsResponse(Response, api=ApiKey.ALTER_CONFIGS):
    throttle_time_ms: int = wire.int32(default=0)
    responses: Sequence[AlterConfigsResourceResponse] = wire.array(AlterConfigsResourceResponse)
