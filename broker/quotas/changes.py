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

from strandline.broker.cluster.metadata.controller_messages import (
    ControllerRequest,
    Decision,
    Intent,
    Refusal,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import QuotaEntity, quota_records
from strandline.broker.protocol.formats.metadata_records import MetadataRecord
from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterQuotaEntry,
    AlterQuotaResult,
    EntityData,
    QuotaOperation,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.quotas.table import (
    ADDRESS_KEYS,
    CLIENT_KEYS,
    LARGEST_INTEGRAL,
    EntityType,
    QuotaKey,
)

# More quotas than one broker keeps: each is a line of a snapshot that every start reads.
ENTITIES_MAX = 100_000
INTEGRAL_SLACK = 1e-6
NAME_BYTES_MAX = 1024
_UNSAFE = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class AlterClientQuotas(ControllerRequest[AlterQuotaResult]):
    """Sets and removes quotas of entities."""

    entries: Sequence[AlterQuotaEntry]
    intent: Intent = Intent.APPLY


def alter(image: MetadataImage, request: AlterClientQuotas) -> Decision[AlterQuotaResult]:
    """Returns one result per entry. A repeated entity is altered the first time only."""
    records: list[MetadataRecord] = []
    results: list[AlterQuotaResult] = []
    seen: set[QuotaEntity] = set()
    entity_count = len(image.client_quotas)
    for entry in request.entries:
        try:
            entity = _entity(entry.entity)
            if entity in seen:
                raise _invalid("Ignoring duplicate entity")
            seen.add(entity)
            present = image.client_quotas.get(entity, {})
            wanted = _changed(entity, present, entry.ops)
            if entity not in image.client_quotas and wanted:
                entity_count += 1
                if entity_count > ENTITIES_MAX:
                    raise Refusal(
                        ErrorCode.POLICY_VIOLATION, f"more than {ENTITIES_MAX} entities with quotas"
                    )
        except Refusal as refusal:
            results.append(
                AlterQuotaResult(
                    entity=entry.entity,
                    error_code=refusal.error_code,
                    error_message=refusal.message,
                )
            )
            continue
        records += quota_records(entity, present, wanted)
        results.append(AlterQuotaResult(entity=entry.entity))
    applied = tuple(records) if request.intent is Intent.APPLY else ()
    return Decision(records=applied, results=tuple(results))


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)


def _entity(parts: Sequence[EntityData]) -> QuotaEntity:
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    names: dict[str, str] = {}
    for part in parts:
        kind, name = part.entity_type, part.entity_name
        if kind in names:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in tuple(EntityType):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
        names[kind] = "" if name is None else _checked_name(kind, name)
    if EntityType.IP in names and len(names) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity should not be combined with User or"
            " ClientId"
        )
    return QuotaEntity.of(names)


def _checked_name(kind: str, name: str) -> str:
    if kind == EntityType.IP:
        # Kafka asks DNS whether the name exists. A request must not wait for that here, and only
        # addresses are ever looked up again, so only addresses are accepted.
        try:
            return str(ipaddress.ip_address(name))
        except ValueError:
            raise _invalid(f"{name} is not a valid IP.") from None
    if len(name.encode()) > NAME_BYTES_MAX or _UNSAFE.search(name):
        raise _invalid(f"{kind} is too long or has control characters")
    return name


def _changed(
    entity: QuotaEntity, present: Mapping[str, float], operations: Sequence[QuotaOperation]
) -> dict[str, float]:
    is_address = any(kind == EntityType.IP for kind, _ in entity.names)
    allowed = ADDRESS_KEYS if is_address else CLIENT_KEYS
    wanted = dict(present)
    seen: set[str] = set()
    for operation in operations:
        key = operation.key
        if key in seen:
            raise _invalid(f"Duplicate quota key {key}")
        seen.add(key)
        if operation.remove:
            wanted.pop(key, None)
            continue
        if key not in allowed:
            raise _invalid(f"Invalid configuration key {key}")
        _check_value(QuotaKey(key), operation.value)
        wanted[key] = operation.value
    return wanted


def _check_value(key: QuotaKey, value: float) -> None:
    # Kafka lets NaN and infinity pass; a rate can neither exceed nor keep them.
    if not value > 0 or not math.isfinite(value):
        raise _invalid(f"Quota {key} must be greater than 0")
    largest = LARGEST_INTEGRAL.get(key)
    if largest is None:
        return
    if value > largest:
        raise _invalid(f"Proposed value for {key} is too large.")
    if value % 1 > INTEGRAL_SLACK:
        raise _invalid(f"{key} cannot be a fractional value.")


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
    """Returns the matching entities with their quotas, in order."""
    return [
        (entity, image.client_quotas[entity])
        for entity in sorted(image.client_quotas)
        if wanted.matches(entity)
    ]
