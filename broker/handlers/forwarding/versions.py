"""ApiVersions of a broker whose controllers are elsewhere: of forwarded requests what both take.

So a client uses a version that the controllers can answer (Kafka's ApiVersionManager). One that is
older than theirs is served too: see `Forwarder`.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.cluster.membership.envelope import Forwarder
from strandline.broker.handlers.dispatch.api_versions import RANGES_OF_BROKERS, api_versions
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.forwarding.forwarding import REFUSALS
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.api_versions import (
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from strandline.broker.protocol.schema.api import ApiKey


def shared_api_versions(services: NodeServices, forwarder: Forwarder) -> Handler:
    """Returns the handler."""

    def handle(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        return api_versions(services, request, context, ranges=ranges_with(forwarder))

    return handle


def ranges_with(forwarder: Forwarder) -> Sequence[ApiVersionRange]:
    """Returns what such a broker advertises now."""
    ranges = []
    for one in RANGES_OF_BROKERS:
        highest = forwarder.highest(ApiKey(one.api_key)) if one.api_key in REFUSALS else None
        if highest is None or highest >= one.max_version:
            ranges.append(one)
        elif highest >= one.min_version:
            ranges.append(one.replaced(max_version=highest))
    return ranges
