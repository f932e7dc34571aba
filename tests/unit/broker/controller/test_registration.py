"""Which process gets a broker's id, and what becomes of the one before it."""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.controller.broker_epoch import check_epoch
from strandline.broker.controller.heartbeats import fence, unregister
from strandline.broker.controller.messages import (
    AllocateBlock,
    FenceBroker,
    Registered,
    UnregisterBroker,
)
from strandline.broker.controller.producer_ids import allocate
from strandline.broker.controller.registration import register
from strandline.broker.controller.sessions import Session
from strandline.broker.protocol.formats.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from strandline.broker.protocol.messages.broker_registration import BrokerRegistrationRequest
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.controller.cluster_of_brokers import (
    NO_BROKERS,
    broker,
    carried_out,
    cluster,
    eligible,
    folder,
    in_sync,
    incarnation,
    leaders,
    partitions_of,
    registration,
)


def refusal(
    asked: BrokerRegistrationRequest,
    image: MetadataImage = NO_BROKERS,
    session: Session = Session.NONE,
) -> tuple[ErrorCode, str | None]:
    decision = register(partitions_of(image), asked, session)
    assert not decision.records
    (result,) = decision.results
    assert result.broker_epoch == -1
    return result.error_code, result.error_message


def registered(
    asked: BrokerRegistrationRequest,
    image: MetadataImage = NO_BROKERS,
    session: Session = Session.NONE,
) -> tuple[Registered, MetadataImage]:
    after, (result,) = carried_out(image, lambda one: register(one, asked, session))
    assert result.error_code is ErrorCode.NONE, result.error_message
    return result, after


# --- what is registered --------------------------------------------------------------------------


def test_a_process_is_registered_as_it_says_fenced_and_under_a_new_epoch() -> None:
    image = NO_BROKERS
    assert image.next_offset == 2
    result, image = registered(registration(1, rack="r", log_dirs=[folder(1), folder(2)]))
    assert result.broker_epoch == 2
    record = image.brokers[1]
    assert isinstance(record, RegisterBrokerRecord)
    assert (record.broker_epoch, record.fenced, record.in_controlled_shutdown) == (2, True, False)
    assert (record.incarnation_id, record.rack) == (incarnation(1), "r")
    assert record.log_dirs == [folder(1), folder(2)]
    (listener,) = record.end_points
    assert (listener.name, listener.host, listener.port) == ("PLAINTEXT", "h", 9092)
    assert [one.name for one in record.features] == ["metadata.version", "transaction.version"]


def test_a_new_incarnation_gets_a_new_epoch_and_the_same_one_keeps_its_own() -> None:
    image = cluster(broker(1, 100), broker(2))
    _, again = registered(registration(1, rack="moved"), image, Session.ALIVE)
    assert (again.brokers[1].broker_epoch, again.brokers[1].rack) == (100, "moved")
    result, other = registered(registration(1, process=7), image)
    assert result.broker_epoch == other.brokers[1].broker_epoch == image.next_offset
    assert other.brokers[1].incarnation_id == incarnation(7)


def test_a_process_that_registers_again_stays_unfenced_and_in_its_shutdown() -> None:
    image = cluster(broker(1, 100, shuts_down=True), partitions=[(1,)])
    _, again = registered(registration(1), image, Session.ALIVE)
    record = again.brokers[1]
    assert (record.fenced, record.in_controlled_shutdown) == (False, True)
    assert leaders(again) == [1]


def test_a_new_incarnation_begins_outside_of_a_shutdown() -> None:
    image = cluster(broker(1, 100, shuts_down=True))
    _, after = registered(registration(1, process=7), image)
    assert (after.brokers[1].fenced, after.brokers[1].in_controlled_shutdown) == (True, False)


def test_what_the_predecessor_led_has_another_leader_before_the_new_process_comes() -> None:
    image = cluster(broker(1), broker(2), partitions=[(1, 2), (2, 1), (1,), (2,)])
    decision = register(partitions_of(image), registration(1, process=7), Session.NONE)
    assert isinstance(decision.records[-1], RegisterBrokerRecord)
    after = image.apply_entry(decision.records)
    assert leaders(after) == [2, 2, -1, 2]
    assert in_sync(after) == [(2,), (2,), (), (2,)]


def test_a_process_that_ended_uncleanly_is_eligible_nowhere_any_more() -> None:
    image = cluster(broker(1, 100), broker(2), partitions=[(1, 2), (1,)], min_insync_replicas="2")
    ended, _ = carried_out(image, lambda one: fence(one, FenceBroker(1, 100)))
    assert (in_sync(ended), eligible(ended)) == ([(2,), ()], [(1,), (1,)])
    for before in (image, ended):
        for previous, kept in ((100, [(1,), (1,)]), (99, [(), ()]), (-1, [(), ()])):
            asked = registration(1, process=7, previous=previous)
            _, after = registered(asked, before)
            assert (in_sync(after), eligible(after)) == ([(2,), ()], kept), previous
            assert leaders(after) == [2, -1]


def test_a_process_without_a_predecessor_is_eligible_nowhere() -> None:
    image = cluster(broker(1, 100), partitions=[(1,)])
    gone, _ = carried_out(image, lambda one: unregister(one, UnregisterBroker(1)))
    assert eligible(gone) == [(1,)]
    _, after = registered(registration(1, process=7, previous=100), gone)
    assert eligible(after) == [()]


# --- whose id it is ------------------------------------------------------------------------------


def test_a_process_of_another_cluster_is_refused() -> None:
    assert refusal(registration(cluster_id="WIjw3grwRZmR2uOpdpVXbg")) == (
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        "Expected cluster ID fPZv1VBsRFmnlRvmGcOW9w, but got cluster ID WIjw3grwRZmR2uOpdpVXbg",
    )


def test_a_second_process_is_refused_while_the_first_lives() -> None:
    image = cluster(broker(1, 100))
    other = registration(1, process=7, log_dirs=[folder(8)])
    code, message = refusal(other, image, Session.ALIVE)
    assert code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert message is not None
    assert message.startswith("Another broker is registered with that broker id.")
    registered(other, image, Session.NONE)


def test_a_broker_that_shuts_down_still_has_its_id_and_a_fenced_one_has_not() -> None:
    image = cluster(broker(1, shuts_down=True), broker(2, fenced=True))
    code, _ = refusal(registration(1, process=7), image, Session.ALIVE)
    assert code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    registered(registration(2, process=7), image, Session.NONE)


def test_a_restart_in_the_same_folders_need_not_wait_once_the_connection_is_closed() -> None:
    image = cluster(broker(1, 100))
    result, _ = registered(registration(1, process=7), image, Session.UNCONNECTED)
    assert result.broker_epoch == image.next_offset


@pytest.mark.parametrize("folders", [[folder(8)], [folder(1), folder(8)]])
def test_a_process_with_other_folders_waits_although_the_connection_is_closed(
    folders: list[uuid.UUID],
) -> None:
    code, _ = refusal(
        registration(1, process=7, log_dirs=folders), cluster(broker(1, 100)), Session.UNCONNECTED
    )
    assert code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_broker_under_zookeeper_is_refused() -> None:
    assert refusal(registration(from_zookeeper=True)) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "Controller does not support registering ZK brokers.",
    )


# --- log folders and features --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "No directories specified in request"),
        ([folder(5), uuid.UUID(int=0)], "Reserved directory ID in request"),
        ([uuid.UUID(int=99)], "Reserved directory ID in request"),
        ([folder(5), folder(5)], "Duplicate directory ID in request"),
        (
            [folder(5), folder(2)],
            f"Broker 2 is already registered with directory {folder(2)}",
        ),
    ],
)
def test_log_folders_that_no_other_broker_has_are_wanted(
    folders: list[uuid.UUID], message: str
) -> None:
    assert refusal(registration(1, log_dirs=folders), cluster(broker(2))) == (
        ErrorCode.INVALID_REGISTRATION,
        message,
    )


@pytest.mark.parametrize(
    ("features", "what"),
    [
        ({"metadata.version": (7, 24), "transaction.version": (0, 2)}, "25 of metadata.version"),
        ({"metadata.version": (26, 30), "transaction.version": (0, 2)}, "25 of metadata.version"),
        ({"metadata.version": (7, 30), "transaction.version": (0, 1)}, "2 of transaction.version"),
        ({"metadata.version": (7, 30)}, "2 of transaction.version"),
    ],
)
def test_every_finalized_level_has_to_be_known(
    features: dict[str, tuple[int, int]], what: str
) -> None:
    code, message = refusal(registration(features=features))
    assert code == ErrorCode.UNSUPPORTED_VERSION
    assert message is not None
    lowest, highest = features.get(what.partition(" of ")[2], (0, 0))
    assert message == (
        f"Unable to register because the broker does not support finalized version {what}."
        f" The broker wants a version between {lowest} and {highest}, inclusive."
    )


def test_a_feature_that_is_not_finalized_has_level_0() -> None:
    features = {"metadata.version": (7, 30), "transaction.version": (0, 2)}
    registered(registration(features={**features, "new.version": (0, 3)}))
    code, message = refusal(registration(features={**features, "new.version": (1, 3)}))
    assert code == ErrorCode.UNSUPPORTED_VERSION
    assert message is not None
    assert "finalized version 0 of new.version" in message


def test_a_registration_names_the_metadata_version() -> None:
    image = NO_BROKERS.apply_entry(
        [FeatureLevelRecord(name=name, feature_level=0) for name in NO_BROKERS.feature_levels]
    )
    assert refusal(registration(features={}), image) == (
        ErrorCode.INVALID_REGISTRATION,
        "Request features do not contain 'metadata.version'",
    )


# --- epochs --------------------------------------------------------------------------------------


def test_only_the_newest_epoch_of_a_broker_is_believed() -> None:
    image = cluster(broker(1, 100))
    assert check_epoch(image, 1, 100).broker_id == 1
    for node, epoch, message in (
        (1, 101, "Expected broker epoch 100, but got broker epoch 101"),
        (1, 99, "Expected broker epoch 100, but got broker epoch 99"),
        (2, 100, "No broker registration found for broker id 2"),
    ):
        with pytest.raises(Refusal) as refused:
            check_epoch(image, node, epoch)
        assert refused.value.error_code == ErrorCode.STALE_BROKER_EPOCH
        assert refused.value.message == message


def test_the_image_follows_a_broker_through_its_life() -> None:
    image = cluster(broker(1, 100, fenced=True))
    for change, fenced, shuts_down in (
        ({"fenced": -1}, False, False),
        ({"in_controlled_shutdown": 1}, False, True),
        ({"fenced": -1}, False, True),
        ({"fenced": 1}, True, True),
    ):
        image = image.apply_entry(
            [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=100, **change)]
        )
        record = image.brokers[1]
        assert (record.fenced, record.in_controlled_shutdown) == (fenced, shuts_down)
    image = image.apply_entry([UnregisterBrokerRecord(broker_id=1, broker_epoch=100)])
    assert not image.brokers


# --- producer ids --------------------------------------------------------------------------------


def test_a_block_of_producer_ids_is_given_once_and_to_the_newest_process() -> None:
    image = cluster(broker(1, 100), broker(2, 100))
    first: list[int] = []
    for node in (1, 2, 1):
        decision = allocate(image, AllocateBlock(node, 100))
        (block,) = decision.results
        assert block.id_count == 1000
        first.append(block.first_id)
        image = image.apply_entry(decision.records)
    assert first == [0, 1000, 2000]
    for node, epoch in ((1, 99), (9, 100)):
        decision = allocate(image, AllocateBlock(node, epoch))
        (refused,) = decision.results
        assert (refused.error_code, refused.id_count) == (ErrorCode.STALE_BROKER_EPOCH, 0)
        assert not decision.records
