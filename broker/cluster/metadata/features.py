"""Features of the cluster (KIP-584): the levels that this release supports.

metadata.version     25 (4.0-IV3): a KRaft cluster with topic ids; tools look here for what they
                     may ask. Our metadata log has versions of its own: there is nothing to change
group.version        1, where the group protocol of KIP-848 is served
transaction.version  0, 1 and 2 (KIP-890), by default 2: see `TransactionVersion`

A new cluster begins with a record for each; as in Kafka, a feature without a record has level 0.

A broker in a cluster of Apache Kafka's controllers finds what they finalized. It claims the levels
that it can follow (`CLAIMED`), and does not take part in a cluster with others: clients would ask
it for what it does not serve.

eligible.leader.replicas.version  1 (KIP-966): the controller keeps them; one of ours always does
kraft.version                     1 (KIP-853): the controllers keep their voters
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from strandline.broker.protocol.formats.metadata_records import FeatureLevelRecord, MetadataRecord
from strandline.storage.errors import UnsupportedFormat

TRANSACTION_VERSION = "transaction.version"
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature: the levels that this release knows, and those that may be finalized."""

    name: str
    lowest: int
    # That of a new cluster as well.
    highest: int
    settable: Collection[int]


_ALL = (
    Feature(name="metadata.version", lowest=7, highest=25, settable=(25,)),
    Feature(name="group.version", lowest=0, highest=1, settable=(1,)),
    Feature(name=TRANSACTION_VERSION, lowest=0, highest=2, settable=(0, 1, 2)),
)
FEATURES: Mapping[str, Feature] = {feature.name: feature for feature in _ALL}

# The newest metadata.version whose records this release reads: 4.4-IV2.
_METADATA_VERSION_READ = 33
# Those that it decides on itself.
OWN_LEVELS: Mapping[str, range] = {
    feature.name: range(feature.lowest, feature.highest + 1) for feature in _ALL
}
# A controller of brokers keeps eligible leader replicas too.
CONTROLLER_LEVELS: Mapping[str, range] = {**OWN_LEVELS, ELIGIBLE_LEADER_REPLICAS: range(2)}
# Levels that this release follows where another controller decides.
CLAIMED: Mapping[str, range] = {
    **CONTROLLER_LEVELS,
    "metadata.version": range(7, _METADATA_VERSION_READ + 1),
    "kraft.version": range(2),
}


def first_levels() -> list[MetadataRecord]:
    """The levels of a new cluster."""
    return [FeatureLevelRecord(name=one.name, feature_level=one.highest) for one in _ALL]


def check_levels(levels: Mapping[str, int]) -> None:
    """Raises UnsupportedFormat for a level that only a later release can have set."""
    for name, level in levels.items():
        if level and level not in CLAIMED.get(name, ()):
            raise UnsupportedFormat(
                f"the metadata have level {level} of the feature {name}, which this release does"
                " not know: a later release set it, start that one or a newer one"
            )
