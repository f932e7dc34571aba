"""UpdateFeatures: raises and lowers the finalized feature levels of the cluster. Flexible from v0.

v1  upgrade type instead of "allow downgrade", validate only    v2  no result per feature
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(Struct):
    feature: str = wire.string()
    max_version_level: int = wire.int16()
    allow_downgrade: bool = wire.boolean("0", default=False)
    upgrade_type: int = wire.int8("1+", default=1)


class UpdateFeaturesRequest(Request, api=ApiKey.UPDATE_FEATURES):
    timeout_ms: int = wire.int32(default=60_000)
    feature_updates: Sequence[FeatureUpdate] = wire.array(FeatureUpdate)
    validate_only: bool = wire.boolean("1+", default=False)


class FeatureResult(Struct):
    feature: str = wire.string()
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)


class UpdateFeaturesResponse(Response, api=ApiKey.UPDATE_FEATURES):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    results: Sequence[FeatureResult] = wire.array(FeatureResult, "0-1", default=())
