"""Where partitions are. As Kafka's BrokersToIsrsTest."""

from __future__ import annotations

import uuid

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.controller.partitions.index import PartitionIndex
from strandline.broker.protocol.formats.metadata_records import (
    MetadataRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
)
from tests.unit.broker.controller.cluster_of_brokers import TOPIC_ID, broker, cluster, folder

OTHER = uuid.UUID(int=0xB)


def change(number: int, **what: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=number, topic_id=TOPIC_ID, **what)  # type: ignore[arg-type]


class Followed:
    """An image and its index."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.index = PartitionIndex.of(image)

    def apply(self, *records: MetadataRecord) -> None:
        before, self.image = self.image, self.image.apply_entry(records)
        self.index.follow(MetadataDelta(before, self.image), self.image)
        assert self.lists() == Followed(self.image).lists()

    def lists(self) -> list[object]:
        """What an index says, in no order."""
        index = self.index
        return [
            *(set(index.in_sync(node)) for node in range(5)),
            *(set(index.eligible(node)) for node in range(5)),
            *(set(index.in_folder(folder(node))) for node in range(5)),
            *(index.leads_any(node) for node in range(5)),
            set(index.leaderless()),
            set(index.not_preferred()),
            set(index.reassigned()),
        ]


def followed() -> Followed:
    return Followed(cluster(*map(broker, (1, 2, 3)), partitions=[(1, 2), (2, 3), (3, 1)]))


def test_partitions_are_found_by_those_in_sync() -> None:
    world = followed()
    assert world.index.in_sync(1) == [(TOPIC_ID, 0), (TOPIC_ID, 2)]
    assert world.index.in_sync(4) == []
    world.apply(change(0, isr=[2], leader=2), change(1, isr=[2, 3, 1]))
    assert set(world.index.in_sync(1)) == {(TOPIC_ID, 1), (TOPIC_ID, 2)}


def test_a_broker_leads_as_long_as_one_partition_has_it_as_leader() -> None:
    world = followed()
    assert [world.index.leads_any(node) for node in (1, 2, 3, 4)] == [True, True, True, False]
    world.apply(change(0, leader=2))
    assert not world.index.leads_any(1)
    world.apply(change(2, leader=1))
    assert [world.index.leads_any(node) for node in (1, 2, 3)] == [True, True, False]


def test_partitions_without_a_leader_and_with_another_than_the_first_are_known() -> None:
    world = followed()
    assert (world.index.leaderless(), world.index.not_preferred()) == ([], [])
    world.apply(change(0, leader=-1, isr=[], eligible_leader_replicas=[1, 2]), change(1, leader=3))
    assert world.index.leaderless() == [(TOPIC_ID, 0)]
    assert world.index.not_preferred() == [(TOPIC_ID, 0), (TOPIC_ID, 1)]
    assert world.index.eligible(2) == [(TOPIC_ID, 0)]
    world.apply(change(0, leader=1, isr=[1], eligible_leader_replicas=[2]))
    assert world.index.leaderless() == []
    assert world.index.not_preferred() == [(TOPIC_ID, 1)]


def test_partitions_that_are_reassigned_or_in_a_folder_are_known() -> None:
    world = followed()
    world.apply(
        change(0, adding_replicas=[3]),
        change(1, removing_replicas=[2]),
        change(2, directories=[folder(3), folder(1)]),
    )
    assert world.index.reassigned() == [(TOPIC_ID, 0), (TOPIC_ID, 1)]
    assert world.index.in_folder(folder(3)) == [(TOPIC_ID, 2)]
    world.apply(change(0, adding_replicas=[]), change(2, directories=[folder(4), folder(1)]))
    assert world.index.reassigned() == [(TOPIC_ID, 1)]
    assert world.index.in_folder(folder(3)) == []


def test_topics_come_and_go() -> None:
    world = followed()
    world.apply(*topic_records("u", OTHER, ((1, 3),), {}))
    assert world.index.in_sync(1) == [(TOPIC_ID, 0), (TOPIC_ID, 2), (OTHER, 0)]
    world.apply(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert world.index.in_sync(1) == [(OTHER, 0)]
    assert not world.index.leads_any(2)


def test_changes_that_come_twice_count_once() -> None:
    world = followed()
    before = world.image
    world.apply(change(0, isr=[2], leader=2))
    world.image = world.image.apply_entry([change(0, isr=[1, 2], leader=1)])
    # A follower that failed gets the first change again, with the second one.
    world.index.follow(MetadataDelta(before, world.image), world.image)
    assert world.lists() == followed().lists()
    world.image = world.image.apply_entry([change(0, isr=[1])])
    world.index.follow(MetadataDelta(before, world.image), world.image)
    assert world.lists() == Followed(world.image).lists()
