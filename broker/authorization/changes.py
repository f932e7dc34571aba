"""Decides CreateAcls and DeleteAcls on a metadata image, and finds rules. Pure.

Codes follow Kafka's AclControlManager and AclApis. A rule that is there already is created again
without an error, and nothing is recorded.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from strandline.broker.cluster.metadata.controller_messages import (
    ControllerRequest,
    Decision,
    Outcome,
    Refusal,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import acl_record
from strandline.broker.protocol.formats.metadata_records import (
    MetadataRecord,
    RemoveAccessControlEntryRecord,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceKind,
)
from strandline.storage import entropy

# Each is a record of a snapshot that every start reads.
ACLS_MAX: Final = 500_000
# Kafka's bound for one request (MAX_RECORDS_PER_USER_OP).
DELETIONS_MAX: Final = 10_000

_KINDS = frozenset(ResourceKind)
_PATTERNS = frozenset(PatternType)
_OPERATIONS = frozenset(AclOperation)
_PERMISSIONS = frozenset(AclPermission)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclResult(Outcome):
    """The outcome for one rule to be created, or one filter of rules to be deleted."""

    deleted: Sequence[Acl] = ()

    @classmethod
    def of(cls, refusal: Refusal) -> AclResult:
        return cls(error_code=refusal.error_code, error_message=refusal.message)


@dataclass(frozen=True, slots=True)
class CreateAcls(ControllerRequest[AclResult]):
    rules: Sequence[Acl]


@dataclass(frozen=True, slots=True)
class DeleteAcls(ControllerRequest[AclResult]):
    """Deletes the rules that each filter has found."""

    found: Sequence[Sequence[Acl]]


def create(
    image: MetadataImage,
    wanted: Sequence[Acl],
    *,
    new_id: Callable[[], uuid.UUID] = entropy.new_id,
) -> Decision[AclResult]:
    """Returns one result per rule."""
    records: list[MetadataRecord] = []
    results: list[AclResult] = []
    made: set[Acl] = set()
    present = len(image.acls)
    for acl in wanted:
        try:
            check_acl(acl)
            if acl not in image.acl_ids and acl not in made:
                if present + len(made) >= ACLS_MAX:
                    raise Refusal(ErrorCode.POLICY_VIOLATION, f"more than {ACLS_MAX} ACLs")
                made.add(acl)
                records.append(acl_record(new_id(), acl))
        except Refusal as refusal:
            results.append(AclResult.of(refusal))
        else:
            results.append(AclResult())
    return Decision(records=tuple(records), results=tuple(results))


def check_acl(acl: Acl) -> None:
    """Raises Refusal for what is no rule."""
    if acl.kind not in _KINDS or acl.kind == ResourceKind.ANY:
        raise _invalid(f"Invalid resourceType {acl.kind}")
    if acl.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {acl.pattern}: expected LITERAL or PREFIXED")
    if acl.operation not in _OPERATIONS or acl.operation == AclOperation.ANY:
        raise _invalid(f"Invalid operation {acl.operation}")
    if acl.permission not in (AclPermission.ALLOW, AclPermission.DENY):
        raise _invalid(f"Invalid permissionType {acl.permission}: expected ALLOW or DENY")
    if not acl.name:
        raise _invalid("Resource name should not be empty")
    if acl.kind == ResourceKind.CLUSTER and acl.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.host:
        raise _invalid("Host should not be empty: an address, or * for all")
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        raise _invalid(
            f"Could not parse principal from {acl.principal!r}: expected Type:name, such as"
            " User:alice"
        )


def check_filter(wanted: AclFilter) -> None:
    """Raises Refusal for a filter with numbers that nothing has."""
    if wanted.kind not in _KINDS or wanted.pattern not in _PATTERNS:
        raise _invalid("Unknown patternFilter.")
    if wanted.operation not in _OPERATIONS or wanted.permission not in _PERMISSIONS:
        raise _invalid("Unknown entryFilter.")


def find(image: MetadataImage, wanted: Sequence[AclFilter]) -> list[list[Acl]]:
    """Returns the rules that pass each filter.

    Looks at all rules once, if any filter may match several, and at each by few filters: those of
    its name, those whose name it matches, and those without a name.
    """
    found: list[list[Acl]] = [[] for _ in wanted]
    by_name: dict[str, list[int]] = {}
    matched: list[tuple[str, int]] = []
    nameless: list[int] = []
    for number, one in enumerate(wanted):
        exact = one.exact()
        if exact is not None:
            found[number] += [exact] if exact in image.acl_ids else []
        elif one.name is None:
            nameless.append(number)
        elif one.pattern == PatternType.MATCH:
            matched.append((one.name, number))
        else:
            by_name.setdefault(one.name, []).append(number)
    if not (by_name or matched or nameless):
        return found
    matched.sort()
    for acl in image.acls.values():
        for number in (*nameless, *by_name.get(acl.name, ()), *_matched(acl, matched)):
            if wanted[number].matches(acl):
                found[number].append(acl)
    return found


def _matched(acl: Acl, matched: Sequence[tuple[str, int]]) -> Iterator[int]:
    """Yields the numbers of those of the sorted names that the pattern of the rule matches."""
    if acl.pattern == PatternType.LITERAL and acl.name == WILDCARD:
        yield from (number for _, number in matched)
        return
    for at in range(bisect_left(matched, (acl.name, -1)), len(matched)):
        name, number = matched[at]
        if name != acl.name and (
            acl.pattern == PatternType.LITERAL or not name.startswith(acl.name)
        ):
            return
        yield number


def delete(image: MetadataImage, found: Sequence[Sequence[Acl]]) -> Decision[AclResult]:
    """Deletes what was `found` for each filter and is still there; returns a result for each.

    Deletes nothing, and refuses each, if that is more than DELETIONS_MAX.
    """
    gone: Mapping[Acl, uuid.UUID] = {
        acl: image.acl_ids[acl] for of_filter in found for acl in of_filter if acl in image.acl_ids
    }
    if len(gone) > DELETIONS_MAX:
        refusal = _invalid(
            f"Cannot remove more than {DELETIONS_MAX} acls in a single delete operation."
        )
        return Decision(records=(), results=(AclResult.of(refusal),) * len(found))
    return Decision(
        records=tuple(RemoveAccessControlEntryRecord(id=acl_id) for acl_id in gone.values()),
        results=tuple(
            AclResult(deleted=[acl for acl in of_filter if acl in gone]) for of_filter in found
        ),
    )


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
