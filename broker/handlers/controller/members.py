"""The members of the cluster, as the controller knows them.

UnregisterBroker  0
DescribeCluster   1-2  1 endpoint type (KIP-919): this is an endpoint of controllers
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.broker.cluster.metadata.controller_messages import Controller
from strandline.broker.config.listeners import Listener
from strandline.broker.controller.messages import UnregisterBroker
from strandline.broker.handlers.services.authorized_operations import ALL_OF_THE_CLUSTER
from strandline.broker.handlers.services.limits import clipped
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.describe_cluster import (
    ENDPOINT_BROKERS,
    ENDPOINT_CONTROLLERS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.metadata import OPERATIONS_UNKNOWN
from strandline.broker.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import StorageError


async def unregister_broker(
    controller: Controller, request: UnregisterBrokerRequest, _context: RequestContext
) -> UnregisterBrokerResponse:
    """Removes a registration, also that of a broker that lives: it registers again, fenced."""
    try:
        (result,) = await controller.ask(UnregisterBroker(request.broker_id))
    except StorageError as error:
        return UnregisterBrokerResponse(
            error_code=error.kafka_code, error_message=clipped(str(error))
        )
    if result.error_code is ErrorCode.NONE:
        return UnregisterBrokerResponse()
    return UnregisterBrokerResponse(
        error_code=result.error_code, error_message=clipped(result.error_message)
    )


class ClusterHandler:
    """Handler of DescribeCluster: the only controller."""

    def __init__(self, services: NodeServices, advertised: Callable[[str], Listener]) -> None:
        self._services = services
        self._advertised = advertised

    def describe_cluster(
        self, request: DescribeClusterRequest, context: RequestContext
    ) -> DescribeClusterResponse:
        cluster_id = self._services.metadata.image.cluster_id
        if request.endpoint_type != ENDPOINT_CONTROLLERS:
            is_known = request.endpoint_type == ENDPOINT_BROKERS
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if is_known
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="The request was sent to an endpoint of type CONTROLLER, but we"
                " wanted an endpoint of type BROKER"
                if is_known
                else f"unknown endpoint type {request.endpoint_type}",
                cluster_id=cluster_id,
                brokers=(),
            )
        node_id = self._services.config.node_id
        address = self._advertised(context.caller.listener)
        return DescribeClusterResponse(
            endpoint_type=ENDPOINT_CONTROLLERS,
            cluster_id=cluster_id,
            controller_id=node_id,
            cluster_authorized_operations=ALL_OF_THE_CLUSTER
            if request.include_cluster_authorized_operations
            else OPERATIONS_UNKNOWN,
            brokers=[
                DescribeClusterBroker(broker_id=node_id, host=address.host, port=address.port)
            ],
        )
