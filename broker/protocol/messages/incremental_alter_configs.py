"""IncrementalAlterConfigs: changes single properties and keeps the others. Flexible from v1.

Resource types are those of DescribeConfigs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ConfigOperation(IntEnum):
    """The kinds of change; APPEND and SUBTRACT are for list properties."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class IncrementalConfig(Struct):
    """One change of a property; `value` is None for DELETE."""

    name: str = wire.string()
    config_operation: int = wire.int8()
    value: str | None = wire.string(nullable="0+")


class IncrementalAlterConfigsResource(Struct):
    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    configs: Sequence[IncrementalConfig] = wire.array(IncrementalConfig)


class IncrementalAlterConfigsRequest(Request, api=ApiKey.INCREMENTAL_ALTER_CONFIGS):
    resources: Sequence[IncrementalAlterConfigsResource] = wire.array(
        IncrementalAlterConfigsResource
    )
    validate_only: bool = wire.boolean(default=False)


class IncrementalAlterConfigsResult(Struct):
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    resource_type: int = wire.int8()
    resource_name: str = wire.string()


class IncrementalAlterConfigsResponse(Response, api=ApiKey.INCREMENTAL_ALTER_CONFIGS):
    throttle_time_ms: int = wire.int32(default=0)
    responses: Sequence[IncrementalAlterConfigsResult] = wire.array(IncrementalAlterConfigsResult)
