"""Where the partitions of an image are: by broker, by log folder, by what they wait for.

A broker that comes or goes changes the partitions that it has, and no others are looked at. The
index follows the metadata of its controller. As Kafka's BrokersToIsrs and BrokersToElrs, and the
sets that ReplicationControlManager keeps beside them.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import TypeAlias

from strandline.broker.cluster.metadata.image import (
    NO_LEADER,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
)
from strandline.broker.cluster.metadata.records import NodeId
from strandline.storage.model import TopicId

# A partition: its topic, and its number.
Place: TypeAlias = tuple[TopicId, int]
# Places, in the order in which they came.
_Places: TypeAlias = dict[Place, None]


class PartitionIndex:
    """The places of all partitions; those of a broker or folder are listed as they are now."""

    def __init__(self) -> None:
        # The partitions that are indexed.
        self._seen: dict[TopicId, tuple[PartitionImage, ...]] = {}
        self._in_sync: dict[NodeId, _Places] = {}
        self._eligible: dict[NodeId, _Places] = {}
        self._in_folder: dict[uuid.UUID, _Places] = {}
        self._led: Counter[NodeId] = Counter()
        self._leaderless: _Places = {}
        self._not_preferred: _Places = {}
        self._reassigned: _Places = {}

    @classmethod
    def of(cls, image: MetadataImage) -> PartitionIndex:
        index = cls()
        index.follow(MetadataDelta(MetadataImage(), image), image)
        return index

    def __repr__(self) -> str:
        return f"<PartitionIndex of {len(self._seen)} topics, {len(self._leaderless)} leaderless>"

    def in_sync(self, node_id: NodeId) -> list[Place]:
        """Returns the partitions of which a broker has a replica in sync."""
        return list(self._in_sync.get(node_id, ()))

    def eligible(self, node_id: NodeId) -> list[Place]:
        """Returns the partitions of which a broker has an eligible leader replica."""
        return list(self._eligible.get(node_id, ()))

    def in_folder(self, directory: uuid.UUID) -> list[Place]:
        return list(self._in_folder.get(directory, ()))

    def leads_any(self, node_id: NodeId) -> bool:
        return self._led[node_id] > 0

    def leaderless(self) -> list[Place]:
        return list(self._leaderless)

    def not_preferred(self) -> list[Place]:
        """Returns the partitions that the first replica does not lead."""
        return list(self._not_preferred)

    def reassigned(self) -> list[Place]:
        """Returns the partitions whose reassignment goes on."""
        return list(self._reassigned)

    def follow(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        """Follows the metadata."""
        for topic in delta.topics.changed():
            self._replace(topic.topic_id, topic.partitions)
        for topic in delta.topics.gone():
            self._replace(topic.topic_id, ())

    def _replace(self, topic_id: TopicId, partitions: tuple[PartitionImage, ...]) -> None:
        before = self._seen.pop(topic_id, ())
        for number, (old, new) in enumerate(zip_longest(before, partitions)):
            if old is not new:
                place = topic_id, number
                if old is not None:
                    self._drop(place, old)
                if new is not None:
                    self._add(place, new)
        if partitions:
            self._seen[topic_id] = partitions

    def _add(self, place: Place, partition: PartitionImage) -> None:
        for places in self._sets(partition):
            places[place] = None
        self._led[partition.leader] += 1

    def _drop(self, place: Place, partition: PartitionImage) -> None:
        for places in self._sets(partition):
            places.pop(place, None)
        self._led[partition.leader] -= 1

    def _sets(self, partition: PartitionImage) -> Iterator[_Places]:
        """Yields those that a partition belongs to."""
        for node in partition.isr:
            yield self._in_sync.setdefault(node, {})
        for node in partition.eligible_leader_replicas:
            yield self._eligible.setdefault(node, {})
        for directory in partition.directories:
            yield self._in_folder.setdefault(directory, {})
        if partition.leader == NO_LEADER:
            yield self._leaderless
        if partition.leader != partition.replicas[0]:
            yield self._not_preferred
        if partition.adding_replicas or partition.removing_replicas:
            yield self._reassigned
