"""The partitions of the image that a controller decides on, with all that decides on them.

What a topic does not set itself is a default of the controller's: `min.insync.replicas`, and
`unclean.leader.election.enable`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from strandline.broker.cluster.metadata.image import MetadataImage, PartitionImage, TopicImage
from strandline.broker.cluster.metadata.records import (
    NodeId,
    default_directory,
    is_active,
    is_true,
)
from strandline.broker.controller.directories import is_online
from strandline.broker.controller.partitions.change import (
    Election,
    PartitionTarget,
    Rules,
    change_of,
)
from strandline.broker.controller.partitions.index import PartitionIndex, Place
from strandline.broker.protocol.formats.metadata_records import (
    UNASSIGNED_DIRECTORY,
    PartitionChangeRecord,
)

UNCLEAN_ELECTIONS: Final = "unclean.leader.election.enable"
MIN_ISR: Final = "min.insync.replicas"

Located: TypeAlias = tuple[TopicImage, PartitionImage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Brokers that count otherwise than they are registered: active already, or no more."""

    added: Collection[NodeId] = ()
    removed: Collection[NodeId] = ()


AS_REGISTERED: Final = Candidates()


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """An image, the index of its partitions, and the defaults of topics."""

    image: MetadataImage
    index: PartitionIndex
    defaults: Mapping[str, str]

    def at(self, image: MetadataImage) -> Partitions:
        """Returns those of a newer image, which the index has followed."""
        return replace(self, image=image)

    def find(self, place: Place) -> Located | None:
        topic_id, number = place
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None or not 0 <= number < topic.partition_count:
            return None
        return topic, topic.partitions[number]

    def get(self, place: Place) -> Located:
        """Returns a partition that is there."""
        found = self.find(place)
        assert found is not None, place
        return found

    def change(
        self, located: Located, target: PartitionTarget, candidates: Candidates = AS_REGISTERED
    ) -> PartitionChangeRecord | None:
        """Returns the record that brings a partition there; None if nothing changes."""
        topic, partition = located
        brokers = self.image.brokers

        def may_lead(node: NodeId) -> bool:
            broker = brokers.get(node)
            is_candidate = node in candidates.added or (
                is_active(broker) and node not in candidates.removed
            )
            return is_candidate and is_online(broker, directory_of(partition, node))

        rules = Rules(
            may_lead=may_lead,
            min_isr=self.min_isr(topic),
            default_directory=lambda node: default_directory(brokers.get(node)),
        )
        return change_of(topic.topic_id, partition, target, rules)

    def min_isr(self, topic: TopicImage) -> int:
        """Returns how many have to be in sync for acks=all, where there are as many replicas."""
        return int(topic.properties.get(MIN_ISR) or self.defaults.get(MIN_ISR, "1"))

    def online_election(self, topic: TopicImage) -> Election:
        """Returns how a leader is elected where one is missing: uncleanly only if allowed."""
        properties = topic.properties if UNCLEAN_ELECTIONS in topic.properties else self.defaults
        return Election.UNCLEAN if is_true(properties, UNCLEAN_ELECTIONS) else Election.ONLINE


def directory_of(partition: PartitionImage, node_id: NodeId) -> uuid.UUID:
    """Returns the log folder of a replica."""
    for node, directory in zip(partition.replicas, partition.directories, strict=False):
        if node == node_id:
            return directory
    return UNASSIGNED_DIRECTORY
