"""ApiVersions: the APIs, versions and features of this broker.

    0-2  plain; 3 flexible, the client names its software (KIP-511); 4 features of minimum 0;
         5 the cluster and the node that the client means (KIP-1242)

A client that means another cluster or node, because an address has a new owner, is told to start
again from its bootstrap servers.

An unknown version is answered in version 0 with UNSUPPORTED_VERSION and our range, and with the old
response header: the only answer that every client can read (KIP-511).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from strandline.broker.cluster.membership.config import MembershipConfig
from strandline.broker.cluster.metadata.features import CLAIMED, CONTROLLER_LEVELS, OWN_LEVELS
from strandline.broker.handlers.dispatch.features import finalized_features, supported_features
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.network.responses import CloseConnectionError, Parts
from strandline.broker.protocol.codec.codec import encode
from strandline.broker.protocol.header import frame_response
from strandline.broker.protocol.messages.api_versions import (
    UNKNOWN_NODE,
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from strandline.broker.protocol.schema.api import SPECS, ApiKey, ApiSpec
from strandline.broker.protocol.schema.errors import (
    ErrorCode,
    MalformedRequest,
    UnsupportedVersion,
)
from strandline.broker.telemetry.requests import RequestTraffic

FIRST_VERSION_WITH_SOFTWARE_AND_FEATURES = 3
FIRST_VERSION_WITH_ZERO_FEATURES = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def ranges_of(specs: Iterable[ApiSpec]) -> Sequence[ApiVersionRange]:
    """Returns what a listener advertises."""
    return tuple(
        ApiVersionRange(
            api_key=spec.key, min_version=spec.supported.lowest, max_version=spec.supported.highest
        )
        for spec in specs
    )


RANGES_OF_BROKERS = ranges_of(SPECS.values())


def api_versions(
    services: NodeServices,
    request: ApiVersionsRequest,
    context: RequestContext,
    *,
    ranges: Sequence[ApiVersionRange] = RANGES_OF_BROKERS,
) -> ApiVersionsResponse:
    """Returns all advertised APIs and features; refuses an invalid software name as Kafka does."""
    if context.api_version < FIRST_VERSION_WITH_SOFTWARE_AND_FEATURES:
        return ApiVersionsResponse(api_keys=ranges)
    if not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
    # Versions without the two have their defaults.
    if (request.cluster_id is None) != (request.node_id == UNKNOWN_NODE):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
    image = services.metadata.image
    ours = image.cluster_id, services.config.node_id
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != ours:
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED, api_keys=())
    with_zero = context.api_version >= FIRST_VERSION_WITH_ZERO_FEATURES
    return ApiVersionsResponse(
        api_keys=ranges,
        supported_features=supported_features(
            _levels(services.config.membership), with_zero=with_zero
        ),
        # Kafka uses the end of the metadata log; it grows whenever a feature may have changed.
        finalized_features_epoch=image.version,
        finalized_features=finalized_features(image),
    )


def _levels(membership: MembershipConfig) -> Mapping[str, range]:
    if membership.has_controllers:
        return CLAIMED
    return CONTROLLER_LEVELS if membership.is_controller else OWN_LEVELS


def answer_unreadable(
    error: MalformedRequest | UnsupportedVersion, traffic: RequestTraffic
) -> Parts:
    """Answers a frame that no request can be read from, if it is ApiVersions.

    Raises CloseConnectionError for everything else, and counts it.
    """
    if isinstance(error, UnsupportedVersion):
        if error.api_key == ApiKey.API_VERSIONS:
            response = ApiVersionsResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                api_keys=[one for one in RANGES_OF_BROKERS if one.api_key == ApiKey.API_VERSIONS],
            )
            parts = encode(response, 0)
            return frame_response(ApiKey.API_VERSIONS, 0, error.correlation_id, parts)
        reason = str(error)
    else:
        reason = f"malformed request: {error}"
    traffic.refused_total += 1
    raise CloseConnectionError(reason) from error
