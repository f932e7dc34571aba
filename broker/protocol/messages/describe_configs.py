"""DescribeConfigs: configurations of topics and brokers, with the source of each value.

v1  synonyms and source instead of "is default"    v3  type and documentation    v4  flexible
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ConfigSource(IntEnum):
    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class DescribeConfigsResource(Struct):
    """One resource; `configuration_keys` None requests all of its configurations."""

    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    configuration_keys: Sequence[str] | None = wire.array(wire.string, nullable="0+", default=None)


class DescribeConfigsRequest(Request, api=ApiKey.DESCRIBE_CONFIGS):
    resources: Sequence[DescribeConfigsResource] = wire.array(DescribeConfigsResource)
    include_synonyms: bool = wire.boolean("1+", default=False)
    include_documentation: bool = wire.boolean("3+", default=False)


class DescribeConfigsSynonym(Struct):
    name: str = wire.string()
    value: str | None = wire.string(nullable="0+")
    source: int = wire.int8()


class DescribeConfigsEntry(Struct):
    """One configuration. The value of a sensitive one is None."""

    name: str = wire.string()
    value: str | None = wire.string(nullable="0+")
    read_only: bool = wire.boolean(default=False)
    is_default: bool = wire.boolean("0", default=False)
    config_source: int = wire.int8("1+", default=-1)
    is_sensitive: bool = wire.boolean(default=False)
    synonyms: Sequence[DescribeConfigsSynonym] = wire.array(
        DescribeConfigsSynonym, "1+", default=()
    )
    config_type: int = wire.int8("3+", default=0)
    documentation: str | None = wire.string("3+", nullable="0+", default=None)


class DescribeConfigsResult(Struct):
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    configs: Sequence[DescribeConfigsEntry] = wire.array(DescribeConfigsEntry, default=())


class DescribeConfigsResponse(Response, api=ApiKey.DESCRIBE_CONFIGS):
    throttle_time_ms: int = wire.int32(default=0)
    results: Sequence[DescribeConfigsResult] = wire.array(DescribeConfigsResult)
