"""Which brokers hold replicas: ours to choose, or the request's to name."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.controller_messages import NewTopic, ReplicaAssignment
from strandline.broker.protocol.formats.metadata_records import PartitionRecord
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.cluster.controlled import (
    assigned,
    create,
    refusal,
    registered,
    with_brokers,
)


def test_leaders_go_round_the_brokers() -> None:
    decision = create(NewTopic(name="a", partition_count=4, replication_factor=2), nodes=(3, 1, 2))
    placed = [one.replicas for one in decision.records if isinstance(one, PartitionRecord)]
    assert placed == [(1, 2), (2, 3), (3, 1), (1, 2)]


def test_a_fenced_broker_gets_no_replicas_but_may_be_named() -> None:
    image = with_brokers(1, 2).apply_entry([registered(3, fenced=True)])
    decision = create(NewTopic(name="a", partition_count=4, replication_factor=2), image=image)
    placed = [one.replicas for one in decision.records if isinstance(one, PartitionRecord)]
    assert placed == [(1, 2), (2, 1), (1, 2), (2, 1)]
    named = create(NewTopic(name="a", assignments=assigned((3, 1))), image=image)
    assert named.results[0].error_code == ErrorCode.NONE


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
