"""Checks of one API, as steps around its handler; `table.py` names those of every API.

    whole    the request needs a right: without it all of it is refused
    each     each thing that it names needs a right: the handler sees only those that have it, and
             the answers for the others come last
    after    what the answer shows needs a right: it is left out, or masked

A handler knows nothing of rights, and a broker without an authorizer has no steps.

A *need* is asked with what is named and with the request's context, which has the client's rights:
it answers the error code of who lacks them, and NONE for who may go on.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from functools import reduce
from typing import Any, Final, TypeAlias

from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.services.limits import PARTITIONS_MAX, refuse_flood
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Response
from strandline.broker.security.acl import AclOperation, ResourceKind

Step: TypeAlias = Callable[[Handler], Handler]
Answer: TypeAlias = Response | Coroutine[object, None, Response]
Need: TypeAlias = Callable[[Any, RequestContext], ErrorCode]
# Changes an answer, given its request. It may wait.
Mask: TypeAlias = Callable[[Any, Any, RequestContext], Response | Awaitable[Response]]

CODES: Final = {
    ResourceKind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceKind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceKind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceKind.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


# --- needs -----------------------------------------------------------------------------------


def needs(
    operation: AclOperation, kind: ResourceKind, name_of: Callable[[Any], str | None]
) -> Need:
    """The operation on the resource of that name; nothing if it has none."""
    code = CODES[kind]

    def need(named: Any, context: RequestContext) -> ErrorCode:
        name = name_of(named)
        if name is None or context.access.may(operation, kind, name):
            return ErrorCode.NONE
        return code

    return need


def needs_cluster(operation: AclOperation) -> Need:
    """The operation on the cluster."""

    def need(_named: Any, context: RequestContext) -> ErrorCode:
        if context.access.may_cluster(operation):
            return ErrorCode.NONE
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    return need


def or_of_cluster(operation: AclOperation, otherwise: Need) -> Need:
    """The operation on the cluster, whose denial is not told, or the other right."""

    def need(named: Any, context: RequestContext) -> ErrorCode:
        if context.access.shows_cluster(operation):
            return ErrorCode.NONE
        return otherwise(named, context)

    return need


# --- steps -----------------------------------------------------------------------------------


def whole(refuse: Callable[[Any, ErrorCode], Response], *wanted: Need) -> Step:
    """Refuses the request if one of its needs is not met, the first in order."""

    def step(handler: Handler) -> Handler:
        def guarded(request: Any, context: RequestContext) -> Answer:
            for need in wanted:
                code = need(request, context)
                if code is not ErrorCode.NONE:
                    return refuse(request, code)
            return handler(request, context)

        return guarded

    return step


def each(
    items: str,
    need: Need,
    refused: Callable[[Any, ErrorCode], object],
    rows: str,
    *,
    once: Callable[[Any], Hashable] | None = None,
) -> Step:
    """Keeps `items` of the request from the handler; adds their `refused` rows to its answer.

    An item that is named twice, as `once` says, is left to the handler, which refuses it.
    """

    def step(handler: Handler) -> Handler:
        def guarded(request: Any, context: RequestContext) -> Answer:
            named = getattr(request, items)
            refuse_flood(len(named), PARTITIONS_MAX)
            times = Counter(map(once, named)) if once is not None else None
            allowed, denied = [], []
            for item in named:
                if times is not None and once is not None and times[once(item)] > 1:
                    allowed.append(item)
                    continue
                code = need(item, context)
                if code is ErrorCode.NONE:
                    allowed.append(item)
                else:
                    denied.append(refused(item, code))
            if not denied:
                return handler(request, context)
            return then(
                handler(request.replaced(**{items: allowed}), context), with_rows(rows, denied)
            )

        return guarded

    return step


def after(mask: Mask) -> Step:
    """Changes the answer."""

    def step(handler: Handler) -> Handler:
        def guarded(request: Any, context: RequestContext) -> Answer:
            return then(
                handler(request, context), lambda response: mask(response, request, context)
            )

        return guarded

    return step


def guarded_by(handler: Handler, steps: Iterable[Step]) -> Handler:
    """Returns the handler behind the steps, the first outermost."""
    return reduce(lambda inner, step: step(inner), reversed(tuple(steps)), handler)


def with_rows(rows: str, denied: Iterable[object]) -> Callable[[Any], Response]:
    """Returns what adds rows to an answer."""

    def added(response: Any) -> Response:
        changed: Response = response.replaced(**{rows: [*getattr(response, rows), *denied]})
        return changed

    return added


def then(answer: Answer, change: Callable[[Any], Response | Awaitable[Response]]) -> Answer:
    """Returns the answer with a change, at once if nothing has to wait."""
    if not isinstance(answer, Response):
        return _later(answer, change)
    changed = change(answer)
    return changed if isinstance(changed, Response) else _awaited(changed)


async def _later(
    answer: Awaitable[Response], change: Callable[[Any], Response | Awaitable[Response]]
) -> Response:
    changed = change(await answer)
    return await changed if inspect.isawaitable(changed) else changed


async def _awaited(answer: Awaitable[Response]) -> Response:
    return await answer
