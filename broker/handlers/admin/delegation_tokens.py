"""Delegation tokens (KIP-48): there are none; requests get the errors of a Kafka without them.

CreateDelegationToken, DescribeDelegationToken   0-3   2 flexible; 3 owners (KIP-373)
RenewDelegationToken, ExpireDelegationToken      0-2   2 flexible

A client that did not log in is not allowed to ask (KafkaApis.allowTokenRequests). To others Kafka
says that it has no `delegation.token.secret.key`.
"""

from __future__ import annotations

from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from strandline.broker.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from strandline.broker.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from strandline.broker.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.identity import ANONYMOUS


def create_delegation_token(
    _request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    """Refuses."""
    caller = context.caller
    return CreateDelegationTokenResponse(
        error_code=_refusal(context),
        principal_type=caller.principal_type,
        principal_name=caller.user,
        token_requester_principal_type=caller.principal_type,
        token_requester_principal_name=caller.user,
    )


def renew_delegation_token(
    _request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    """Refuses."""
    return RenewDelegationTokenResponse(error_code=_refusal(context))


def expire_delegation_token(
    _request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    """Refuses."""
    return ExpireDelegationTokenResponse(error_code=_refusal(context))


def describe_delegation_token(
    _request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    """Refuses."""
    return DescribeDelegationTokenResponse(error_code=_refusal(context))


def _refusal(context: RequestContext) -> ErrorCode:
    if context.caller.user == ANONYMOUS:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
