"""DescribeClientQuotas and AlterClientQuotas (KIP-546, KIP-599, KIP-612).

DescribeClientQuotas  0-1   1 flexible
AlterClientQuotas     0-1   1 flexible

A new quota is in the metadata log, and in force on this broker, when the answer is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.broker.cluster.metadata.controller_messages import Intent, Refusal
from strandline.broker.cluster.metadata.records import QuotaEntity
from strandline.broker.handlers.services.limits import clipped, refuse_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaResult,
)
from strandline.broker.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuota,
    DescribedQuotaEntity,
    QuotaComponent,
    QuotaMatchType,
    QuotaValue,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.quotas.changes import (
    AlterClientQuotas,
    Filter,
    describe,
)
from strandline.broker.quotas.table import EntityType
from strandline.storage.errors import StorageError

# A name that cannot be set, so that it matches nothing.
MATCHES_NOTHING = "\x00"


class ClientQuotaHandlers:
    """Handlers of the quota APIs: decode, ask `quotas.changes`, encode."""

    def __init__(self, services: NodeServices) -> None:
        self._metadata = services.metadata
        self._controller = services.controller

    def describe_client_quotas(
        self, request: DescribeClientQuotasRequest, _context: RequestContext
    ) -> DescribeClientQuotasResponse:
        refuse_flood(len(request.components))
        try:
            wanted = _filter(request.components, strict=request.strict)
        except Refusal as refusal:
            return DescribeClientQuotasResponse(
                error_code=refusal.error_code, error_message=clipped(refusal.message), entries=None
            )
        found = describe(self._metadata.image, wanted)
        return DescribeClientQuotasResponse(
            entries=[_described(entity, quotas) for entity, quotas in found]
        )

    async def alter_client_quotas(
        self, request: AlterClientQuotasRequest, _context: RequestContext
    ) -> AlterClientQuotasResponse:
        refuse_flood(len(request.entries))
        refuse_flood(sum(len(entry.entity) + len(entry.ops) for entry in request.entries))
        intent = Intent.VALIDATE if request.validate_only else Intent.APPLY
        results: Sequence[AlterQuotaResult]
        try:
            results = await self._controller.ask(AlterClientQuotas(request.entries, intent))
        except StorageError as error:
            code = error.kafka_code
            results = [
                AlterQuotaResult(entity=entry.entity, error_code=code, error_message=str(error))
                for entry in request.entries
            ]
        return AlterClientQuotasResponse(
            entries=[r.replaced(error_message=clipped(r.error_message)) for r in results]
        )


def _described(entity: QuotaEntity, quotas: Mapping[str, float]) -> DescribedQuota:
    return DescribedQuota(
        entity=[
            DescribedQuotaEntity(entity_type=kind, entity_name=name or None)
            for kind, name in entity.names
        ],
        quotas=[QuotaValue(key=key, value=value) for key, value in sorted(quotas.items())],
    )


def _filter(components: Sequence[QuotaComponent], *, strict: bool) -> Filter:
    """Builds the filter. Raises Refusal where Kafka refuses."""
    exact: dict[str, str] = {}
    any_of: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in exact or kind in any_of:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"Entity type {kind} cannot appear more than once in the filter.",
            )
        if kind not in tuple(EntityType):
            raise Refusal(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        match component.match_type:
            case QuotaMatchType.EXACT:
                if component.match is None:
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST, "An exact match needs a name to be matched."
                    )
                # No entity has the empty name; it marks the default in stored quotas.
                exact[kind] = component.match or MATCHES_NOTHING
            case QuotaMatchType.DEFAULT | QuotaMatchType.ANY:
                if component.match is not None:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "Only an exact match may have a name.")
                if component.match_type == QuotaMatchType.DEFAULT:
                    exact[kind] = ""
                else:
                    any_of.add(kind)
            case unknown:
                raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown match type {unknown}")
    kinds = exact.keys() | any_of
    if EntityType.IP in kinds and len(kinds) > 1:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component.",
        )
    return Filter(exact=exact, any_of=frozenset(any_of), strict=strict)
