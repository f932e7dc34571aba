"""DescribeAcls: the ACLs that match a filter. Flexible from v2."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct

# The only pattern type of v0.
LITERAL = 3


class DescribeAclsRequest(Request, api=ApiKey.DESCRIBE_ACLS):
    resource_type_filter: int = wire.int8()
    resource_name_filter: str | None = wire.string(nullable="0+", default=None)
    pattern_type_filter: int = wire.int8("1+", default=LITERAL)
    principal_filter: str | None = wire.string(nullable="0+", default=None)
    host_filter: str | None = wire.string(nullable="0+", default=None)
    operation: int = wire.int8()
    permission_type: int = wire.int8()


class AclDescription(Struct):
    principal: str = wire.string()
    host: str = wire.string()
    operation: int = wire.int8()
    permission_type: int = wire.int8()


class DescribeAclsResource(Struct):
    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    pattern_type: int = wire.int8("1+", default=LITERAL)
    acls: Sequence[AclDescription] = wire.array(AclDescription)


class DescribeAclsResponse(Response, api=ApiKey.DESCRIBE_ACLS):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    resources: Sequence[DescribeAclsResource] = wire.array(DescribeAclsResource, default=())
