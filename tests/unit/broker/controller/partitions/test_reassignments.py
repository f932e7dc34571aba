"""Other replicas for partitions. As the half of ReplicationControlManagerTest about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage, PartitionImage
from strandline.broker.cluster.metadata.records import Replicas
from strandline.broker.controller.heartbeats import fence
from strandline.broker.controller.messages import FenceBroker
from strandline.broker.controller.partitions import turns
from strandline.broker.controller.partitions.change import Election
from strandline.broker.controller.partitions.elections import elect_leaders
from strandline.broker.controller.partitions.in_sync import alter
from strandline.broker.controller.partitions.messages import (
    AlterInSync,
    ElectLeaders,
    ListReassignments,
    PartitionNumber,
    ReassignPartitions,
    WantedInSync,
)
from strandline.broker.controller.partitions.reassignments import list_reassignments, reassign
from strandline.broker.protocol.formats.metadata_records import PartitionChangeRecord
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.controller.cluster_of_brokers import (
    NO_DEFAULTS,
    TOPIC_ID,
    broker,
    carried_out,
    cluster,
    first,
    folder,
    in_sync,
    partitions_of,
)


def brokers(*partitions: Replicas) -> MetadataImage:
    """Five brokers."""
    return cluster(*map(broker, range(5)), partitions=partitions)


def asked(
    image: MetadataImage,
    replicas: Mapping[int, Replicas | None],
    *,
    factor: bool = True,
    defaults: Mapping[str, str] = NO_DEFAULTS,
) -> tuple[MetadataImage, list[ErrorCode], list[str | None]]:
    """Asks for replicas of partitions of `t`; returns codes and messages."""
    wanted: dict[PartitionNumber, Replicas | None] = {
        ("t", number): nodes for number, nodes in replicas.items()
    }
    request = ReassignPartitions(replicas=wanted, allows_other_factor=factor)
    after, (result,) = carried_out(image, lambda one: reassign(one, request), defaults=defaults)
    assert list(result.outcomes) == list(wanted)
    outcomes = result.outcomes.values()
    return after, [one.error_code for one in outcomes], [one.error_message for one in outcomes]


def on_the_way(partition: PartitionImage) -> tuple[Replicas, Replicas, Replicas]:
    return partition.replicas, partition.adding_replicas, partition.removing_replicas


def test_a_partition_whose_brokers_are_gone_for_good_gets_others_at_once() -> None:
    """Nobody is left that they could copy: they begin with what the archive has."""
    image = cluster(*map(broker, (1, 2)), partitions=[(0,), (0, 3), (0, 1)])
    image = image.apply_entry(
        PartitionChangeRecord(partition_id=number, topic_id=TOPIC_ID, leader=-1, isr=[0])
        for number in range(3)
    )
    epochs = [one.leader_epoch for one in image.topics["t"].partitions]
    after, codes, _ = asked(image, {0: (2,), 1: (1, 2), 2: (2,)})
    assert codes == [ErrorCode.NONE] * 3
    first_one, second, third = after.topics["t"].partitions
    assert (first_one.replicas, first_one.leader, first_one.isr) == ((2,), 2, (2,))
    assert (second.replicas, second.leader, second.isr) == ((1, 2), 1, (1,))
    assert on_the_way(first_one)[1:] == on_the_way(second)[1:] == ((), ())
    assert [first_one.leader_epoch, second.leader_epoch] == [epochs[0] + 1, epochs[1] + 1]
    assert third.leader == -1, "the broker of one of its replicas is registered, and may be back"


def test_who_cannot_lead_takes_over_nothing() -> None:
    image = cluster(broker(1).replaced(fenced=True), broker(2), partitions=[(0,)])
    image = image.apply_entry(
        [PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=-1, isr=[0])]
    )
    after, codes, _ = asked(image, {0: (1,)})
    assert codes == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert after.topics["t"].partitions[0].replicas == (0,)


def listed(
    image: MetadataImage, partitions: Sequence[PartitionNumber] | None = None
) -> dict[str, list[int]]:
    (found,) = list_reassignments(partitions_of(image), ListReassignments(partitions)).results
    return {name: [one.partition for one in ongoing] for name, ongoing in found.items()}


def synced(image: MetadataImage, *isr: int, number: int = 0) -> tuple[MetadataImage, ErrorCode]:
    """After the leader has said who is in sync."""
    partition = image.topics["t"].partitions[number]
    request = AlterInSync(
        node_id=partition.leader,
        broker_epoch=0,
        wanted=[
            WantedInSync(
                place=(TOPIC_ID, number),
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                isr=[(node, -1) for node in isr],
            )
        ],
    )
    after, (answer,) = carried_out(image, lambda one: alter(one, request))
    (result,) = answer.results.values()
    return after, result.error_code


def test_a_reassignment_goes_on_until_the_new_replicas_are_in_sync() -> None:
    image = brokers((1, 2, 3), (3, 2, 1))
    assert listed(image) == {}
    image, codes, messages = asked(image, {0: (3, 2, 1), 1: (0, 2, 1), 2: (0, 2, 1)})
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert messages[2] == "Unable to find partition t:2."
    moved = image.topics["t"].partitions[1]
    assert on_the_way(first(image)) == ((3, 2, 1), (), ())
    assert on_the_way(moved) == ((0, 2, 1, 3), (0,), (3,))
    assert moved.directories[0] == folder(0)
    assert (moved.leader, moved.leader_epoch) == (3, 0)
    assert listed(image) == {"t": [1]}
    assert listed(image, [("t", 0), ("u", 0), ("t", 7)]) == {}
    assert listed(image, [("t", 0), ("t", 1)]) == {"t": [1]}
    image, code = synced(image, 3, 0, 2, 1, number=1)
    assert code is ErrorCode.NEW_LEADER_ELECTED
    moved = image.topics["t"].partitions[1]
    assert (on_the_way(moved), moved.isr, moved.leader) == (((0, 2, 1), (), ()), (0, 2, 1), 0)
    assert listed(image) == {}


def test_a_cancelled_one_leaves_no_trace_but_a_new_epoch() -> None:
    image = brokers((3, 2, 1), (1, 2))
    begun, _, _ = asked(image, {0: (0, 2, 1)})
    begun, _ = synced(begun, 3, 2, 1)
    after, codes, messages = asked(begun, {0: None, 1: None, 2: None})
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert messages[1] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS.message
    # As Kafka: those that stay keep their place in the new order.
    assert on_the_way(first(after)) == ((2, 1, 3), (), ())
    assert (first(after).leader, first(after).leader_epoch) == (3, 1)


def test_unknown_topics_and_brokers_and_no_replicas_are_refused() -> None:
    image = brokers((1, 2), (1, 2), (1, 2))
    after, codes, messages = asked(image, {0: (5, 6), 1: (), 2: (2, 2)})
    assert after is image
    assert codes == [ErrorCode.INVALID_REPLICA_ASSIGNMENT] * 3
    assert messages == [
        "The manual partition assignment includes broker 5, but no such broker is registered.",
        "The manual partition assignment includes an empty replica list.",
        "The manual partition assignment includes the broker 2 more than once.",
    ]
    request = ReassignPartitions(replicas={("u", 0): (1,)})
    (result,) = reassign(partitions_of(image), request).results
    (outcome,) = result.outcomes.values()
    assert (outcome.error_code, outcome.error_message) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "Unable to find a topic named u.",
    )


def test_replicas_that_only_come_or_only_go_make_more_or_fewer() -> None:
    image = brokers((4, 3, 2), (1, 2, 3))
    image, codes, _ = asked(image, {0: (1, 2, 3, 4, 0), 1: (1, 2)})
    assert codes == [ErrorCode.NONE] * 2
    more, fewer = image.topics["t"].partitions
    assert on_the_way(more) == ((1, 2, 3, 4, 0), (0, 1), ())
    # Nobody is waited for: it is complete, and readers of the third replica have to know.
    assert (on_the_way(fewer), fewer.isr) == (((1, 2), (), ()), (1, 2))
    assert (fewer.leader, fewer.leader_epoch) == (1, 1)
    image, code = synced(image, 4, 3, 2, 1, 0)
    assert code is ErrorCode.NONE
    assert on_the_way(first(image)) == ((1, 2, 3, 4, 0), (), ())


def test_another_number_of_replicas_can_be_forbidden() -> None:
    image = brokers((0, 1, 2), (0, 1, 2), (0, 1, 2))
    wanted: dict[int, Replicas | None] = {0: (1, 2, 3), 1: (0, 1), 2: (0, 1, 2, 3)}
    image, codes, messages = asked(image, wanted, factor=False)
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    ]
    assert messages[1:] == [
        "The replication factor is changed from 3 to 2",
        "The replication factor is changed from 3 to 4",
    ]
    # While one goes on, what counts is how many there will be.
    _, (code,), (message,) = asked(image, {0: (0, 1)}, factor=False)
    assert (code, message) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "The replication factor is changed from 3 to 2",
    )
    assert asked(image, {0: (0, 2, 3)}, factor=False)[1] == [ErrorCode.NONE]
    assert asked(image, {0: None}, factor=False)[1] == [ErrorCode.NONE]


def test_a_second_reassignment_takes_the_place_of_the_first() -> None:
    image = cluster(*map(broker, range(6)), partitions=[(0, 1)])
    image, _, _ = asked(image, {0: (2, 3)})
    image, _ = synced(image, 0, 1, 2)
    election = ElectLeaders(election=Election.PREFERRED, partitions=[("t", 0)])
    image, _ = carried_out(image, lambda one: elect_leaders(one, election))
    assert first(image).leader == 2
    image, _, _ = asked(image, {0: (4, 5)})
    assert on_the_way(first(image)) == ((4, 5, 0, 1, 2, 3), (4, 5), (0, 1, 2, 3))
    assert first(image).leader == 2
    image, code = synced(image, 0, 1, 2, 3, 4, 5)
    assert code is ErrorCode.NEW_LEADER_ELECTED
    assert (on_the_way(first(image)), first(image).leader) == (((4, 5), (), ()), 4)


def test_a_replica_that_was_to_go_stays_if_it_is_wanted_again() -> None:
    image = brokers((1, 2, 3))
    image, _, _ = asked(image, {0: (4, 2, 3)})
    image, _, _ = asked(image, {0: (1, 2, 3, 4)})
    assert on_the_way(first(image)) == ((1, 2, 3, 4), (4,), ())
    image, _ = synced(image, 1, 2, 3, 4)
    assert on_the_way(first(image)) == ((1, 2, 3, 4), (), ())


def test_a_cancel_that_would_lose_records_has_to_be_allowed() -> None:
    image = brokers((1, 2))
    image, _, _ = asked(image, {0: (3, 4)})
    # Only one that comes is in sync.
    image = image.apply_entry(
        [PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[3], leader=3)]
    )
    after, (code,), (message,) = asked(image, {0: None})
    assert (after is image, code) == (True, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    assert message == (
        "Unable to revert partition assignment for t:0 because it would require an unclean leader"
        " election."
    )
    allowed = {"unclean.leader.election.enable": "true"}
    after, codes, _ = asked(image, {0: None}, defaults=allowed)
    assert codes == [ErrorCode.NONE]
    assert (on_the_way(first(after)), in_sync(after)) == (((1, 2), (), ()), [(1,)])
    assert first(after).leader == 1


def test_replicas_that_were_taken_away_and_come_again_do_not_lead_before_they_have_all() -> None:
    """What the only replica acknowledged meanwhile is nowhere else."""
    image = cluster(*map(broker, range(5)), partitions=[(1, 2, 3)] * 2, min_insync_replicas="2")
    image, codes, _ = asked(image, {1: (1,)})
    assert codes == [ErrorCode.NONE]
    alone = image.topics["t"].partitions[1]
    assert (alone.replicas, alone.isr, alone.eligible_leader_replicas) == ((1,), (1,), ())
    image, _, _ = asked(image, {1: (1, 2, 3)})
    image, _ = carried_out(image, lambda one: fence(one, FenceBroker(1, 0)))
    assert [one.leader for one in image.topics["t"].partitions] == [2, -1]


def test_a_replica_that_came_for_a_cancelled_reassignment_does_not_lead_when_it_comes_again() -> (
    None
):
    image = cluster(*map(broker, range(5)), partitions=[(1, 2, 3)], min_insync_replicas="2")
    image, _ = synced(image, 1)
    image, _, _ = asked(image, {0: (1, 4, 0)})
    image, _ = synced(image, 1, 4)
    image, _, _ = asked(image, {0: None})
    assert first(image).eligible_leader_replicas == ()
    image, _, _ = asked(image, {0: (1, 4, 0)})
    image, _ = carried_out(image, lambda one: fence(one, FenceBroker(1, 0)))
    assert first(image).leader == -1


@pytest.mark.parametrize(("order", "leader"), [((1, 2, 3), 2), ((3, 2, 1), 3)])
def test_an_unclean_election_takes_the_first_replica_that_is_there_in_an_order_of_choice(
    order: Replicas, leader: int
) -> None:
    """The controller does not know who has most records, as Kafka's does not."""
    image = cluster(*map(broker, range(5)), partitions=[(1, 2, 3)])
    image, _ = synced(image, 1)
    image, _ = carried_out(image, lambda one: fence(one, FenceBroker(1, 0)))
    image, codes, _ = asked(image, {0: order})
    assert (codes, first(image).leader) == ([ErrorCode.NONE], -1)
    election = ElectLeaders(election=Election.UNCLEAN, partitions=(("t", 0),))
    image, _ = carried_out(image, lambda one: elect_leaders(one, election))
    assert (first(image).replicas, first(image).leader) == (order, leader)


def test_many_partitions_are_reassigned_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "ITEMS_PER_TURN", 2)
    after, codes, _ = asked(brokers(*[(1, 2)] * 5), dict.fromkeys(range(5), (3, 4)))
    assert codes == [ErrorCode.NONE] * 5
    assert listed(after) == {"t": [0, 1, 2, 3, 4]}
