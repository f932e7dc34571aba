"""ApiVersions: the requests and versions that this broker supports. Most connections begin with it.

    v0  codes and ranges    v1  throttle time    v3  flexible body, client software, features
    v4  features whose lowest version is 0 may be listed as such (below v4 they must be left out)
    v5  the cluster and the node that the client means to talk to (KIP-1242)

The response header is version 0 even where the body is flexible: the client does not know the
broker's versions yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct

UNKNOWN_NODE = -1


class ApiVersionsRequest(Request, api=ApiKey.API_VERSIONS):
    client_software_name: str = wire.string("3+", default="")
    client_software_version: str = wire.string("3+", default="")
    cluster_id: str | None = wire.string("5+", nullable="5+", default=None)
    node_id: int = wire.int32("5+", default=UNKNOWN_NODE)


class ApiVersionRange(Struct):
    """The lowest and the highest supported version of one API, both included."""

    api_key: int = wire.int16()
    min_version: int = wire.int16()
    max_version: int = wire.int16()


class SupportedFeature(Struct):
    name: str = wire.string()
    min_version: int = wire.int16()
    max_version: int = wire.int16()


class FinalizedFeature(Struct):
    name: str = wire.string()
    max_version_level: int = wire.int16()
    min_version_level: int = wire.int16()


class ApiVersionsResponse(Response, api=ApiKey.API_VERSIONS):
    error_code: int = wire.int16(default=0)
    api_keys: Sequence[ApiVersionRange] = wire.array(ApiVersionRange)
    throttle_time_ms: int = wire.int32("1+", default=0)
    supported_features: Sequence[SupportedFeature] = wire.array(
        SupportedFeature, "3+", tag=0, default=()
    )
    finalized_features_epoch: int = wire.int64("3+", tag=1, default=-1)
    finalized_features: Sequence[FinalizedFeature] = wire.array(
        FinalizedFeature, "3+", tag=2, default=()
    )
    zk_migration_ready: bool = wire.boolean("3+", tag=3, default=False)
