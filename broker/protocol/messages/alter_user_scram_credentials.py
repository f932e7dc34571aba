"""AlterUserScramCredentials: sets and removes salted passwords of users. Flexible from v0."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ScramCredentialDeletion(Struct):
    name: str = wire.string()
    mechanism: int = wire.int8()


class ScramCredentialUpsertion(Struct):
    name: str = wire.string()
    mechanism: int = wire.int8()
    iterations: int = wire.int32()
    salt: bytes = wire.byte_string()
    salted_password: bytes = wire.byte_string()


class AlterUserScramCredentialsRequest(Request, api=ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
    deletions: Sequence[ScramCredentialDeletion] = wire.array(ScramCredentialDeletion, default=())
    upsertions: Sequence[ScramCredentialUpsertion] = wire.array(
        ScramCredentialUpsertion, default=()
    )


class AlteredScramUser(Struct):
    user: str = wire.string()
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)


class AlterUserScramCredentialsResponse(Response, api=ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
    throttle_time_ms: int = wire.int32(default=0)
    results: Sequence[AlteredScramUser] = wire.array(AlteredScramUser, default=())
