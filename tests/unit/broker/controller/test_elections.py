"""Who leads a partition when brokers come, go, shut down, or lose a log folder."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import Replicas
from strandline.broker.controller.elections import (
    Election,
    Electorate,
    change_of,
    elect_all,
    in_sync,
    leaderless,
    leads_any,
    not_preferred,
)
from strandline.broker.protocol.formats.metadata_records import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    PartitionChangeRecord,
)
from tests.unit.broker.controller.cluster_of_brokers import (
    TOPIC_ID,
    after,
    broker,
    cluster,
    folder,
    leaders,
)
from tests.unit.broker.controller.cluster_of_brokers import in_sync as isrs


def change(partition: int = 0, **what: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=partition, topic_id=TOPIC_ID, **what)  # type: ignore[arg-type]


def without(image: MetadataImage, node: int) -> MetadataImage:
    """After the broker has left all that it was in sync of."""
    records = elect_all(in_sync(image, node), Electorate(image, without=node), leaving=node)
    return after(image, records)


def with_(image: MetadataImage, node: int) -> MetadataImage:
    """After the broker is back."""
    return after(image, elect_all(leaderless(image), Electorate(image, with_=node)))


def test_the_only_replica_leads_again_when_its_broker_is_back() -> None:
    image = cluster(broker(1), broker(2), partitions=[(1,), (2,)])
    gone = without(image, 1)
    assert (leaders(gone), isrs(gone)) == ([-1, 2], [(1,), (2,)])
    back = with_(gone, 1)
    assert (leaders(back), isrs(back)) == ([1, 2], [(1,), (2,)])
    # An election each: clients notice both.
    first = back.topics["t"].partitions[0]
    assert (first.leader_epoch, first.partition_epoch) == (2, 2)


def test_another_broker_that_comes_leads_nothing_that_it_does_not_have() -> None:
    gone = without(cluster(broker(1), broker(2, fenced=True), partitions=[(1,)]), 1)
    assert leaders(with_(gone.apply_entry([broker(1, fenced=True)]), 2)) == [-1]


def test_the_first_replica_in_sync_leads_next() -> None:
    image = cluster(*map(broker, (1, 2, 3)), partitions=[(1, 2, 3), (3, 1, 2), (2, 3, 1)])
    gone = without(image, 1)
    assert leaders(gone) == [2, 3, 2]
    assert isrs(gone) == [(2, 3), (3, 2), (2, 3)]
    gone = without(gone, 2)
    assert leaders(gone) == [3, 3, 3]
    gone = without(gone, 3)
    assert leaders(gone) == [-1, -1, -1]
    assert isrs(gone) == [(3,), (3,), (3,)]


def test_a_shrinking_set_without_an_election_keeps_the_leaders_epoch() -> None:
    gone = without(cluster(broker(1), broker(2), partitions=[(1, 2)]), 2)
    (partition,) = gone.topics["t"].partitions
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 0, 1)


def test_a_replica_out_of_sync_leads_only_where_unclean_elections_are_allowed() -> None:
    for properties, expected in (
        ({}, (-1, (1,), 0)),
        ({"unclean_leader_election_enable": "true"}, (2, (2,), 1)),
    ):
        image = cluster(broker(1), broker(2), partitions=[(1, 2)], **properties)
        image = without(image.apply_entry([change(isr=[1])]), 1)
        (partition,) = image.topics["t"].partitions
        assert (partition.leader, partition.isr, partition.leader_recovery_state) == expected


def test_brokers_that_are_fenced_or_shut_down_are_no_candidates() -> None:
    image = cluster(
        broker(1), broker(2, fenced=True), broker(3, shuts_down=True), partitions=[(1, 2, 3)]
    )
    gone = without(image, 1)
    assert leaders(gone) == [-1]


@pytest.mark.parametrize(
    ("directory", "leader"),
    [
        (folder(2), 2),
        (UNASSIGNED_DIRECTORY, 2),
        (LOST_DIRECTORY, -1),
        (folder(77), -1),
    ],
)
def test_a_replica_in_a_folder_that_is_offline_is_no_candidate(
    directory: object, leader: int
) -> None:
    image = cluster(broker(1), broker(2), partitions=[(1, 2)])
    image = image.apply_entry([change(directories=[folder(1), directory])])
    assert leaders(without(image, 1)) == [leader]


def test_the_first_replica_leads_again_only_if_it_is_in_sync() -> None:
    image = cluster(*map(broker, (1, 2, 3)), partitions=[(1, 2), (1, 2), (1, 3), (2, 1)])
    image = without(image, 1)
    assert leaders(image) == [2, 2, 3, 2]
    image = image.apply_entry([change(0, isr=[2, 1]), change(2, isr=[3, 1])])

    def balanced(image: MetadataImage) -> MetadataImage:
        election = Election.PREFERRED
        return after(image, elect_all(not_preferred(image), Electorate(image), election=election))

    assert leaders(balanced(image)) == [1, 2, 1, 2]
    # An election of the first replicas never is an unclean one, nor takes it a leader away.
    fenced = image.apply_entry([broker(1, fenced=True)])
    assert balanced(fenced) is fenced


def test_nothing_to_change_is_no_record() -> None:
    image = cluster(broker(1), broker(2), partitions=[(1, 2)])
    topic = image.topics["t"]
    isr: Replicas = (1, 2)
    assert change_of(topic, topic.partitions[0], Electorate(image), isr=isr) is None


def test_a_broker_leads_as_long_as_one_partition_has_it_as_leader() -> None:
    image = cluster(broker(1), broker(2), partitions=[(1,), (2, 1)])
    assert leads_any(image, 1)
    assert leads_any(image, 2)
    assert not leads_any(without(image, 1), 1)
