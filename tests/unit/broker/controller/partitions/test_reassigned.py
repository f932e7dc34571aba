"""Replicas on their way. As Kafka's PartitionReassignmentReplicasTest and ...RevertTest."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import PartitionImage
from strandline.broker.cluster.metadata.records import Replicas
from strandline.broker.controller.partitions.reassigned import Reassignment, Revert
from strandline.broker.protocol.schema.errors import ErrorCode


def on_the_way(replicas: Replicas, adding: Replicas = (), removing: Replicas = ()) -> Reassignment:
    return Reassignment(replicas=replicas, adding=adding, removing=removing)


@pytest.mark.parametrize(
    ("current", "wanted", "expected"),
    [
        ((3, 2, 1), (3, 2, 1), on_the_way((3, 2, 1))),
        ((3, 2, 1), (3, 6, 2, 1, 5), on_the_way((3, 6, 2, 1, 5), adding=(5, 6))),
        ((3, 2, 1, 0), (3, 1), on_the_way((3, 1, 0, 2), removing=(0, 2))),
        (
            (3, 2, 1, 0),
            (7, 3, 1, 9),
            on_the_way((7, 3, 1, 9, 0, 2), adding=(7, 9), removing=(0, 2)),
        ),
        ((3, 2, 1, 0), (0, 1, 3, 2), on_the_way((0, 1, 3, 2))),
    ],
)
def test_all_old_and_new_replicas_have_the_partition_meanwhile(
    current: Replicas, wanted: Replicas, expected: Reassignment
) -> None:
    assert Reassignment.towards(current, wanted) == expected
    assert expected.is_in_progress is (set(current) != set(wanted))


@pytest.mark.parametrize(
    ("reassignment", "isr", "completed"),
    [
        # Nothing goes on.
        (on_the_way((0, 1, 2)), (0, 1, 2), None),
        # Nobody or not every new one is in sync.
        (on_the_way((3, 4, 5, 0, 1, 2), (3, 4, 5), (0, 1, 2)), (0, 1, 2), None),
        (on_the_way((3, 4, 5, 0, 1, 2), (3, 4, 5), (0, 1, 2)), (0, 1, 2, 3, 4), None),
        (on_the_way((0, 1, 3, 4, 2), (3, 4), (2,)), (3, 4), None),
        (
            on_the_way((3, 4, 5, 0, 1, 2), (3, 4, 5), (0, 1, 2)),
            (0, 1, 2, 3, 4, 5),
            ((3, 4, 5), (3, 4, 5)),
        ),
        (on_the_way((0, 1, 3, 2), (3,), (2,)), (0, 1, 2, 3), ((0, 1, 3), (0, 1, 3))),
        (on_the_way((0, 1, 3), (3,)), (3, 0, 1), ((0, 1, 3), (3, 0, 1))),
    ],
)
def test_it_is_complete_when_all_that_stay_and_come_are_in_sync(
    reassignment: Reassignment, isr: Replicas, completed: tuple[Replicas, Replicas] | None
) -> None:
    assert reassignment.complete(isr) == completed


def test_the_original_replicas_are_those_that_did_not_come() -> None:
    assert on_the_way((2, 4, 3, 1, 0), (4, 3), (0,)).original == (2, 1, 0)


def reassigned(
    replicas: Replicas, isr: Replicas, adding: Replicas = (), removing: Replicas = ()
) -> PartitionImage:
    return PartitionImage(
        partition=0,
        leader=replicas[0],
        leader_epoch=0,
        replicas=replicas,
        isr=isr,
        adding_replicas=adding,
        removing_replicas=removing,
    )


@pytest.mark.parametrize(
    ("partition", "replicas", "isr", "is_unclean"),
    [
        (reassigned((3, 2, 1), (3, 2)), (3, 2, 1), (3, 2), False),
        (reassigned((3, 2, 1), (3, 2), removing=(2, 1)), (3, 2, 1), (3, 2), False),
        (reassigned((4, 5, 3, 2, 1), (4, 5, 2), adding=(4, 5)), (3, 2, 1), (2,), False),
        (
            reassigned((4, 5, 3, 2, 1), (4, 5, 2), adding=(4, 5), removing=(2,)),
            (3, 2, 1),
            (2,),
            False,
        ),
        (
            reassigned((4, 5, 3, 2, 1), (4, 5), adding=(4, 5), removing=(2,)),
            (3, 2, 1),
            (3,),
            True,
        ),
    ],
)
def test_a_cancelled_one_has_its_first_replicas_again(
    partition: PartitionImage, replicas: Replicas, isr: Replicas, is_unclean: bool
) -> None:
    revert = Revert.of(partition)
    assert (revert.replicas, revert.isr, revert.is_unclean) == (replicas, isr, is_unclean)


def test_one_that_adds_every_replica_cannot_be_cancelled() -> None:
    with pytest.raises(Refusal) as refused:
        Revert.of(reassigned((4, 5), (4, 5), adding=(4, 5)))
    assert refused.value.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
