"""ACL APIs: no authorizer exists, so all answer SECURITY_DISABLED.

    0-3   1 pattern types; 2 flexible; 3 users as resources

DescribeAcls, CreateAcls and DeleteAcls answer as Kafka does without an authorizer (AclApis). Tools
that copy ACLs beside other things, such as MirrorMaker, know that answer and continue.
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
    """Answers that ACLs are disabled."""
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


def create_acls(request: CreateAclsRequest, _context: RequestContext) -> CreateAclsResponse:
    """Refuses each creation."""
    refuse_flood(len(request.creations))
    refusal = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return CreateAclsResponse(results=[refusal] * len(request.creations))


def delete_acls(request: DeleteAclsRequest, _context: RequestContext) -> DeleteAclsResponse:
    """Refuses each filter."""
    refuse_flood(len(request.filters))
    refusal = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
    )
    return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))
