"""CreateAcls: allows or denies operations. Flexible from v2."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.messages.describe_acls import LITERAL
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class AclCreation(Struct):
    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    resource_pattern_type: int = wire.int8("1+", default=LITERAL)
    principal: str = wire.string()
    host: str = wire.string()
    operation: int = wire.int8()
    permission_type: int = wire.int8()


class CreateAclsRequest(Request, api=ApiKey.CREATE_ACLS):
    creations: Sequence[AclCreation] = wire.array(AclCreation)


class AclCreationResult(Struct):
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)


class CreateAclsResponse(Response, api=ApiKey.CREATE_ACLS):
    throttle_time_ms: int = wire.int32(default=0)
    results: Sequence[AclCreationResult] = wire.array(AclCreationResult)
