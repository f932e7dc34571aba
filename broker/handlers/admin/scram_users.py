"""Lists SCRAM users and changes their passwords (KIP-554).

DescribeUserScramCredentials  0
AlterUserScramCredentials     0   clients send salted passwords; the broker stores derived keys

A change is in the metadata log, and in force on this broker, when the answer is sent. The users of
a request are independent of each other; the changes of one user are atomic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from strandline.broker.cluster.metadata.controller_messages import (
    ControllerRequest,
    Decision,
    Refusal,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import SCRAM_MECHANISMS, scram_records
from strandline.broker.handlers.services.limits import clipped, refuse_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.formats.metadata_records import MetadataRecord
from strandline.broker.protocol.messages.alter_user_scram_credentials import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from strandline.broker.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserScramCredentials,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.scram import (
    DIGESTS,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
)
from strandline.storage.errors import StorageError

# Kafka's numbers of the mechanisms.
# More users than one broker serves: each is a line of a snapshot that every start reads.
USERS_MAX = 100_000
NAME_BYTES_MAX = 1024
SALT_BYTES_MAX = 1024

Change: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion


class ScramUserHandlers:
    """Handlers of the SCRAM APIs: decode, decide on the newest image, encode."""

    def __init__(self, services: NodeServices) -> None:
        self._metadata = services.metadata
        self._controller = services.controller

    def describe_user_scram_credentials(
        self, request: DescribeUserScramCredentialsRequest, _context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        known = self._metadata.image.scram_credentials
        names = [user.name for user in request.users or ()]
        refuse_flood(len(names))
        wanted = Counter(names) if names else Counter(known.keys())
        return DescribeUserScramCredentialsResponse(
            results=[_described(name, count, known.get(name)) for name, count in wanted.items()]
        )

    async def alter_user_scram_credentials(
        self, request: AlterUserScramCredentialsRequest, _context: RequestContext
    ) -> AlterUserScramCredentialsResponse:
        refuse_flood(len(request.deletions) + len(request.upsertions))
        results: Sequence[AlteredScramUser]
        try:
            results = await self._controller.ask(
                AlterScramUsers(request.deletions, request.upsertions)
            )
        except StorageError as error:
            names = dict.fromkeys(change.name for change in _changes(request))
            results = [
                AlteredScramUser(user=name, error_code=error.kafka_code, error_message=str(error))
                for name in names
            ]
        return AlterUserScramCredentialsResponse(results=results)


@dataclass(frozen=True, slots=True)
class AlterScramUsers(ControllerRequest[AlteredScramUser]):
    """Sets and removes the passwords of users."""

    deletions: Sequence[ScramCredentialDeletion]
    upsertions: Sequence[ScramCredentialUpsertion]


def _changes(request: AlterUserScramCredentialsRequest | AlterScramUsers) -> list[Change]:
    return [*request.deletions, *request.upsertions]


def alter(image: MetadataImage, request: AlterScramUsers) -> Decision[AlteredScramUser]:
    """Returns one result per user, in the order of first mention."""
    changes: dict[str, list[Change]] = {}
    for change in _changes(request):
        changes.setdefault(change.name, []).append(change)
    records: list[MetadataRecord] = []
    results = []
    user_count = len(image.scram_credentials)
    for user, mine in changes.items():
        present = image.scram_credentials.get(user, {})
        try:
            wanted = _changed(user, present, mine)
            user_count += bool(wanted) - bool(present)
            if user_count > USERS_MAX:
                raise Refusal(ErrorCode.POLICY_VIOLATION, f"more than {USERS_MAX} users")
        except Refusal as refusal:
            results.append(
                AlteredScramUser(
                    user=user,
                    error_code=refusal.error_code,
                    error_message=clipped(refusal.message),
                )
            )
            continue
        records += scram_records(user, present, wanted)
        results.append(AlteredScramUser(user=user))
    return Decision(records=tuple(records), results=tuple(results))


def _changed(
    user: str,
    present: Mapping[str, ScramCredential],
    changes: list[Change],
) -> dict[str, ScramCredential]:
    """Returns the user's new credentials. Raises Refusal."""
    if not user:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(user.encode()) > NAME_BYTES_MAX:
        raise Refusal(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"the name is longer than {NAME_BYTES_MAX} bytes"
        )
    if len({change.mechanism for change in changes}) < len(changes):
        raise Refusal(
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        )
    wanted = dict(present)
    for change in changes:
        mechanism = SCRAM_MECHANISMS.get(change.mechanism)
        if mechanism is None:
            raise Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if isinstance(change, ScramCredentialUpsertion):
            wanted[mechanism] = _credential(change, mechanism)
        elif wanted.pop(mechanism, None) is None:
            raise Refusal(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
    return wanted


def _credential(change: ScramCredentialUpsertion, mechanism: str) -> ScramCredential:
    if change.iterations < ITERATIONS_MIN:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not 0 < len(change.salt) <= SALT_BYTES_MAX or not change.salted_password:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salt or the password is empty")
    return ScramCredential.of_salted(
        bytes(change.salted_password),
        salt=bytes(change.salt),
        iterations=change.iterations,
        digest=DIGESTS[mechanism],
    )


def _described(
    user: str, count: int, credentials: Mapping[str, ScramCredential] | None
) -> UserScramCredentials:
    if count > 1:
        code, message = (
            ErrorCode.DUPLICATE_RESOURCE,
            f"Cannot describe SCRAM credentials for the same user twice: {user}",
        )
    elif credentials is None:
        code, message = (
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {user}",
        )
    else:
        return UserScramCredentials(
            user=user,
            credential_infos=[
                CredentialInfo(mechanism=number, iterations=credentials[name].iterations)
                for number, name in SCRAM_MECHANISMS.items()
                if name in credentials
            ],
        )
    return UserScramCredentials(user=user, error_code=code, error_message=clipped(message))
