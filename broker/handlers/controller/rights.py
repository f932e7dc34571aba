"""The right of brokers among each other: CLUSTER_ACTION on the cluster, as in ControllerApis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Response
from strandline.broker.security.acl import AclOperation

# Makes the answer that has only an `error_code`.
Refused: TypeAlias = Callable[..., Response]


def for_brokers(handler: Handler, refused: Refused) -> Handler:
    """Returns the handler for those who may act for the cluster; others get `refused`."""

    def checked(request: Any, context: RequestContext) -> Any:
        if not context.access.may_cluster(AclOperation.CLUSTER_ACTION):
            return refused(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return handler(request, context)

    return checked
