"""The caretaker of an archive: the one broker of a cluster that does what is done once.

    by the leader of each partition     manifests, segments, pieces, merges, retention
    by the leader of a coordinator's    its groups or transactional ids
    by each broker                      its list of changes
    by the caretaker                    cluster.json, the mirror of the metadata, purges of deleted
                                        topics, orphans

The image names it: the lowest id among the brokers that are registered with the archive's feature,
and are neither fenced nor about to stop. So another one takes over when it dies, and nobody votes.
Two may believe that they are it, because one has not heard yet: nothing that it does relies on
being alone (cluster_mirror.py).

The feature says which brokers archive; others of the cluster, as Apache Kafka's, have not heard of
it. It is in their registrations alone: its level is never finalized.
"""

from __future__ import annotations

from typing import Final

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import NodeId, is_active
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord

ARCHIVE_FEATURE: Final = "strandline.archive"
# Level 0 is that of a feature which is not finalized.
ARCHIVE_LEVELS: Final = range(2)


def archives(broker: RegisterBrokerRecord) -> bool:
    """Whether a broker writes the archive of its cluster."""
    return any(one.name == ARCHIVE_FEATURE for one in broker.features)


def caretaker_of(image: MetadataImage) -> NodeId | None:
    """Returns the caretaker; None while no broker can be it."""
    return min(
        (one.broker_id for one in image.brokers.values() if is_active(one) and archives(one)),
        default=None,
    )
