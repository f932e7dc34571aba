"""Decides AlterClientQuotas and DescribeClientQuotas on a metadata image. Pure.

Codes and messages follow Kafka (`ClientQuotaControlManager`, `ClientQuotasImage`); where a request
is refused there, it is refused here, whole or by entity.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.broker.cluster.metadata.controller_messages import Decision, Intent, Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import ClientQuotasSet, QuotaEntity
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.quotas.table import (
    ADDRESS_KEYS,
    CLIENT_KEYS,
    LARGEST_INTEGRAL,
    EntityType,
    QuotaKey,
)

# Kafka asks DNS whether a name of `ip` exists. A request must not wait for that here, and only
# addresses are ever looked up again, so only addresses are taken.
# More quotas than one broker keeps: each is a line of a snapshot that every start reads.
ENTITIES_MAX = 100_000
INTEGRAL_SLACK = 1e-6
NAME_BYTES_MAX = 1024
_UNSAFE = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePart:
    """One type of an entity as a client wrote it; `name` None is the default."""

    kind: str
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """One key of an alteration; `value` None removes the quota."""

    key: str
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """The requested quotas of one entity; keys that are not named stay."""

    entity: tuple[NamePart, ...]
    changes: tuple[QuotaChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterationResult:
    """The result of one alteration."""

    entity: tuple[NamePart, ...]
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def alter(
    image: MetadataImage, alterations: Sequence[Alteration], *, intent: Intent
) -> Decision[AlterationResult]:
    """One result per alteration. An entity that is named twice is altered the first time only."""
    records: list[ClientQuotasSet] = []
    results: list[AlterationResult] = []
    seen: set[QuotaEntity] = set()
    entity_count = len(image.client_quotas)
    for alteration in alterations:
        try:
            entity = _entity(alteration.entity)
            if entity in seen:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Ignoring duplicate entity")
            seen.add(entity)
            present = image.client_quotas.get(entity, {})
            wanted = _changed(entity, present, alteration.changes)
            if entity not in image.client_quotas and wanted:
                entity_count += 1
                if entity_count > ENTITIES_MAX:
                    raise Refusal(
                        ErrorCode.POLICY_VIOLATION, f"more than {ENTITIES_MAX} entities with quotas"
                    )
        except Refusal as refusal:
            results.append(
                AlterationResult(
                    entity=alteration.entity,
                    error_code=refusal.error_code,
                    error_message=refusal.message,
                )
            )
            continue
        if wanted != dict(present):
            records.append(ClientQuotasSet(entity=entity, quotas=wanted))
        results.append(AlterationResult(entity=alteration.entity))
    applied = tuple(records) if intent is Intent.APPLY else ()
    return Decision(records=applied, results=tuple(results))


def _entity(parts: Sequence[NamePart]) -> QuotaEntity:
    if not parts:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    names: dict[str, str] = {}
    for part in parts:
        if part.kind in names:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"Invalid client quota entity, duplicate entity entry {part.kind}",
            )
        if part.kind not in tuple(EntityType):
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {part.kind}"
            )
        if part.name == "":
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Empty {part.kind} not supported")
        names[part.kind] = "" if part.name is None else _checked_name(part.kind, part.name)
    if EntityType.IP in names and len(names) > 1:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            "Invalid quota entity combination, IP entity should not be combined with User or"
            " ClientId",
        )
    return QuotaEntity.of(names)


def _checked_name(kind: str, name: str) -> str:
    if kind == EntityType.IP:
        try:
            return str(ipaddress.ip_address(name))
        except ValueError:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{name} is not a valid IP.") from None
    if len(name.encode()) > NAME_BYTES_MAX or _UNSAFE.search(name):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{kind} is too long or has control characters")
    return name


def _changed(
    entity: QuotaEntity, present: Mapping[str, float], changes: Sequence[QuotaChange]
) -> dict[str, float]:
    is_address = any(kind == EntityType.IP for kind, _ in entity.names)
    allowed = ADDRESS_KEYS if is_address else CLIENT_KEYS
    wanted = dict(present)
    seen: set[str] = set()
    for change in changes:
        if change.key in seen:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Duplicate quota key {change.key}")
        seen.add(change.key)
        if change.value is None:
            wanted.pop(change.key, None)
            continue
        if change.key not in allowed:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {change.key}")
        _check_value(QuotaKey(change.key), change.value)
        wanted[change.key] = change.value
    return wanted


def _check_value(key: QuotaKey, value: float) -> None:
    # Kafka lets NaN and infinity pass; a rate can neither exceed nor keep them.
    if not value > 0 or not math.isfinite(value):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Quota {key} must be greater than 0")
    largest = LARGEST_INTEGRAL.get(key)
    if largest is None:
        return
    if value > largest:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Proposed value for {key} is too large.")
    if value % 1 > INTEGRAL_SLACK:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{key} cannot be a fractional value.")


# --- describing ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The filter of a DescribeClientQuotas request.

    `exact` are names by type, the empty one for the default; `any_of` are types of any name. With
    `strict` an entity must have no further types.
    """

    exact: Mapping[str, str]
    any_of: frozenset[str]
    strict: bool

    def matches(self, entity: QuotaEntity) -> bool:
        names = dict(entity.names)
        if self.strict and len(names) != len(self.exact) + len(self.any_of):
            return False
        return all(names.get(kind) == name for kind, name in self.exact.items()) and all(
            kind in names for kind in self.any_of
        )


def describe(image: MetadataImage, wanted: Filter) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    """Entities that match, with their quotas, in order."""
    return [
        (entity, image.client_quotas[entity])
        for entity in sorted(image.client_quotas)
        if wanted.matches(entity)
    ]
