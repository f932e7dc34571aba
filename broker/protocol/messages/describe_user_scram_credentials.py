"""DescribeUserScramCredentials: the users that can log in by SCRAM. Flexible from v0."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class UserName(Struct):
    name: str = wire.string()


class DescribeUserScramCredentialsRequest(Request, api=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS):
    """The users to describe; None or an empty list requests all of them."""

    users: Sequence[UserName] | None = wire.array(UserName, nullable="0+")


class CredentialInfo(Struct):
    mechanism: int = wire.int8()
    iterations: int = wire.int32()


class UserScramCredentials(Struct):
    user: str = wire.string()
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    credential_infos: Sequence[CredentialInfo] = wire.array(CredentialInfo, default=())


class DescribeUserScramCredentialsResponse(Response, api=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    results: Sequence[UserScramCredentials] = wire.array(UserScramCredentials, default=())
