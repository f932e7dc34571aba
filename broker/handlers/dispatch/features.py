"""Features of the cluster (KIP-584), and the APIs UpdateFeatures and UnregisterBroker.

UpdateFeatures    0-2   1 upgrade types, validate only; 2 no result per feature
UnregisterBroker  0

ApiVersions returns the features, for `describeFeatures` of a client. Each has one level in a
release of strandline: our metadata log carries its own versions, so there is nothing to raise or
lower. Setting a feature to its current level succeeds, as in Kafka; any other level is refused with
INVALID_UPDATE_VERSION and the reason.

metadata.version  25 (4.0-IV3): a KRaft cluster with topic ids; tools look here for what they may
                  ask
group.version      1, where the group protocol of KIP-848 is served
transaction.version  2, where each transaction has an epoch of its own (KIP-890)

A single broker is the whole cluster. It cannot be unregistered while it runs, and no other broker
is registered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.broker.handlers.services.limits import clipped, refuse_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.api_versions import FinalizedFeature, SupportedFeature
from strandline.broker.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from strandline.broker.protocol.messages.update_features import (
    FeatureResult,
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    UpgradeType,
)
from strandline.broker.protocol.schema.errors import ErrorCode

FIRST_VERSION_WITH_UPGRADE_TYPE = 1
FIRST_VERSION_WITHOUT_RESULTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature: its supported levels, and the current one."""

    name: str
    lowest: int
    level: int


FEATURES: Sequence[Feature] = (
    Feature(name="metadata.version", lowest=7, level=25),
    Feature(name="group.version", lowest=0, level=1),
    Feature(name="transaction.version", lowest=0, level=2),
)


def supported_features(*, with_zero: bool) -> list[SupportedFeature]:
    """The supported features; clients below v4 cannot read features with minimum level 0."""
    return [
        SupportedFeature(name=f.name, min_version=f.lowest, max_version=f.level)
        for f in FEATURES
        if with_zero or f.lowest > 0
    ]


def finalized_features() -> list[FinalizedFeature]:
    """The finalized features (KIP-584), each at its one level."""
    return [
        FinalizedFeature(name=f.name, max_version_level=f.level, min_version_level=f.level)
        for f in FEATURES
    ]


class FeatureHandlers:
    """Handlers of the feature APIs, for one broker with one level of each feature."""

    def __init__(self, services: Services) -> None:
        self._node_id = services.config.node_id

    def update_features(
        self, request: UpdateFeaturesRequest, context: RequestContext
    ) -> UpdateFeaturesResponse:
        refuse_flood(len(request.feature_updates))
        seen: set[str] = set()
        results: list[FeatureResult] = []
        for update in request.feature_updates:
            if update.feature in seen:
                return UpdateFeaturesResponse(
                    error_code=ErrorCode.INVALID_REQUEST,
                    error_message=clipped(f"feature {update.feature} is named twice"),
                )
            seen.add(update.feature)
            fault = _fault(update, context.api_version)
            if fault is not None:
                # The update is atomic: the first fault applies to all features.
                message = (
                    f"Invalid update version {update.max_version_level} for feature"
                    f" {update.feature}. {fault}"
                )
                return UpdateFeaturesResponse(
                    error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=clipped(message)
                )
            results.append(FeatureResult(feature=update.feature))
        if not results:
            return UpdateFeaturesResponse(
                error_code=ErrorCode.INVALID_REQUEST, error_message="no feature is named"
            )
        if context.api_version >= FIRST_VERSION_WITHOUT_RESULTS:
            return UpdateFeaturesResponse()
        return UpdateFeaturesResponse(results=results)

    def unregister_broker(
        self, request: UnregisterBrokerRequest, _context: RequestContext
    ) -> UnregisterBrokerResponse:
        if request.broker_id == self._node_id:
            return UnregisterBrokerResponse(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message="this is the only broker of the cluster, and it is running",
            )
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=f"Broker ID {request.broker_id} is not currently registered",
        )


def _fault(update: FeatureUpdate, version: int) -> str | None:
    """Returns why a feature cannot be set to the requested level; None if it has it."""
    known = next((feature for feature in FEATURES if feature.name == update.feature), None)
    level = update.max_version_level
    if version >= FIRST_VERSION_WITH_UPGRADE_TYPE and update.upgrade_type not in tuple(UpgradeType):
        return "The controller does not support the given upgrade type."
    if known is None:
        return f"This broker does not support the feature {update.feature}."
    if level == known.level:
        return None
    if level > known.level:
        return f"This broker supports {update.feature} up to {known.level}."
    return f"{update.feature} has one level in this release of strandline, {known.level}."
