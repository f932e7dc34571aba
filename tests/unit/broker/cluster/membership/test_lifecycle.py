"""What Kafka's BrokerLifecycleManagerTest promises of the state of a broker."""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.cluster.membership.lifecycle import (
    CAUGHT_UP_MS,
    FIRST_SHUTDOWN_MS,
    BrokerLifecycle,
    BrokerState,
    Registration,
    RegistrationRefused,
    features_of,
)
from strandline.broker.cluster.metadata.features import CLAIMED
from strandline.broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from strandline.broker.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    RegisteringListener,
)
from strandline.broker.protocol.schema.errors import ErrorCode

HEARTBEAT_MS = 2000
DIRS = (uuid.UUID(int=9), uuid.UUID(int=7))
OFFSET = 41


def lifecycle() -> BrokerLifecycle:
    return BrokerLifecycle(
        registration=Registration(
            node_id=1,
            cluster_id="x4AJGXQSRnephtTZzujw4w",
            incarnation_id=uuid.UUID(int=5),
            listeners=[
                RegisteringListener(name="CLIENTS", host="h", port=9092, security_protocol=0)
            ],
            features=features_of(CLAIMED.items()),
            rack="r",
            log_dirs=DIRS,
            previous_epoch=17,
        ),
        heartbeat_ms=HEARTBEAT_MS,
    )


def registered() -> BrokerLifecycle:
    broker = lifecycle()
    assert broker.registered(BrokerRegistrationResponse(broker_epoch=1000)) == 0
    return broker


def running() -> BrokerLifecycle:
    broker = registered()
    assert broker.heard(BrokerHeartbeatResponse(is_caught_up=True)) == CAUGHT_UP_MS
    broker.is_ready = True
    broker.heard(BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False))
    assert broker.state is BrokerState.RUNNING
    return broker


def heartbeat(broker: BrokerLifecycle) -> BrokerHeartbeatRequest:
    request = broker.next_request(OFFSET)
    assert isinstance(request, BrokerHeartbeatRequest)
    return request


def test_a_broker_whose_logs_lack_something_registers_as_another_process() -> None:
    broker = registered()
    broker.heard(BrokerHeartbeatResponse(is_caught_up=True))
    broker.begin_anew(uuid.UUID(int=6))
    request = broker.next_request(OFFSET)
    assert isinstance(request, BrokerRegistrationRequest)
    assert (request.incarnation_id, request.previous_broker_epoch) == (uuid.UUID(int=6), -1)
    assert request.log_dirs == sorted(DIRS)
    # What was on its way then is no answer to that.
    broker.heard(BrokerHeartbeatResponse(is_caught_up=True))
    assert not broker.is_registered
    assert broker.registered(BrokerRegistrationResponse(broker_epoch=1001)) == 0
    assert heartbeat(broker).broker_epoch == 1001
    assert heartbeat(broker).want_fence


def test_a_broker_registers_with_its_folders_features_and_last_epoch() -> None:
    request = lifecycle().next_request(OFFSET)
    assert isinstance(request, BrokerRegistrationRequest)
    assert request.log_dirs == sorted(DIRS)
    assert request.previous_broker_epoch == 17
    assert (request.broker_id, request.rack) == (1, "r")
    levels = {one.name: one for one in request.features}
    assert levels["kraft.version"].min_supported_version == 0
    assert levels["metadata.version"].max_supported_version >= 29
    assert not {"share.version", "streams.version"} & levels.keys()


def test_a_successful_registration_is_followed_by_a_heartbeat_at_once() -> None:
    broker = registered()
    assert broker.epoch == 1000
    request = heartbeat(broker)
    assert (request.broker_epoch, request.current_metadata_offset) == (1000, OFFSET)
    assert request.want_fence
    assert not request.want_shut_down


def test_a_registration_beside_a_living_one_is_tried_again() -> None:
    broker = lifecycle()
    refused = BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    assert broker.registered(refused) == HEARTBEAT_MS
    assert broker.epoch == -1
    again = broker.next_request(OFFSET)
    assert isinstance(again, BrokerRegistrationRequest)
    assert again.incarnation_id == uuid.UUID(int=5)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ],
)
def test_a_refusal_that_stays_ends_the_start(code: ErrorCode) -> None:
    with pytest.raises(RegistrationRefused, match=code.name):
        lifecycle().registered(BrokerRegistrationResponse(error_code=code))


def test_a_broker_leads_when_it_has_caught_up_is_ready_and_was_unfenced() -> None:
    broker = registered()
    broker.heard(BrokerHeartbeatResponse(is_caught_up=False))
    assert broker.state is BrokerState.STARTING
    broker.heard(BrokerHeartbeatResponse(is_caught_up=True))
    assert broker.state is BrokerState.RECOVERY
    assert heartbeat(broker).want_fence
    broker.is_ready = True
    assert not heartbeat(broker).want_fence
    broker.heard(BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True))
    assert broker.state is BrokerState.RECOVERY
    assert broker.heard(BrokerHeartbeatResponse(is_fenced=False)) == HEARTBEAT_MS
    assert broker.state is BrokerState.RUNNING


def test_a_controlled_shutdown_waits_for_the_controller() -> None:
    broker = running()
    broker.begin_shutdown()
    assert broker.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
    assert heartbeat(broker).want_shut_down
    assert broker.heard(BrokerHeartbeatResponse(is_fenced=False)) == FIRST_SHUTDOWN_MS
    assert broker.heard(BrokerHeartbeatResponse(is_fenced=False)) == HEARTBEAT_MS
    assert not broker.is_over
    broker.heard(BrokerHeartbeatResponse(should_shut_down=True))
    assert broker.is_over


def test_a_broker_that_leads_nothing_yet_shuts_down_at_once() -> None:
    for broker in (lifecycle(), registered()):
        broker.begin_shutdown()
        assert broker.is_over


def test_a_refused_heartbeat_changes_nothing() -> None:
    broker = running()
    refused = BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, is_fenced=True)
    assert broker.heard(refused) == HEARTBEAT_MS
    assert broker.state is BrokerState.RUNNING


def test_a_broker_that_the_controller_does_not_know_any_more_stops_without_it() -> None:
    broker = running()
    broker.begin_shutdown()
    broker.heard(BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER, is_fenced=True))
    assert not broker.is_over
    broker.heard(BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, is_fenced=True))
    assert broker.is_over


def test_failed_folders_are_told_with_every_heartbeat_from_then_on() -> None:
    broker = running()
    broker.offline_dirs |= {DIRS[0]}
    assert heartbeat(broker).offline_log_dirs == [DIRS[0]]
    broker.heard(BrokerHeartbeatResponse(is_fenced=False))
    broker.offline_dirs |= {DIRS[1]}
    assert heartbeat(broker).offline_log_dirs == sorted(DIRS)


def test_a_second_registration_has_the_same_incarnation_and_another_epoch() -> None:
    broker = running()
    assert broker.note_folders(are_missing=True)
    request = broker.next_request(OFFSET)
    assert isinstance(request, BrokerRegistrationRequest)
    assert request.incarnation_id == uuid.UUID(int=5)
    broker.registered(BrokerRegistrationResponse(broker_epoch=1200))
    assert heartbeat(broker).broker_epoch == 1200
    assert broker.state is BrokerState.RUNNING


def test_missing_folders_are_registered_once_until_the_metadata_have_had_them() -> None:
    """Port of BrokerRegistrationTrackerTest: only where they are wanted, and there are none."""
    broker = running()
    assert not broker.note_folders(are_missing=False)
    assert broker.note_folders(are_missing=True)
    broker.registered(BrokerRegistrationResponse(broker_epoch=1200))
    # The record of the registration has not come yet.
    assert not broker.note_folders(are_missing=True)
    assert not broker.note_folders(are_missing=False)
    assert broker.note_folders(are_missing=True)


def test_a_broker_that_is_not_registered_yet_registers_with_its_folders_anyway() -> None:
    broker = lifecycle()
    assert not broker.note_folders(are_missing=True)
