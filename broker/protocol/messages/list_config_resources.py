"""ListConfigResources: names of resources with a configuration (KIP-1142; v0 is KIP-714's listing).

v0  client metrics resources alone    v1  types, in request and response
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ListConfigResourcesRequest(Request, api=ApiKey.LIST_CONFIG_RESOURCES):
    """The resource types to list; an empty list requests all of them."""

    resource_types: Sequence[int] = wire.array(wire.int8, "1+", default=())


class ListedConfigResource(Struct):
    resource_name: str = wire.string()
    resource_type: int = wire.int8("1+", default=ConfigResourceType.CLIENT_METRICS)


class ListConfigResourcesResponse(Response, api=ApiKey.LIST_CONFIG_RESOURCES):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    config_resources: Sequence[ListedConfigResource] = wire.array(ListedConfigResource, default=())
