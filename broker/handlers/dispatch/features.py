"""Features of the cluster (KIP-584): the APIs UpdateFeatures and UnregisterBroker.

UpdateFeatures    0-2   1 upgrade types, validate only; 2 no result per feature
UnregisterBroker  0

ApiVersions returns the features, for `describeFeatures` of a client. `cluster/metadata/features.py`
has their levels; only that of `transaction.version` can be changed.

A single broker is the whole cluster. It cannot be unregistered while it runs, and no other broker
is registered.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.broker.cluster.metadata.controller_messages import (
    FeatureChange,
    Intent,
    NewLevel,
    UpdateFeatures,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.handlers.services.limits import clipped, refuse_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
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
from strandline.storage.errors import StorageError

FIRST_VERSION_WITHOUT_RESULTS = 2


def supported_features(levels: Mapping[str, range], *, with_zero: bool) -> list[SupportedFeature]:
    """Returns the supported features; clients below v4 cannot read a minimum level of 0."""
    return [
        SupportedFeature(name=name, min_version=known.start, max_version=known.stop - 1)
        for name, known in levels.items()
        if with_zero or known.start > 0
    ]


def finalized_features(image: MetadataImage) -> list[FinalizedFeature]:
    """Returns the finalized features; as in Kafka, one of level 0 is not finalized."""
    return [
        FinalizedFeature(name=name, max_version_level=level, min_version_level=level)
        for name, level in image.feature_levels.items()
        if level > 0
    ]


class FeatureHandlers:
    """Handlers of the feature APIs: decode, decide on the newest image, encode."""

    def __init__(self, services: NodeServices) -> None:
        self._node_id = services.config.node_id
        self._controller = services.controller

    async def update_features(
        self, request: UpdateFeaturesRequest, context: RequestContext
    ) -> UpdateFeaturesResponse:
        refuse_flood(len(request.feature_updates))
        names = [update.feature for update in request.feature_updates]
        if not names:
            return _refused(ErrorCode.INVALID_REQUEST, "no feature is named")
        if len(set(names)) < len(names):
            return _refused(ErrorCode.INVALID_REQUEST, "a feature is named twice")
        wanted = [_wanted(update) for update in request.feature_updates]
        intent = Intent.VALIDATE if request.validate_only else Intent.APPLY
        try:
            (result,) = await self._controller.ask(UpdateFeatures(wanted, intent))
        except StorageError as error:
            return _refused(ErrorCode(error.kafka_code), str(error))
        if result.error_code is not ErrorCode.NONE:
            return _refused(result.error_code, result.error_message or "")
        if context.api_version >= FIRST_VERSION_WITHOUT_RESULTS:
            return UpdateFeaturesResponse()
        return UpdateFeaturesResponse(results=[FeatureResult(feature=name) for name in names])

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


def _refused(code: ErrorCode, message: str) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=clipped(message))


def _wanted(update: FeatureUpdate) -> NewLevel:
    """Returns the new level; v0 allows a downgrade by a flag, later ones by the upgrade type."""
    if update.allow_downgrade or update.upgrade_type in (
        UpgradeType.SAFE_DOWNGRADE,
        UpgradeType.UNSAFE_DOWNGRADE,
    ):
        change = FeatureChange.DOWNGRADE
    elif update.upgrade_type == UpgradeType.UPGRADE:
        change = FeatureChange.UPGRADE
    else:
        change = FeatureChange.UNKNOWN
    return NewLevel(feature=update.feature, level=update.max_version_level, change=change)
