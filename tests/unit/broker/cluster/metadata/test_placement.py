"""Which brokers hold replicas: ours to choose, or the request's to name."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.cluster.metadata.controller_messages import (
    NewTopic,
    Refusal,
    ReplicaAssignment,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.placement import UsableBroker, place, usable_brokers
from strandline.broker.protocol.formats.metadata_records import (
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    MetadataRecord,
    PartitionRecord,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.cluster.controlled import (
    assigned,
    create,
    refusal,
    registered,
    with_brokers,
)


class JavaRandom:
    """Java's bounded numbers over the generator of Kafka's tests, whose placements are known."""

    def __init__(self) -> None:
        self._state = 17

    def __call__(self, count: int) -> int:
        while True:
            self._state = (self._state * 2862933555777941757 + 3037000493) % 2**64
            bits = self._state >> 33
            if count & (count - 1) == 0:
                return count * bits >> 31
            if bits - bits % count + count - 1 < 2**31:
                return bits % count


def brokers(*node_ids: int, rack: str | None = None, fenced: bool = False) -> list[UsableBroker]:
    return [UsableBroker(node_id, rack, fenced) for node_id in node_ids]


def test_partitions_are_striped_over_the_brokers_and_shuffled_when_all_led_once() -> None:
    placed = place(5, 4, brokers(3, 0, 4, 2) + brokers(1, fenced=True), pick=JavaRandom())
    assert placed == ((3, 4, 0, 2), (4, 0, 2, 3), (0, 2, 3, 4), (2, 3, 4, 0), (0, 4, 3, 2))
    assert place(5, 3, brokers(0, 3, 2, 1), pick=JavaRandom()) == (
        (2, 3, 0),
        (3, 0, 1),
        (0, 1, 2),
        (1, 2, 3),
        (1, 0, 2),
    )


def test_a_fenced_broker_gets_a_replica_only_where_no_other_is_left_and_leads_nothing() -> None:
    placed = place(4, 3, brokers(3, 2) + brokers(1, fenced=True), pick=JavaRandom())
    assert placed == ((3, 2, 1), (2, 3, 1), (3, 2, 1), (2, 3, 1))
    assert place(3, 1, brokers(0) + brokers(1, fenced=True)) == ((0,), (0,), (0,))


def test_replicas_go_over_the_racks_before_a_rack_gets_a_second_one() -> None:
    racks = [
        *brokers(11, 10, rack="1"),
        *brokers(30, 31, rack="3"),
        *brokers(21, rack="2"),
        *brokers(20, rack="2", fenced=True),
    ]
    assert place(3, 4, racks, pick=JavaRandom()) == (
        (11, 21, 31, 10),
        (21, 30, 10, 20),
        (31, 11, 21, 30),
    )


def test_a_rack_without_an_unfenced_broker_leads_nothing_and_gets_its_replicas() -> None:
    racks = [
        *brokers(11, 10, rack="1"),
        *brokers(30, 31, rack="3", fenced=True),
        *brokers(20, 21, rack="2", fenced=True),
        *brokers(41, rack="4"),
        *brokers(40, rack="4", fenced=True),
    ]
    assert place(3, 4, racks, pick=JavaRandom()) == (
        (41, 11, 21, 30),
        (10, 20, 31, 41),
        (41, 21, 30, 11),
    )


def test_many_partitions_meet_every_pair_of_brokers() -> None:
    counts = Counter(place(200, 2, brokers(0, 1, 2, 3), pick=JavaRandom()))
    assert counts == {
        (0, 1): 14,
        (0, 2): 22,
        (0, 3): 14,
        (1, 0): 17,
        (1, 2): 17,
        (1, 3): 16,
        (2, 0): 13,
        (2, 1): 17,
        (2, 3): 20,
        (3, 0): 20,
        (3, 1): 19,
        (3, 2): 11,
    }


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1),
    st.integers(1, 6),
    st.integers(1, 12),
    st.randoms(use_true_random=False),
)
def test_every_placement_has_distinct_brokers_and_an_unfenced_leader(
    kinds: list[tuple[str | None, bool]], factor: int, count: int, chance: Random
) -> None:
    all_brokers = [UsableBroker(node, rack, fenced) for node, (rack, fenced) in enumerate(kinds)]
    unfenced = {one.node_id for one in all_brokers if not one.fenced}
    if factor > len(all_brokers) or not unfenced:
        with pytest.raises(Refusal):
            place(count, factor, all_brokers, pick=chance.randrange)
        return
    racks = {one.node_id: one.rack for one in all_brokers}
    for replicas in place(count, factor, all_brokers, pick=chance.randrange):
        assert len(set(replicas)) == factor
        assert replicas[0] in unfenced
        # No rack has two while another one, which has a broker, has none.
        used = Counter(racks[node] for node in replicas)
        assert max(used.values()) == 1 or set(used) == set(racks.values())


@pytest.mark.parametrize(
    ("factor", "known", "message"),
    [
        (1, brokers(10, 11, rack="1", fenced=True), "All brokers are currently fenced."),
        (
            3,
            brokers(10, 11, rack="1"),
            "The target replication factor of 3 cannot be reached because only 2 broker(s) are"
            " registered.",
        ),
    ],
)
def test_what_cannot_be_placed_is_refused(
    factor: int, known: list[UsableBroker], message: str
) -> None:
    with pytest.raises(Refusal) as refused:
        place(1, factor, known)
    assert refused.value.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert refused.value.message == (
        f"Unable to replicate the partition {factor} time(s): {message}"
    )


def partitions_of(records: Sequence[MetadataRecord]) -> list[PartitionRecord]:
    return [one for one in records if isinstance(one, PartitionRecord)]


def test_a_replica_on_a_fenced_broker_is_not_in_sync_and_another_one_leads() -> None:
    image = with_brokers(1, 2).apply_entry([registered(3, fenced=True)])
    topic = NewTopic(name="a", assignments=assigned((3, 2, 1)))
    (made,) = partitions_of(create(topic, image=image).records)
    assert (made.replicas, made.isr, made.leader) == ((3, 2, 1), (2, 1), 2)
    assert refusal(NewTopic(name="a", assignments=assigned((1,), (3,))), image=image) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "All brokers specified in the manual partition assignment for partition 1 are fenced or in"
        " controlled shutdown.",
    )


def test_a_broker_that_shuts_down_gets_no_replica() -> None:
    leaving = registered(2).replaced(in_controlled_shutdown=True)
    image = with_brokers(1).apply_entry([leaving, registered(3, fenced=True)])
    assert usable_brokers(image) == [UsableBroker(1), UsableBroker(3, None, fenced=True)]
    topic = NewTopic(name="a", partition_count=4, replication_factor=1)
    assert {one.replicas for one in partitions_of(create(topic, image=image).records)} == {(1,)}


def test_the_only_log_folder_of_a_broker_is_that_of_its_new_replicas() -> None:
    one, two = uuid.UUID(int=500), uuid.UUID(int=501)
    image = MetadataImage().apply_entry(
        [
            registered(1).replaced(log_dirs=[one]),
            registered(2).replaced(log_dirs=[one, two]),
            registered(3),
        ]
    )
    topic = NewTopic(name="a", assignments=assigned((1, 2, 3)))
    (made,) = partitions_of(create(topic, image=image).records)
    assert made.directories == (one, UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY)


def test_an_assignment_to_this_broker_is_taken_in_any_order() -> None:
    decision = create(NewTopic(name="a", assignments=tuple(reversed(assigned((1,), (1,))))))
    (result,) = decision.results
    assert (result.error_code, result.partition_count, result.replication_factor) == (0, 2, 1)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (assigned((2,)), "includes broker 2, but no such broker is registered."),
        (assigned((1,), ()), "includes an empty replica list."),
        (assigned((1, 1)), "includes the broker 1 more than once."),
        (
            (ReplicaAssignment(partition=1, replicas=(1,)),),
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            (ReplicaAssignment(partition=-1, replicas=(1,)),),
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            assigned((1,)) + assigned((1,)),
            "Found multiple manual partition assignments for partition 0",
        ),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(
    assignments: tuple[ReplicaAssignment, ...], message: str
) -> None:
    code, found = refusal(NewTopic(name="a", assignments=assignments))
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert found is not None
    assert message in found


def test_partitions_with_unequal_replicas_are_refused() -> None:
    code, message = refusal(NewTopic(name="a", assignments=assigned((1, 2), (2,))), nodes=(1, 2))
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert message == (
        "The manual partition assignment includes a partition with 1 replica(s), but this is not"
        " consistent with previous partitions, which have 2 replica(s)."
    )


@pytest.mark.parametrize(
    ("topic", "what"),
    [
        (
            NewTopic(name="a", assignments=assigned((1,)), replication_factor=1),
            "replication factor",
        ),
        (NewTopic(name="a", assignments=assigned((1,)), partition_count=1), "numPartitions"),
    ],
)
def test_an_assignment_and_a_count_exclude_each_other(topic: NewTopic, what: str) -> None:
    assert refusal(topic) == (
        ErrorCode.INVALID_REQUEST,
        f"A manual partition assignment was specified, but {what} was not set to -1.",
    )
