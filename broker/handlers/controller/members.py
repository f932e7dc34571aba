"""UnregisterBroker: a broker leaves the cluster for good."""

from __future__ import annotations

from strandline.broker.cluster.metadata.controller_messages import Controller
from strandline.broker.controller.messages import UnregisterBroker
from strandline.broker.handlers.services.limits import clipped
from strandline.broker.handlers.services.services import RequestContext
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
