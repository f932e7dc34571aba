"""Sessions of brokers: when they were heard, and how far they are."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.controller.sessions import EVERYWHERE, BrokerSessions, Session
from strandline.broker.protocol.formats.metadata_records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    UnregisterBrokerRecord,
)
from tests.unit.broker.controller.cluster_of_brokers import NO_BROKERS, broker, cluster

FENCED = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=0, fenced=1)


def sessions_of(image: MetadataImage, now_s: float = 0) -> BrokerSessions:
    return BrokerSessions(image, timeout_s=10, now_s=now_s)


def moved(
    sessions: BrokerSessions, image: MetadataImage, *records: MetadataRecord
) -> MetadataImage:
    """The sessions follow one more entry."""
    after = image.apply_entry(records)
    sessions.follow(MetadataDelta(image, after), after)
    return after


# --- sessions ------------------------------------------------------------------------------------


def test_nobody_has_a_session_before_it_is_heard() -> None:
    sessions = sessions_of(NO_BROKERS)
    assert sessions.session((1, 100), 0) is Session.NONE
    assert sessions.heard_s((1, 100)) is None
    sessions.heard((1, 100), 3)
    assert sessions.heard_s((1, 100)) == 3
    assert sessions.session((1, 100), 3) is Session.ALIVE


def test_a_session_is_that_of_one_registration() -> None:
    sessions = sessions_of(NO_BROKERS)
    for registration in ((0, 0), (1, 100), (2, 200)):
        sessions.heard(registration, 0)
    assert sessions.session((2, 200), 1) is Session.ALIVE
    assert sessions.session((2, 100), 1) is Session.NONE
    assert sessions.session((3, 300), 1) is Session.NONE


def test_a_session_lasts_for_its_time_and_no_longer() -> None:
    sessions = sessions_of(NO_BROKERS)
    sessions.heard((1, 100), 5)
    assert sessions.session((1, 100), 15) is Session.ALIVE
    assert sessions.session((1, 100), 15.001) is Session.NONE
    assert sessions.expire(15) is None
    assert sessions.expire(15.001) == (1, 100)


def test_sessions_expire_one_by_one_and_only_the_late_ones() -> None:
    sessions = sessions_of(NO_BROKERS)
    assert sessions.expire(100) is None
    for registration in ((0, 0), (1, 100), (2, 200)):
        sessions.heard(registration, 0)
    sessions.heard((1, 100), 5)
    assert {sessions.expire(11), sessions.expire(11)} == {(0, 0), (2, 200)}
    assert sessions.expire(11) is None
    assert sessions.session((1, 100), 11) is Session.ALIVE


def test_unfenced_brokers_have_a_session_from_the_beginning_of_the_controller() -> None:
    sessions = sessions_of(cluster(broker(1), broker(2, fenced=True)), now_s=7)
    assert sessions.heard_s((1, 0)) == 7
    assert sessions.heard_s((2, 0)) is None


def test_a_broker_has_no_connection_before_its_first_heartbeat_to_a_controller() -> None:
    sessions = sessions_of(cluster(broker(1)), now_s=7)
    assert sessions.session((1, 0), 17) is Session.UNCONNECTED
    sessions.heard((1, 0), 8)
    assert sessions.session((1, 0), 8) is Session.ALIVE


def test_a_closed_connection_is_remembered_until_the_next_heartbeat() -> None:
    sessions = sessions_of(cluster(broker(1)))
    sessions.closed((1, 0))
    assert sessions.session((1, 0), 1) is Session.UNCONNECTED
    sessions.heard((1, 0), 2)
    assert sessions.session((1, 0), 2) is Session.ALIVE
    sessions.closed((1, 0))
    assert sessions.session((1, 0), 13) is Session.NONE


def test_the_connection_of_an_earlier_process_says_nothing_of_the_present_one() -> None:
    sessions = sessions_of(cluster(broker(1)))
    sessions.heard((1, 8), 1)
    sessions.closed((1, 0))
    sessions.closed((5, 0))
    assert sessions.session((1, 8), 1) is Session.ALIVE


def test_a_new_registration_ends_the_session_of_the_one_before() -> None:
    image = cluster(broker(1), broker(2))
    sessions = sessions_of(image)
    moved(sessions, image, broker(1, 50, fenced=True))
    assert sessions.heard_s((1, 0)) is None
    assert sessions.heard_s((2, 0)) == 0


# --- progress ------------------------------------------------------------------------------------


def test_the_slowest_active_broker_says_what_all_have_reached() -> None:
    image = cluster(*map(broker, range(4)), broker(4, fenced=True))
    sessions = sessions_of(image)
    assert sessions.lowest_active(image.brokers.values()) == -1
    for node, reached in enumerate((100, 100, 98, 100, 5)):
        sessions.note_progress(node, reached)
    assert sessions.lowest_active(image.brokers.values()) == 98
    sessions.note_shutdown(2, 0)
    assert sessions.lowest_active(image.brokers.values()) == 100


def test_without_an_active_broker_nobody_is_behind() -> None:
    image = cluster(broker(1, fenced=True))
    assert sessions_of(image).lowest_active(image.brokers.values()) == EVERYWHERE


def test_where_a_shutdown_ends_is_said_once() -> None:
    sessions = sessions_of(cluster(broker(1), broker(2)))
    assert sessions.shutdown_at(1) is None
    sessions.note_shutdown(1, 98)
    sessions.note_shutdown(1, 99)
    sessions.note_shutdown(2, 101)
    assert (sessions.shutdown_at(1), sessions.shutdown_at(2)) == (98, 101)


@pytest.mark.parametrize(
    "record",
    [FENCED, broker(1, 50, fenced=True), UnregisterBrokerRecord(broker_id=1, broker_epoch=0)],
)
def test_a_broker_that_was_fenced_registered_or_removed_shuts_down_no_longer(
    record: MetadataRecord,
) -> None:
    image = cluster(broker(1), broker(2))
    sessions = sessions_of(image)
    sessions.note_shutdown(1, 5)
    sessions.note_shutdown(2, 5)
    moved(sessions, image, record)
    assert sessions.shutdown_at(1) is None
    assert sessions.shutdown_at(2) == 5


def test_a_registration_is_reached_at_the_offset_of_its_record() -> None:
    image = cluster(broker(1))
    sessions = sessions_of(image)
    image = moved(sessions, image, broker(1, 50, fenced=True))
    assert sessions.registered_at(image.brokers[1]) == 50
    sessions.note_registration(1, 57)
    assert sessions.registered_at(image.brokers[1]) == 57
