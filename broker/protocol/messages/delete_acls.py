"""DeleteAcls: deletes the ACLs that match filters. Flexible from v2."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.messages.describe_acls import LITERAL
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class DeleteAclsFilter(Struct):
    resource_type_filter: int = wire.int8()
    resource_name_filter: str | None = wire.string(nullable="0+", default=None)
    pattern_type_filter: int = wire.int8("1+", default=LITERAL)
    principal_filter: str | None = wire.string(nullable="0+", default=None)
    host_filter: str | None = wire.string(nullable="0+", default=None)
    operation: int = wire.int8()
    permission_type: int = wire.int8()


class DeleteAclsRequest(Request, api=ApiKey.DELETE_ACLS):
    filters: Sequence[DeleteAclsFilter] = wire.array(DeleteAclsFilter)


class DeleteAclsMatchingAcl(Struct):
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    pattern_type: int = wire.int8("1+", default=LITERAL)
    principal: str = wire.string()
    host: str = wire.string()
    operation: int = wire.int8()
    permission_type: int = wire.int8()


class DeleteAclsFilterResult(Struct):
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    matching_acls: Sequence[DeleteAclsMatchingAcl] = wire.array(DeleteAclsMatchingAcl, default=())


class DeleteAclsResponse(Response, api=ApiKey.DELETE_ACLS):
    throttle_time_ms: int = wire.int32(default=0)
    filter_results: Sequence[DeleteAclsFilterResult] = wire.array(DeleteAclsFilterResult)
