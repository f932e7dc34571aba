"""Features of a cluster that this broker does not support, refused by their names.

A cluster that Apache Kafka 4.2 or newer has formatted has share.version and streams.version at
level 1, whether anybody uses them or not. A broker that claimed them would be asked for groups that
it does not serve; so it says how they are lowered, and when that is safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from strandline.broker.cluster.metadata.features import CLAIMED
from strandline.storage.errors import UnsupportedFormat

# What needs the feature, and who has to be without it before it is lowered.
_USES: Final[Mapping[str, str]] = {
    "share.version": "share groups (KIP-932): lower it if no client uses one",
    "streams.version": (
        "streams groups (KIP-1071): lower it if no Kafka Streams application has"
        " group.protocol=streams"
    ),
}


class UnsupportedFeature(UnsupportedFormat):
    """The cluster has finalized a feature that this broker does not support."""


def check_features(levels: Mapping[str, int]) -> None:
    """Raises UnsupportedFeature for finalized levels that this broker does not claim."""
    unknown = {
        name: level
        for name, level in sorted(levels.items())
        if level and level not in CLAIMED.get(name, ())
    }
    if not unknown:
        return
    raise UnsupportedFeature(
        "this broker cannot take part in the cluster: "
        + "; ".join(_fault(name, level) for name, level in unknown.items())
    )


def _fault(name: str, level: int) -> str:
    known = CLAIMED.get(name)
    if known is not None:
        return (
            f"{name} is at level {level}, and it supports {known.start} to {known.stop - 1}: a"
            " newer release may know it"
        )
    command = f"kafka-features.sh --bootstrap-server <a broker> downgrade --feature {name}=0"
    use = _USES.get(name)
    if use is None:
        return f"{name} is at level {level}, and it does not know that feature"
    return f"{name} is at level {level}, which is for {use}, by `{command}`"
