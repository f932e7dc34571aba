"""What a heartbeat makes of a broker."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.controller.heartbeats import (
    BrokerControlState,
    Standing,
    beat,
    fence,
    next_state,
    unregister,
)
from strandline.broker.controller.messages import (
    BrokerHeartbeatAnswer,
    FenceBroker,
    UnregisterBroker,
)
from strandline.broker.controller.sessions import BrokerSessions
from strandline.broker.protocol.formats.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from strandline.broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.controller.cluster_of_brokers import (
    TOPIC_ID,
    broker,
    carried_out,
    cluster,
    eligible,
    folder,
    heartbeat,
    in_sync,
    leaders,
    partitions_of,
)

FENCED, UNFENCED = BrokerControlState.FENCED, BrokerControlState.UNFENCED
HANDS_OVER, MAY_END = BrokerControlState.CONTROLLED_SHUTDOWN, BrokerControlState.SHUTDOWN_NOW


def standing(*, fenced: bool = False, shutdown_at: int | None = None, lowest: int = 98) -> Standing:
    return Standing(
        is_fenced=fenced, registered_at=100, shutdown_at=shutdown_at, lowest_active=lowest
    )


@pytest.mark.parametrize(
    ("before", "asked", "leads", "following"),
    [
        (standing(fenced=True), heartbeat(shut_down=True), True, MAY_END),
        (standing(fenced=True), heartbeat(at=100), False, UNFENCED),
        (standing(fenced=True), heartbeat(at=99), False, FENCED),
        (standing(fenced=True), heartbeat(at=100, fence=True), False, FENCED),
        (standing(), heartbeat(), True, UNFENCED),
        (standing(), heartbeat(at=0), True, UNFENCED),
        (standing(), heartbeat(fence=True), True, FENCED),
        (standing(), heartbeat(shut_down=True), True, HANDS_OVER),
        (standing(), heartbeat(shut_down=True), False, MAY_END),
        (standing(), heartbeat(shut_down=True, fence=True), True, MAY_END),
        (standing(shutdown_at=99), heartbeat(shut_down=True), True, HANDS_OVER),
        (standing(shutdown_at=99), heartbeat(shut_down=True), False, HANDS_OVER),
        (standing(shutdown_at=99, lowest=99), heartbeat(shut_down=True), False, MAY_END),
        (standing(shutdown_at=99, lowest=99), heartbeat(shut_down=True), True, HANDS_OVER),
    ],
)
def test_a_broker_moves_from_state_to_state(
    before: Standing, asked: BrokerHeartbeatRequest, leads: bool, following: BrokerControlState
) -> None:
    assert next_state(before, asked, lambda: leads) is following


class World:
    """An image and the sessions beside it, moved by what is decided."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.sessions = BrokerSessions(image, timeout_s=9, now_s=0)

    def beat(self, asked: BrokerHeartbeatRequest) -> BrokerHeartbeatAnswer:
        after, (answer,) = carried_out(
            self.image, lambda partitions: beat(partitions, asked, self.sessions)
        )
        if after is not self.image:
            self.sessions.follow(MetadataDelta(self.image, after), after)
            self.image = after
        if answer.error_code is ErrorCode.NONE:
            self.sessions.note_progress(asked.broker_id, asked.current_metadata_offset)
            if answer.in_controlled_shutdown:
                self.sessions.note_shutdown(asked.broker_id, self.image.next_offset)
        return answer


def states(answer: BrokerHeartbeatAnswer) -> tuple[bool, bool, bool]:
    return answer.is_caught_up, answer.is_fenced, answer.should_shut_down


def test_a_registered_broker_is_unfenced_when_it_has_reached_its_registration() -> None:
    world = World(cluster(broker(1, 100, fenced=True)))
    assert states(world.beat(heartbeat(1, 100, at=99))) == (False, True, False)
    assert world.image.brokers[1].fenced
    assert states(world.beat(heartbeat(1, 100, at=100))) == (True, False, False)
    assert not world.image.brokers[1].fenced
    before = world.image
    assert states(world.beat(heartbeat(1, 100, at=101))) == (True, False, False)
    assert world.image is before


def test_a_heartbeat_of_an_earlier_registration_is_stale() -> None:
    world = World(cluster(broker(1, 100)))
    for node, epoch in ((1, 99), (2, 100)):
        answer = world.beat(heartbeat(node, epoch))
        assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_an_unfenced_broker_leads_its_only_replicas_again() -> None:
    world = World(cluster(broker(1), broker(2), partitions=[(1,), (2,)]))
    world.beat(heartbeat(1, fence=True))
    assert leaders(world.image) == [-1, 2]
    assert world.image.brokers[1].fenced
    world.beat(heartbeat(1))
    assert leaders(world.image) == [1, 2]


def test_a_broker_that_leads_ends_when_the_others_know_its_successors() -> None:
    world = World(cluster(broker(1), broker(2), partitions=[(1, 2)]))
    world.beat(heartbeat(2, at=5))
    assert states(world.beat(heartbeat(1, shut_down=True))) == (True, False, False)
    assert world.image.brokers[1].in_controlled_shutdown
    assert (leaders(world.image), in_sync(world.image)) == ([2], [(2,)])
    moved_at = world.image.next_offset
    assert not world.beat(heartbeat(1, shut_down=True)).should_shut_down
    world.beat(heartbeat(2, at=moved_at - 1))
    assert not world.beat(heartbeat(1, shut_down=True)).should_shut_down
    world.beat(heartbeat(2, at=moved_at))
    assert states(world.beat(heartbeat(1, shut_down=True))) == (True, True, True)
    assert world.image.brokers[1].fenced


def test_a_broker_with_the_only_replicas_ends_without_a_successor() -> None:
    world = World(cluster(broker(1), partitions=[(1,), (1,)]))
    assert not world.beat(heartbeat(1, shut_down=True)).should_shut_down
    assert leaders(world.image) == [-1, -1]
    assert world.beat(heartbeat(1, shut_down=True)).should_shut_down
    assert (in_sync(world.image), eligible(world.image)) == ([(), ()], [(1,), (1,)])


def test_a_broker_that_leads_nothing_or_is_fenced_may_end_at_once() -> None:
    world = World(cluster(broker(1), broker(2, fenced=True), partitions=[(3,)]))
    assert world.beat(heartbeat(1, shut_down=True)).should_shut_down
    assert world.image.brokers[1].fenced
    before = world.image
    assert world.beat(heartbeat(2, shut_down=True)).should_shut_down
    assert world.image is before


def test_a_shutdown_that_a_new_controller_hears_of_begins_once_more() -> None:
    image = cluster(broker(1, shuts_down=True), broker(2), partitions=[(1, 2)])
    decision = beat(partitions_of(image), heartbeat(1, shut_down=True), World(image).sessions)
    assert not any(isinstance(one, BrokerRegistrationChangeRecord) for one in decision.records)
    assert leaders(image.apply_entry(decision.records)) == [2]


def test_a_broker_that_hands_over_ends_under_a_new_controller_when_the_others_know_it() -> None:
    world = World(cluster(broker(1, shuts_down=True), broker(2), partitions=[(2, 1)]))
    assert states(world.beat(heartbeat(1, shut_down=True))) == (True, False, False)
    world.beat(heartbeat(2, at=world.image.next_offset))
    assert world.beat(heartbeat(1, shut_down=True)).should_shut_down


# --- log folders ---------------------------------------------------------------------------------


def with_two_folders() -> World:
    two = broker(1, log_dirs=[folder(1), folder(2)])
    image = cluster(two, broker(3), partitions=[(1, 3), (1, 3), (1,)])
    return World(
        image.apply_entry(
            [
                PartitionChangeRecord(
                    partition_id=number, topic_id=TOPIC_ID, directories=directories
                )
                for number, directories in enumerate(
                    ([folder(1), folder(3)], [folder(2), folder(3)], [folder(2)])
                )
            ]
        )
    )


def test_what_was_in_a_folder_that_failed_has_another_leader() -> None:
    world = with_two_folders()
    world.beat(heartbeat(1, offline=[folder(2)]))
    assert leaders(world.image) == [1, 3, -1]
    assert in_sync(world.image) == [(1, 3), (3,), ()]
    assert world.image.brokers[1].log_dirs == [folder(1)]
    before = world.image
    world.beat(heartbeat(1, offline=[folder(2)]))
    assert world.image is before


def test_a_broker_that_comes_back_leads_nothing_in_a_folder_that_failed_meanwhile() -> None:
    world = with_two_folders()
    world.beat(heartbeat(1, fence=True))
    assert leaders(world.image) == [3, 3, -1]
    world.beat(heartbeat(1, offline=[folder(2)]))
    assert leaders(world.image) == [3, 3, -1]
    assert not world.image.brokers[1].fenced


# --- the end of a session ------------------------------------------------------------------------


def test_a_broker_is_fenced_when_its_session_ends() -> None:
    image = cluster(broker(1, 100), broker(2), partitions=[(1,), (1, 2), (2, 1)])
    after, _ = carried_out(image, lambda partitions: fence(partitions, FenceBroker(1, 100)))
    assert after.brokers[1].fenced
    assert leaders(after) == [-1, 2, 2]
    assert in_sync(after) == [(), (2,), (2,)]
    assert fence(partitions_of(after), FenceBroker(1, 100)).records == ()


def test_the_end_of_an_earlier_session_fences_nobody() -> None:
    image = cluster(broker(1, 100))
    assert fence(partitions_of(image), FenceBroker(1, 99)).records == ()
    assert fence(partitions_of(image), FenceBroker(5, 99)).records == ()


def test_an_unregistered_broker_is_gone_and_leads_nothing() -> None:
    image = cluster(broker(1, 100), broker(2), partitions=[(1, 2), (1,)])
    after, _ = carried_out(image, lambda partitions: unregister(partitions, UnregisterBroker(1)))
    assert set(after.brokers) == {2}
    assert leaders(after) == [2, -1]
    (missing,) = unregister(partitions_of(after), UnregisterBroker(1)).results
    assert missing.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert missing.error_message == "Broker ID 1 is not currently registered"
