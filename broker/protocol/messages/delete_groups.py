"""DeleteGroups: deletes groups without members, and their offsets.

v2  flexible    v3  an error message for each group (KIP-1331)
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class DeleteGroupsRequest(Request, api=ApiKey.DELETE_GROUPS):
    groups_names: Sequence[str] = wire.array(wire.string)


class DeletableGroupResult(Struct):
    group_id: str = wire.string()
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string("3+", nullable="3+", default=None)


class DeleteGroupsResponse(Response, api=ApiKey.DELETE_GROUPS):
    throttle_time_ms: int = wire.int32(default=0)
    results: Sequence[DeletableGroupResult] = wire.array(DeletableGroupResult)
