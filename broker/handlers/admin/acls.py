"""DescribeAcls, CreateAcls, DeleteAcls: the rules of the authorizer (KIP-140, KIP-290).

    0-3   1 pattern types; 2 flexible; 3 users as resources

A change is in the metadata log, and in force on this broker, when the answer is sent. Without an
authorizer all answer SECURITY_DISABLED, as Kafka's AclApis; tools that copy ACLs beside other
things, such as MirrorMaker, know that answer and continue.

Filters are applied in a worker thread: a filter may look at every rule. Many rules are created in
several steps, between which others are served; a step is in the metadata log as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from strandline.broker.authorization import changes
from strandline.broker.authorization.changes import AclResult, CreateAcls, DeleteAcls
from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.handlers.services.limits import clipped, refuse_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from strandline.broker.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from strandline.broker.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import Acl, AclFilter
from strandline.storage.errors import StorageError

T = TypeVar("T")

DISABLED = Refusal(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
FILTERS_MAX = 1000
# Each of these looks at every rule.
NAMELESS_FILTERS_MAX = 20
# Deciding on a rule, and taking it up, takes some 10 us of the loop.
CREATED_AT_ONCE_MAX = 2000


class AclHandlers:
    """Handlers of the ACL APIs: decode, ask `authorization.changes`, encode."""

    def __init__(self, services: NodeServices) -> None:
        self._metadata = services.metadata
        self._controller = services.controller
        self._workers = services.records
        self._is_enabled = services.authorizer is not None

    async def describe_acls(
        self, request: DescribeAclsRequest, _context: RequestContext
    ) -> DescribeAclsResponse:
        if not self._is_enabled:
            return _undescribed(DISABLED)
        wanted = _filter(request)
        try:
            changes.check_filter(wanted)
        except Refusal as refusal:
            return _undescribed(refusal)
        return await self._in_worker(partial(_described, self._metadata.image, wanted))

    async def create_acls(
        self, request: CreateAclsRequest, _context: RequestContext
    ) -> CreateAclsResponse:
        refuse_flood(len(request.creations))
        wanted = [
            Acl(
                one.resource_type,
                one.resource_name,
                one.resource_pattern_type,
                one.principal,
                one.host,
                one.operation,
                one.permission_type,
            )
            for one in request.creations
        ]
        results: Sequence[AclResult]
        if not self._is_enabled:
            results = [AclResult.of(DISABLED)] * len(wanted)
        else:
            results = await self._create(wanted)
        return CreateAclsResponse(
            results=[
                AclCreationResult(
                    error_code=one.error_code, error_message=clipped(one.error_message)
                )
                for one in results
            ]
        )

    async def _create(self, wanted: Sequence[Acl]) -> Sequence[AclResult]:
        results: list[AclResult] = []
        for first in range(0, len(wanted), CREATED_AT_ONCE_MAX):
            part = wanted[first : first + CREATED_AT_ONCE_MAX]
            try:
                results += await self._controller.ask(CreateAcls(part))
            except StorageError as error:
                results += [_failed(error)] * len(part)
        return results

    async def delete_acls(
        self, request: DeleteAclsRequest, _context: RequestContext
    ) -> DeleteAclsResponse:
        refuse_flood(len(request.filters), FILTERS_MAX)
        if not self._is_enabled:
            disabled = _deleted(AclResult.of(DISABLED))
            return DeleteAclsResponse(filter_results=[disabled] * len(request.filters))
        results: list[AclResult | None] = []
        wanted: list[AclFilter] = []
        nameless_count = 0
        for one in map(_filter, request.filters):
            nameless_count += one.name is None
            try:
                changes.check_filter(one)
                if one.name is None and nameless_count > NAMELESS_FILTERS_MAX:
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST,
                        f"more than {NAMELESS_FILTERS_MAX} filters without a resource's name",
                    )
            except Refusal as refusal:
                results.append(AclResult.of(refusal))
            else:
                results.append(None)
                wanted.append(one)
        deleted = iter(await self._delete(wanted))
        return DeleteAclsResponse(
            filter_results=[_deleted(next(deleted) if one is None else one) for one in results]
        )

    async def _delete(self, wanted: Sequence[AclFilter]) -> Sequence[AclResult]:
        found = await self._in_worker(partial(changes.find, self._metadata.image, wanted))
        try:
            return await self._controller.ask(DeleteAcls(found))
        except StorageError as error:
            return [_failed(error)] * len(wanted)

    async def _in_worker(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._workers, call)


def _described(image: MetadataImage, wanted: AclFilter) -> DescribeAclsResponse:
    (found,) = changes.find(image, [wanted])
    by_pattern: dict[tuple[int, str, int], list[AclDescription]] = {}
    for acl in found:
        by_pattern.setdefault((acl.kind, acl.name, acl.pattern), []).append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return DescribeAclsResponse(
        resources=[
            DescribeAclsResource(
                resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls
            )
            for (kind, name, pattern), acls in by_pattern.items()
        ]
    )


def _filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        kind=asked.resource_type_filter,
        name=asked.resource_name_filter,
        pattern=asked.pattern_type_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=asked.operation,
        permission=asked.permission_type,
    )


def _failed(error: StorageError) -> AclResult:
    return AclResult(error_code=ErrorCode(error.kafka_code), error_message=str(error))


def _undescribed(refusal: Refusal) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        error_code=refusal.error_code, error_message=clipped(refusal.message)
    )


def _deleted(result: AclResult) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_code=result.error_code,
        error_message=clipped(result.error_message),
        matching_acls=[_matching(acl) for acl in result.deleted],
    )


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=acl.kind,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
