"""Requests for delegation tokens get the errors of a Kafka that has none."""

from __future__ import annotations

import pytest

from strandline.broker.handlers.admin.delegation_tokens import (
    create_delegation_token,
    describe_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
)
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from strandline.broker.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
)
from strandline.broker.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from strandline.broker.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.identity import ANONYMOUS, ClientIdentity


@pytest.mark.parametrize(
    ("user", "code"),
    [
        (ANONYMOUS, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
        ("alice", ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED),
    ],
)
def test_each_request_is_refused_by_name(user: str, code: ErrorCode) -> None:
    context = RequestContext(api_version=2, client_id="c", caller=ClientIdentity(user=user))
    created = create_delegation_token(
        CreateDelegationTokenRequest(renewers=(), max_lifetime_ms=-1), context
    )
    renewed = renew_delegation_token(
        RenewDelegationTokenRequest(hmac=b"h", renew_period_ms=1), context
    )
    expired = expire_delegation_token(
        ExpireDelegationTokenRequest(hmac=b"h", expiry_time_period_ms=1), context
    )
    described = describe_delegation_token(DescribeDelegationTokenRequest(owners=None), context)
    assert {one.error_code for one in (created, renewed, expired, described)} == {code}
    assert (created.principal_type, created.principal_name) == ("User", user)
    assert described.tokens == ()
