"""What changes of a partition, and who leads it then. As Kafka's PartitionChangeBuilderTest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from strandline.broker.cluster.metadata.image import NO_LEADER, PartitionImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.controller.partitions.change import (
    RECOVERING,
    Election,
    PartitionTarget,
    Rules,
    change_of,
)
from strandline.broker.protocol.formats.metadata_records import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    PartitionChangeRecord,
)
from tests.unit.broker.controller.cluster_of_brokers import TOPIC_ID, folder

# Three replicas in sync, of which the second leads.
THREE = PartitionImage(
    partition=0,
    leader=1,
    leader_epoch=100,
    partition_epoch=200,
    replicas=(2, 1, 3),
    isr=(2, 1, 3),
    directories=(folder(2), folder(1), UNASSIGNED_DIRECTORY),
)
# 4 comes, and 1, which leads, goes.
REASSIGNED = PartitionImage(
    partition=0,
    leader=1,
    leader_epoch=100,
    partition_epoch=200,
    replicas=(1, 2, 3, 4),
    isr=(1, 2, 3),
    adding_replicas=(4,),
    removing_replicas=(1,),
    directories=(UNASSIGNED_DIRECTORY, folder(2), folder(3), folder(4)),
)
NOT_3 = Rules(may_lead=lambda node: node != 3, min_isr=2)


def four(**what: Any) -> PartitionImage:
    """Four replicas in sync, of which the first leads; and what is different."""
    values: dict[str, Any] = {
        "leader": 1,
        "replicas": (1, 2, 3, 4),
        "isr": (1, 2, 3, 4),
        "directories": (UNASSIGNED_DIRECTORY,) * 4,
    }
    return PartitionImage(partition=0, leader_epoch=100, partition_epoch=200, **(values | what))


def rules(may_lead: Callable[[NodeId], bool], min_isr: int = 3) -> Rules:
    return Rules(may_lead=may_lead, min_isr=min_isr)


def changed(
    partition: PartitionImage, rules: Rules, target: PartitionTarget | None = None
) -> dict[str, Any] | None:
    """The fields that a record names; None if there is none."""
    record = change_of(TOPIC_ID, partition, target or PartitionTarget(), rules)
    if record is None:
        return None
    nothing = PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID)
    return {
        name: getattr(record, name)
        for name in (
            "isr",
            "leader",
            "replicas",
            "removing_replicas",
            "adding_replicas",
            "leader_recovery_state",
            "directories",
            "eligible_leader_replicas",
            "last_known_elr",
        )
        if getattr(record, name) != getattr(nothing, name)
    }


def merged(partition: PartitionImage, rules: Rules, target: PartitionTarget) -> PartitionImage:
    record = change_of(TOPIC_ID, partition, target, rules)
    assert record is not None
    return partition.changed_by(record)


# --- elections -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "leader"),
    [
        (PartitionTarget(election=Election.PREFERRED), 2),
        (PartitionTarget(), 1),
        (PartitionTarget(election=Election.UNCLEAN), 1),
        (PartitionTarget(isr=(1, 3)), 1),
        (PartitionTarget(isr=(1, 3), election=Election.UNCLEAN), 1),
        (PartitionTarget(isr=(3,)), NO_LEADER),
        (PartitionTarget(isr=(3,), election=Election.UNCLEAN), 2),
        (PartitionTarget(isr=(4,), replicas=(2, 1, 3, 4), election=Election.UNCLEAN), 4),
    ],
)
def test_the_leader_stays_if_it_can_and_else_the_first_in_sync_leads(
    target: PartitionTarget, leader: int
) -> None:
    fields = changed(THREE, NOT_3, target) or {}
    assert fields.get("leader", THREE.leader) == leader


@pytest.mark.parametrize("election", Election)
def test_a_leader_in_sync_stays_although_the_first_replica_is_not(election: Election) -> None:
    partition = PartitionImage(
        partition=0, leader=3, leader_epoch=1, replicas=(2, 1, 3), isr=(1, 3)
    )
    assert changed(partition, rules(lambda _: True, 2), PartitionTarget(election=election)) is None


@pytest.mark.parametrize("partition", [THREE, REASSIGNED])
@pytest.mark.parametrize("election", [Election.ONLINE, Election.UNCLEAN])
def test_nothing_to_change_is_no_record(partition: PartitionImage, election: Election) -> None:
    assert changed(partition, NOT_3, PartitionTarget(election=election)) is None


def test_an_unclean_leader_alone_is_in_sync_and_recovers() -> None:
    target = PartitionTarget(isr=(3,), election=Election.UNCLEAN)
    assert changed(THREE, NOT_3, target) == {"isr": (2,), "leader": 2, "leader_recovery_state": 1}
    offline = PartitionImage(
        partition=0,
        leader=NO_LEADER,
        leader_epoch=100,
        replicas=(2, 1, 3),
        isr=(),
        eligible_leader_replicas=(3,),
        last_known_elr=(2,),
    )
    only_1 = rules(lambda node: node == 1, 2)
    for isr in (None, (2,)):
        assert changed(offline, only_1, PartitionTarget(isr=isr, election=Election.UNCLEAN)) == {
            "isr": (1,),
            "leader": 1,
            "leader_recovery_state": 1,
            "eligible_leader_replicas": (),
            "last_known_elr": (),
        }


def test_a_leader_that_recovers_still_does_after_it_was_away() -> None:
    partition = four(isr=(1,), leader_recovery_state=RECOVERING)
    gone = merged(partition, rules(lambda _: False, 1), PartitionTarget(isr=()))
    assert (gone.leader, gone.leader_recovery_state) == (NO_LEADER, RECOVERING)
    back = merged(gone, rules(lambda _: True, 1), PartitionTarget())
    assert (back.leader, back.isr, back.leader_recovery_state) == (1, (1,), RECOVERING)


# --- epochs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "rises"),
    [
        (PartitionTarget(isr=(2, 1)), 0),
        (PartitionTarget(isr=(2, 1, 3, 4), replicas=(2, 1, 3, 4)), 0),
        (PartitionTarget(replicas=(3, 2, 1)), 0),
        (PartitionTarget(replicas=(2, 1, 4)), 1),
        (PartitionTarget(isr=(2, 3)), 1),
    ],
)
def test_the_leaders_epoch_rises_with_an_election_and_when_a_replica_goes(
    target: PartitionTarget, rises: int
) -> None:
    after = merged(THREE, NOT_3, target)
    assert (after.leader_epoch, after.partition_epoch) == (100 + rises, 201)


def test_another_set_in_sync_alone_names_no_leader() -> None:
    assert changed(THREE, NOT_3, PartitionTarget(isr=(2, 1))) == {"isr": (2, 1)}
    assert changed(THREE, NOT_3, PartitionTarget(isr=(2, 3))) == {"isr": (2, 3), "leader": 2}


# --- reassignments -------------------------------------------------------------------------------


def test_another_order_of_the_replicas_is_complete_at_once() -> None:
    assert changed(THREE, NOT_3, PartitionTarget(replicas=(3, 2, 1))) == {
        "replicas": (3, 2, 1),
        "directories": (UNASSIGNED_DIRECTORY, folder(2), folder(1)),
    }


def test_a_reassignment_is_complete_when_all_new_replicas_are_in_sync() -> None:
    assert changed(REASSIGNED, NOT_3, PartitionTarget(isr=(1, 2, 3, 4))) == {
        "replicas": (2, 3, 4),
        "isr": (2, 3, 4),
        "leader": 2,
        "adding_replicas": (),
        "removing_replicas": (),
        "directories": (folder(2), folder(3), folder(4)),
    }


def test_a_cancelled_reassignment_takes_the_new_replica_away() -> None:
    target = PartitionTarget(isr=(1, 2, 3), replicas=(1, 2, 3), adding=(), removing=())
    assert changed(REASSIGNED, NOT_3, target) == {
        "replicas": (1, 2, 3),
        "leader": 1,
        "adding_replicas": (),
        "removing_replicas": (),
        "directories": (UNASSIGNED_DIRECTORY, folder(2), folder(3)),
    }


def test_replicas_that_only_go_are_gone_at_once() -> None:
    assert changed(THREE, NOT_3, PartitionTarget(replicas=(1, 2, 3), removing=(3,))) == {
        "replicas": (1, 2),
        "isr": (2, 1),
        "leader": 1,
        "directories": (folder(1), folder(2)),
    }


def test_a_replica_that_comes_is_one_from_now_on() -> None:
    assert changed(THREE, NOT_3, PartitionTarget(replicas=(1, 2, 3, 4), adding=(4,))) == {
        "replicas": (1, 2, 3, 4),
        "adding_replicas": (4,),
        "directories": (folder(1), folder(2), UNASSIGNED_DIRECTORY, UNASSIGNED_DIRECTORY),
    }


def test_a_leader_that_goes_leads_no_longer_although_nobody_else_can() -> None:
    partition = PartitionImage(
        partition=0,
        leader=0,
        leader_epoch=0,
        replicas=(2, 3, 0, 1),
        isr=(0, 1),
        adding_replicas=(2, 3),
        removing_replicas=(0, 1),
        directories=(folder(2), folder(3), folder(0), folder(1)),
    )
    fields = changed(partition, rules(lambda _: False, 2), PartitionTarget(isr=(0, 1, 2, 3)))
    assert fields is not None
    assert (fields["replicas"], fields["isr"], fields["leader"]) == ((2, 3), (2, 3), NO_LEADER)


# --- log folders ---------------------------------------------------------------------------------


def test_replicas_keep_their_folders_and_new_ones_get_the_usual_one() -> None:
    partition = PartitionImage(
        partition=0,
        leader=1,
        leader_epoch=1,
        replicas=(2, 1, 3),
        isr=(2, 1, 3),
        directories=(folder(2), folder(1), folder(3)),
    )
    with_default = Rules(may_lead=lambda _: True, min_isr=2, default_directory=folder)
    target = PartitionTarget(replicas=(3, 1, 5, 4), directories={5: folder(55)})
    fields = changed(partition, with_default, target)
    assert fields == {
        "leader": 1,
        "replicas": (3, 1, 5, 4),
        "directories": (folder(3), folder(1), folder(55), folder(4)),
    }
    named = PartitionTarget(directories={3: folder(33), 1: LOST_DIRECTORY})
    assert changed(partition, with_default, named) == {
        "directories": (folder(2), LOST_DIRECTORY, folder(33))
    }


def test_a_partition_of_old_records_gets_no_folders_by_the_way() -> None:
    partition = PartitionImage(partition=0, leader=1, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    usual = Rules(may_lead=lambda _: True, min_isr=1, default_directory=folder)
    assert changed(partition, usual, PartitionTarget(isr=(1,))) == {"isr": (1,)}


# --- eligible leader replicas --------------------------------------------------------------------


def test_who_leaves_below_the_minimum_in_sync_stays_eligible() -> None:
    fields = changed(four(), rules(lambda node: node != 3), PartitionTarget(isr=(1, 2)))
    assert fields == {"isr": (1, 2), "eligible_leader_replicas": (3, 4)}


def test_who_leaves_above_the_minimum_is_not_eligible() -> None:
    assert changed(four(), rules(lambda _: True, 2), PartitionTarget(isr=(1, 2))) == {"isr": (1, 2)}


def test_nobody_is_eligible_once_enough_are_in_sync() -> None:
    partition = four(isr=(1, 2), eligible_leader_replicas=(3,))
    fields = changed(partition, rules(lambda node: node != 3), PartitionTarget(isr=(1, 2, 3)))
    assert fields == {"isr": (1, 2, 3), "eligible_leader_replicas": ()}


def test_another_one_in_sync_leaves_the_eligible_ones() -> None:
    partition = four(isr=(1,), eligible_leader_replicas=(3,))
    fields = changed(partition, rules(lambda node: node != 3), PartitionTarget(isr=(1, 4)))
    assert fields == {"isr": (1, 4)}


def test_who_ended_uncleanly_is_not_eligible() -> None:
    partition = four(isr=(1,), eligible_leader_replicas=(2, 3))
    fields = changed(partition, rules(lambda node: node != 3), PartitionTarget(crashed=3))
    assert fields == {"eligible_leader_replicas": (2,)}


def test_a_partition_that_has_fewer_replicas_than_the_minimum_waits_for_no_one_else() -> None:
    """Its leader acknowledges what all of them have; who is gone has nothing of that."""
    target = PartitionTarget(replicas=(1, 2, 3, 4), removing=(3, 4))
    after = merged(four(), rules(lambda _: True), target)
    assert (after.replicas, after.isr, after.eligible_leader_replicas) == ((1, 2), (1, 2), ())


def test_who_is_no_replica_any_more_is_not_eligible() -> None:
    """Its log is dropped. It would have nothing if it became a replica again."""
    partition = four(isr=(1, 4), eligible_leader_replicas=(2,), adding_replicas=(4,))
    target = PartitionTarget(isr=(1,), replicas=(1, 2, 3), adding=())
    after = merged(partition, rules(lambda _: True), target)
    assert (after.isr, after.eligible_leader_replicas) == ((1,), (2,))


def test_an_eligible_replica_leads_when_nobody_is_in_sync() -> None:
    partition = four(isr=(1,), eligible_leader_replicas=(3,))
    for election in (Election.ONLINE, Election.PREFERRED):
        fields = changed(
            partition, rules(lambda node: node != 1), PartitionTarget(isr=(), election=election)
        )
        assert fields == {"isr": (3,), "leader": 3, "eligible_leader_replicas": (1,)}


def test_the_set_in_sync_may_become_empty_and_the_last_leader_is_noted() -> None:
    nobody = rules(lambda _: False)
    fields = changed(four(), nobody, PartitionTarget(isr=(), election=Election.PREFERRED))
    assert fields == {
        "isr": (),
        "leader": NO_LEADER,
        "eligible_leader_replicas": (1, 2, 3, 4),
        "last_known_elr": (1,),
    }
    offline = merged(four(), nobody, PartitionTarget(isr=()))
    # It is noted once.
    assert changed(offline, nobody, PartitionTarget(crashed=2)) == {
        "eligible_leader_replicas": (1, 3, 4)
    }


def test_a_leader_that_cannot_lead_is_noted_although_it_is_in_sync() -> None:
    partition = four(isr=(1,), eligible_leader_replicas=(2,))
    assert changed(partition, rules(lambda _: False)) == {
        "leader": NO_LEADER,
        "last_known_elr": (1,),
    }


@pytest.mark.parametrize("election", [Election.ONLINE, Election.PREFERRED])
def test_the_last_leader_leads_again_when_nobody_is_eligible(election: Election) -> None:
    partition = four(leader=NO_LEADER, isr=(), last_known_elr=(1,))
    fields = changed(partition, rules(lambda _: True), PartitionTarget(election=election))
    assert fields == {
        "isr": (1,),
        "leader": 1,
        "leader_recovery_state": 1,
        "last_known_elr": (),
    }


def test_the_last_leader_waits_for_those_who_are_eligible() -> None:
    partition = four(leader=NO_LEADER, isr=(), eligible_leader_replicas=(3,), last_known_elr=(1,))
    assert changed(partition, rules(lambda node: node != 3)) is None


@pytest.mark.parametrize("election", Election)
def test_a_last_leader_that_is_away_does_not_lead(election: Election) -> None:
    partition = four(leader=NO_LEADER, isr=(), last_known_elr=(1,))
    assert changed(partition, rules(lambda _: False), PartitionTarget(election=election)) is None


def test_a_clean_leader_clears_the_note_of_the_last_one() -> None:
    partition = four(leader=NO_LEADER, isr=(), eligible_leader_replicas=(2, 3), last_known_elr=(1,))
    fields = changed(partition, rules(lambda node: node == 3))
    assert fields == {
        "isr": (3,),
        "leader": 3,
        "eligible_leader_replicas": (2,),
        "last_known_elr": (),
    }


def test_a_leaderless_partition_that_loses_a_replica_notes_nobody() -> None:
    partition = four(leader=NO_LEADER, isr=(), eligible_leader_replicas=(3,))
    target = PartitionTarget(replicas=(1, 3, 4))
    fields = changed(partition, rules(lambda _: False), target)
    assert fields is not None
    assert fields["leader"] == NO_LEADER
    assert "last_known_elr" not in fields
