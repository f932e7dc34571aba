"""DescribeAcls, CreateAcls and DeleteAcls: there is nobody who would hold anybody to them.

    0-3   1 pattern types; 2 flexible; 3 users as resources

All three answer SECURITY_DISABLED, as Kafka does without an authorizer (AclApis). Tools that copy
ACLs along with something else, such as MirrorMaker, know that answer and go on without.
"""

from __future__ import annotations

from strandline.broker.handlers.services.limits import refuse_flood
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from strandline.broker.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from strandline.broker.protocol.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode

NO_AUTHORIZER = "No Authorizer is configured on the broker"


def describe_acls(_request: DescribeAclsRequest, _context: RequestContext) -> DescribeAclsResponse:
    """Says that there are none to be described."""
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


def create_acls(request: CreateAclsRequest, _context: RequestContext) -> CreateAclsResponse:
    """One refusal for each."""
    refuse_flood(len(request.creations))
    refusal = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return CreateAclsResponse(results=[refusal] * len(request.creations))


def delete_acls(request: DeleteAclsRequest, _context: RequestContext) -> DeleteAclsResponse:
    """One refusal for each."""
    refuse_flood(len(request.filters))
    refusal = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
    )
    return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))
