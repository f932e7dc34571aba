"""ListGroups: the groups that this broker coordinates.

v1  throttle time    v3  flexible    v4  states in response and filter    v5  types in both
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ListGroupsRequest(Request, api=ApiKey.LIST_GROUPS):
    """The filters. An empty one matches all groups; names are compared without case."""

    states_filter: Sequence[str] = wire.array(wire.string, "4+", default=())
    types_filter: Sequence[str] = wire.array(wire.string, "5+", default=())


class ListedGroup(Struct):
    group_id: str = wire.string()
    protocol_type: str = wire.string()
    group_state: str = wire.string("4+", default="")
    group_type: str = wire.string("5+", default="")


class ListGroupsResponse(Response, api=ApiKey.LIST_GROUPS):
    throttle_time_ms: int = wire.int32("1+", default=0)
    error_code: int = wire.int16(default=0)
    groups: Sequence[ListedGroup] = wire.array(ListedGroup, default=())
