"""Who leads when brokers come, go and end, and when an election is asked for.

As the half of Kafka's ReplicationControlManagerTest that is about leaders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from strandline.broker.cluster.metadata.controller_messages import Decision
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import is_active
from strandline.broker.controller.heartbeats import fence
from strandline.broker.controller.messages import FenceBroker
from strandline.broker.controller.partitions import turns
from strandline.broker.controller.partitions.change import Election
from strandline.broker.controller.partitions.decided import Partitions
from strandline.broker.controller.partitions.elections import (
    balance,
    come_back,
    crash,
    elect_leaders,
    elect_uncleanly,
    leave,
)
from strandline.broker.controller.partitions.messages import ElectLeaders, PartitionNumber
from strandline.broker.protocol.formats.metadata_records import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.controller.cluster_of_brokers import (
    NO_DEFAULTS,
    TOPIC_ID,
    broker,
    carried_out,
    cluster,
    eligible,
    first,
    folder,
    in_sync,
    leaders,
    partitions_of,
)

UNCLEAN = "unclean.leader.election.enable"
NOTHING: Decision[None] = Decision(records=(), results=())


def change(partition: int = 0, **what: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=partition, topic_id=TOPIC_ID, **what)  # type: ignore[arg-type]


def without(
    image: MetadataImage, node: int, defaults: Mapping[str, str] = NO_DEFAULTS
) -> MetadataImage:
    """After the broker is fenced."""
    asked = FenceBroker(node, image.brokers[node].broker_epoch)
    return carried_out(image, lambda one: fence(one, asked), defaults=defaults)[0]


def crashed(image: MetadataImage, node: int) -> MetadataImage:
    """After the broker is known to have ended uncleanly."""
    return carried_out(image, lambda one: crash(one, node, lambda _: NOTHING))[0]


def with_(image: MetadataImage, node: int) -> MetadataImage:
    """After the broker is back."""
    registered = image.brokers[node]
    unfenced = BrokerRegistrationChangeRecord(
        broker_id=node, broker_epoch=registered.broker_epoch, fenced=-1
    )

    def back(one: Partitions) -> Decision[None]:
        return come_back(one, node, lambda _: NOTHING, first=(unfenced,))

    after, _ = carried_out(image, back)
    assert is_active(after.brokers[node])
    return after


def elected(
    image: MetadataImage, election: Election, *partitions: PartitionNumber, every: bool = False
) -> tuple[MetadataImage, dict[PartitionNumber, ErrorCode]]:
    asked = ElectLeaders(election=election, partitions=None if every else partitions)
    after, (result,) = carried_out(image, lambda one: elect_leaders(one, asked))
    return after, {place: outcome.error_code for place, outcome in result.outcomes.items()}


# --- brokers come and go -------------------------------------------------------------------------


def test_the_only_replica_leads_again_when_its_broker_is_back() -> None:
    image = cluster(broker(1), broker(2), partitions=[(1,), (2,)])
    gone = without(image, 1)
    assert (leaders(gone), in_sync(gone), eligible(gone)) == ([-1, 2], [(), (2,)], [(1,), ()])
    back = with_(gone, 1)
    assert (leaders(back), in_sync(back), eligible(back)) == ([1, 2], [(1,), (2,)], [(), ()])
    # An election each: clients notice both.
    assert (first(back).leader_epoch, first(back).partition_epoch) == (2, 2)
    assert (first(back).leader_recovery_state, first(back).last_known_elr) == (0, ())


def test_the_only_replica_leads_again_although_its_broker_ended_uncleanly() -> None:
    gone = crashed(without(cluster(broker(1), broker(2), partitions=[(1,)]), 1), 1)
    assert (leaders(gone), eligible(gone), first(gone).last_known_elr) == ([-1], [()], (1,))
    back = with_(gone, 1)
    assert (leaders(back), in_sync(back)) == ([1], [(1,)])
    # What was not synced is lost, and readers have to know.
    assert first(back).leader_recovery_state == 1


def test_another_broker_that_comes_leads_nothing_that_it_does_not_have() -> None:
    gone = without(cluster(broker(1), broker(2, fenced=True), partitions=[(1,)]), 1)
    assert leaders(with_(gone, 2)) == [-1]


def test_the_first_replica_in_sync_leads_next() -> None:
    image = cluster(*map(broker, (1, 2, 3)), partitions=[(1, 2, 3), (3, 1, 2), (2, 3, 1)])
    gone = without(image, 1)
    assert leaders(gone) == [2, 3, 2]
    assert in_sync(gone) == [(2, 3), (3, 2), (2, 3)]
    gone = without(gone, 2)
    assert leaders(gone) == [3, 3, 3]
    gone = without(gone, 3)
    assert leaders(gone) == [-1, -1, -1]
    assert (in_sync(gone), eligible(gone)) == ([()] * 3, [(3,)] * 3)


def test_a_shrinking_set_without_an_election_keeps_the_leaders_epoch() -> None:
    gone = without(cluster(broker(1), broker(2), partitions=[(1, 2)]), 2)
    partition = first(gone)
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 0, 1)


def test_who_left_below_the_minimum_in_sync_leads_first_when_all_are_gone() -> None:
    image = cluster(*map(broker, range(1, 5)), partitions=[(1, 2, 3, 4)], min_insync_replicas="3")
    for node in (1, 2, 3):
        image = without(image, node)
    assert (in_sync(image), eligible(image)) == ([(4,)], [(2, 3)])
    image = without(image, 4)
    assert (leaders(image), in_sync(image), eligible(image)) == ([-1], [()], [(2, 3, 4)])
    assert first(image).last_known_elr == (4,)
    # The first one left while enough were in sync: others may have acknowledged without it.
    image = with_(image, 1)
    assert leaders(image) == [-1]
    image = with_(image, 3)
    assert (leaders(image), in_sync(image), eligible(image)) == ([3], [(3,)], [(2, 4)])


def test_who_ended_uncleanly_is_no_candidate() -> None:
    image = cluster(*map(broker, (1, 2, 3)), partitions=[(1, 2, 3)], min_insync_replicas="2")
    image = without(without(image, 1), 2)
    assert (in_sync(image), eligible(image)) == ([(3,)], [(2,)])
    image = crashed(image, 2)
    assert (in_sync(image), eligible(image)) == ([(3,)], [()])
    image = without(image, 3)
    image = with_(image, 2)
    assert (leaders(image), eligible(image)) == ([-1], [(3,)])
    # One that is in sync leaves that, too.
    image = crashed(with_(image, 3), 3)
    assert (leaders(image), in_sync(image), eligible(image)) == ([-1], [()], [()])


@pytest.mark.parametrize(
    ("properties", "defaults", "expected"),
    [
        ({}, {}, (-1, (), 0)),
        ({"unclean_leader_election_enable": "true"}, {}, (2, (2,), 1)),
        ({}, {UNCLEAN: "true"}, (2, (2,), 1)),
        (
            {"unclean_leader_election_enable": "false"},
            {UNCLEAN: "true"},
            (-1, (), 0),
        ),
    ],
)
def test_a_replica_out_of_sync_leads_only_where_unclean_elections_are_allowed(
    properties: dict[str, str], defaults: dict[str, str], expected: object
) -> None:
    image = cluster(broker(1), broker(2), partitions=[(1, 2)], **properties)
    image = without(image.apply_entry([change(isr=[1])]), 1, defaults)
    partition = first(image)
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == expected


@pytest.mark.parametrize(
    ("properties", "defaults", "minimum"),
    [
        ({}, {}, 1),
        ({}, {"min.insync.replicas": "2"}, 2),
        ({"min_insync_replicas": "3"}, {"min.insync.replicas": "2"}, 3),
    ],
)
def test_the_minimum_in_sync_is_that_of_the_topic_or_the_default(
    properties: dict[str, str], defaults: dict[str, str], minimum: int
) -> None:
    image = cluster(*map(broker, (1, 2, 3)), partitions=[(1, 2, 3)], **properties)
    partitions = partitions_of(image, defaults)
    assert partitions.min_isr(image.topics["t"]) == minimum


def test_brokers_that_are_fenced_or_shut_down_are_no_candidates() -> None:
    image = cluster(
        broker(1), broker(2, fenced=True), broker(3, shuts_down=True), partitions=[(1, 2, 3)]
    )
    assert leaders(without(image, 1)) == [-1]


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


# --- many partitions -----------------------------------------------------------------------------


def test_many_partitions_are_changed_so_many_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "ITEMS_PER_TURN", 2)
    image = cluster(broker(1), broker(2), partitions=[(1, 2)] * 5)
    entries: list[Sequence[MetadataRecord]] = []
    gone, _ = carried_out(image, lambda one: fence(one, FenceBroker(1, 0)), entries=entries)
    assert list(map(len, entries)) == [2, 2, 2]
    # The broker is fenced when nothing depends on it any more.
    assert isinstance(entries[-1][-1], BrokerRegistrationChangeRecord)
    assert (leaders(gone), in_sync(gone)) == ([2] * 5, [(2,)] * 5)
    gone = without(gone, 2)
    assert leaders(gone) == [-1] * 5
    assert leaders(with_(gone, 2)) == [2] * 5


def test_partitions_of_others_are_not_looked_at() -> None:
    image = cluster(broker(1), broker(2), partitions=[(2,)] * 3 + [(1,)])
    looked: list[object] = []

    class Watched(Partitions):
        def get(self, place: tuple[object, int]) -> object:  # type: ignore[override]
            looked.append(place)
            return super().get(place)  # type: ignore[arg-type]

    partitions = partitions_of(image)
    watched = Watched(image=image, index=partitions.index, defaults={})
    leave(watched, 1, lambda _: NOTHING)
    assert looked == [(TOPIC_ID, 3)]


# --- elections that are asked for ----------------------------------------------------------------


def three_with_other_leaders() -> MetadataImage:
    """0: 2 leads, and the first replica is in sync again; 1: it is not; 2: it leads."""
    image = cluster(*map(broker, (1, 2, 3)), partitions=[(1, 2), (1, 2), (3, 2)])
    image = without(image, 1)
    assert leaders(image) == [2, 2, 3]
    return with_(image, 1).apply_entry([change(0, isr=[2, 1])])


def test_a_preferred_leader_is_elected_if_it_is_in_sync() -> None:
    image = three_with_other_leaders()
    after, codes = elected(
        image, Election.PREFERRED, ("t", 0), ("t", 1), ("t", 2), ("t", 3), ("u", 0), ("t", 0)
    )
    assert codes == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 2): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert leaders(after) == [1, 2, 3]


def test_an_election_for_all_answers_what_needed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "ITEMS_PER_TURN", 2)
    after, codes = elected(three_with_other_leaders(), Election.PREFERRED, every=True)
    assert codes == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    assert leaders(after) == [1, 2, 3]


def test_an_unclean_election_that_is_asked_for_needs_no_property() -> None:
    image = cluster(*map(broker, (1, 2, 3)), partitions=[(1, 2), (3, 2), (1,)])
    image = without(image.apply_entry([change(0, isr=[1])]), 1)
    assert leaders(image) == [-1, 3, -1]
    after, codes = elected(image, Election.UNCLEAN, ("t", 0), ("t", 1), ("t", 2))
    assert codes == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 2): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }
    assert (leaders(after), in_sync(after)) == ([2, 3, -1], [(2,), (3, 2), ()])
    assert (first(after).leader_recovery_state, eligible(after)) == (1, [(), (), (1,)])


def test_a_preferred_election_never_is_an_unclean_one() -> None:
    image = cluster(
        broker(1), broker(2), partitions=[(2, 1)], unclean_leader_election_enable="true"
    )
    image = image.apply_entry([change(isr=[1], leader=1), broker(1, fenced=True)])
    after, codes = elected(image, Election.PREFERRED, ("t", 0))
    # Nobody in sync can lead: that is noted, and the other one is not elected.
    assert codes == {("t", 0): ErrorCode.NONE}
    assert leaders(after) == [-1]


def test_the_first_replicas_lead_again_if_they_are_in_sync() -> None:
    image, _ = carried_out(three_with_other_leaders(), balance)
    assert leaders(image) == [1, 2, 3]
    again, _ = carried_out(image, balance)
    assert again is image


def test_leaders_are_elected_uncleanly_where_that_was_allowed_later() -> None:
    image = cluster(broker(1), broker(2), partitions=[(1, 2)])
    gone = without(image.apply_entry([change(isr=[1])]), 1)
    assert carried_out(gone, elect_uncleanly)[0] is gone
    after, _ = carried_out(gone, elect_uncleanly, defaults={UNCLEAN: "true"})
    assert leaders(after) == [2]
