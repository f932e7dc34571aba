"""Who leads a partition: decided anew whenever a broker or a log folder comes or goes.

A leader is in sync, its broker is unfenced and not shutting down, and its log folder is online.

    ONLINE      the leader stays if it can; else the first replica that can
    PREFERRED   the first replica, if it can; else as above

If nobody can, the partition has no leader until somebody comes back. The last replica in sync stays
so: it alone knows all that was acknowledged. Only `unclean.leader.election.enable` lets another
replica lead, and then it is the only one in sync. As Kafka's PartitionChangeBuilder decides where
`eligible.leader.replicas.version` is 0.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Final, TypeAlias

from strandline.broker.cluster.metadata.image import (
    NO_LEADER,
    SAME_LEADER,
    SAME_STATE,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from strandline.broker.cluster.metadata.records import NodeId, Replicas, is_active, is_true
from strandline.broker.controller.directories import is_online
from strandline.broker.protocol.formats.metadata_records import (
    UNASSIGNED_DIRECTORY,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)

UNCLEAN_ELECTIONS: Final = "unclean.leader.election.enable"
_RECOVERING: Final = 1

Located: TypeAlias = tuple[TopicImage, PartitionImage]


class Election(Enum):
    """Which replica is asked first."""

    ONLINE = auto()
    PREFERRED = auto()


class Electorate:
    """The brokers that may lead, as they are in an image, or will be in the next."""

    def __init__(
        self, image: MetadataImage, *, with_: NodeId | None = None, without: NodeId | None = None
    ) -> None:
        """`with_` counts as unfenced already, `without` is no candidate any more."""
        self._brokers = image.brokers
        self._active = {node for node, one in image.brokers.items() if is_active(one)}
        if with_ is not None:
            self._active.add(with_)
        if without is not None:
            self._active.discard(without)

    def may_lead(self, node_id: NodeId, partition: PartitionImage) -> bool:
        return node_id in self._active and is_online(
            self._brokers[node_id], directory_of(partition, node_id)
        )


def directory_of(partition: PartitionImage, node_id: NodeId) -> uuid.UUID:
    """Returns the log folder of a replica."""
    for node, directory in zip(partition.replicas, partition.directories, strict=False):
        if node == node_id:
            return directory
    return UNASSIGNED_DIRECTORY


def partitions(image: MetadataImage, wanted: Callable[[PartitionImage], bool]) -> Iterator[Located]:
    """Yields those of all partitions that are wanted."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if wanted(partition):
                yield topic, partition


def leads_any(image: MetadataImage, node_id: NodeId) -> bool:
    """Whether a broker leads a partition."""
    return any(partitions(image, lambda one: one.leader == node_id))


def in_sync(image: MetadataImage, node_id: NodeId) -> Iterator[Located]:
    """Yields the partitions of which a broker has a replica in sync."""
    return partitions(image, lambda one: node_id in one.isr)


def leaderless(image: MetadataImage) -> Iterator[Located]:
    return partitions(image, lambda one: one.leader == NO_LEADER)


def in_lost_folders(image: MetadataImage, broker: RegisterBrokerRecord) -> Iterator[Located]:
    """Yields the partitions of which a broker had a replica in a log folder that it lacks now."""
    node = broker.broker_id

    def is_lost(one: PartitionImage) -> bool:
        return node in one.replicas and not is_online(broker, directory_of(one, node))

    return partitions(image, is_lost)


def not_preferred(image: MetadataImage) -> Iterator[Located]:
    """Yields the partitions that another than the first replica leads."""
    return partitions(image, lambda one: one.leader not in (NO_LEADER, one.replicas[0]))


def elect_all(
    found: Iterable[Located],
    electorate: Electorate,
    *,
    leaving: NodeId | None = None,
    election: Election = Election.ONLINE,
) -> list[MetadataRecord]:
    """Returns the records of what changes; `leaving` is out of sync from now on."""
    changes = (
        change_of(
            topic,
            partition,
            electorate,
            isr=tuple(node for node in partition.isr if node != leaving),
            election=election,
        )
        for topic, partition in found
    )
    return [change for change in changes if change is not None]


def change_of(
    topic: TopicImage,
    partition: PartitionImage,
    electorate: Electorate,
    *,
    isr: Replicas,
    election: Election = Election.ONLINE,
) -> PartitionChangeRecord | None:
    """Elects a leader among `isr`; returns what changes of the partition, None if nothing does."""
    leader = _elected(partition, electorate, isr, election)
    recovery = SAME_STATE
    # The last one stays in sync: an empty set would say that nobody knows what was acknowledged.
    isr = isr or partition.isr
    if leader == NO_LEADER and election is Election.ONLINE and _may_be_unclean(topic):
        leader = next(
            (node for node in partition.replicas if electorate.may_lead(node, partition)), NO_LEADER
        )
        if leader != NO_LEADER:
            isr = (leader,)
            recovery = _RECOVERING if partition.leader_recovery_state != _RECOVERING else SAME_STATE
    if leader == partition.leader and isr == partition.isr:
        return None
    return PartitionChangeRecord(
        partition_id=partition.partition,
        topic_id=topic.topic_id,
        leader=SAME_LEADER if leader == partition.leader else leader,
        isr=None if isr == partition.isr else isr,
        leader_recovery_state=recovery,
    )


def _elected(
    partition: PartitionImage, electorate: Electorate, isr: Replicas, election: Election
) -> NodeId:
    candidates = [
        node for node in partition.replicas if node in isr and electorate.may_lead(node, partition)
    ]
    if partition.leader in candidates and not (
        election is Election.PREFERRED and candidates[0] == partition.replicas[0]
    ):
        return partition.leader
    return candidates[0] if candidates else NO_LEADER


def _may_be_unclean(topic: TopicImage) -> bool:
    return is_true(topic.properties, UNCLEAN_ELECTIONS)
