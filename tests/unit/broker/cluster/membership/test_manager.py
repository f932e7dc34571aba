"""A broker registers, lives and leaves, at a controller on a real socket."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.membership.lifecycle import (
    BrokerLifecycle,
    BrokerState,
    RegistrationRefused,
)
from strandline.broker.cluster.membership.manager import LifecycleManager
from strandline.broker.cluster.membership.quorum import Quorum
from strandline.broker.peers.peer import connect_by
from strandline.broker.peers.security import PeerSecurity
from strandline.broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from strandline.broker.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import SystemClock
from tests.support.fake_controller import Answer, FakeController
from tests.unit.broker.cluster.membership.test_lifecycle import lifecycle

CLOCK = SystemClock()
WAIT_S = 30.0
FAILED = uuid.UUID(int=9)


def alive(request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        is_caught_up=True,
        is_fenced=request.want_fence,
        should_shut_down=request.want_shut_down,
    )


def registered(_: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(broker_epoch=1000)


def living(
    work: Callable[[LifecycleManager, FakeController], Awaitable[None]],
    *,
    register: Answer = registered,
    heartbeat: Answer = alive,
    broker: BrokerLifecycle | None = None,
) -> None:
    async def run() -> None:
        answers = {ApiKey.BROKER_REGISTRATION: register, ApiKey.BROKER_HEARTBEAT: heartbeat}
        async with FakeController(answers) as controller:
            quorum = Quorum([controller.address])
            quorum.note(1, 5, controller.address)
            connect = connect_by(PeerSecurity(listener="C"), client_id="b", clock=CLOCK)
            manager = LifecycleManager(
                broker or quick(),
                ControllerChannel(quorum, connect, CLOCK, request_s_max=WAIT_S),
                CLOCK,
                metadata_offset=lambda: 41,
                failed_dirs=lambda: {FAILED},
            )
            running = asyncio.ensure_future(manager.run())
            try:
                async with asyncio.timeout(WAIT_S):
                    await work(manager, controller)
            finally:
                running.cancel()
                await asyncio.wait((running,))

    asyncio.run(run())


def quick() -> BrokerLifecycle:
    broker = lifecycle()
    broker.heartbeat_ms = 5
    return broker


def test_a_broker_registers_is_unfenced_when_it_serves_and_leaves_in_a_controlled_way() -> None:
    async def live(manager: LifecycleManager, controller: FakeController) -> None:
        assert await manager.registered() == 1000
        await manager.serve()
        assert manager.state is BrokerState.RUNNING
        await manager.leave()
        assert manager.state is BrokerState.SHUTTING_DOWN
        heartbeats = controller.of(BrokerHeartbeatRequest)
        assert heartbeats[0].want_fence
        assert heartbeats[0].offline_log_dirs == [FAILED]
        assert (heartbeats[0].broker_epoch, heartbeats[0].current_metadata_offset) == (1000, 41)
        assert heartbeats[-1].want_shut_down
        assert len(controller.of(BrokerRegistrationRequest)) == 1

    living(live)


def test_a_broker_that_is_not_ready_stays_fenced() -> None:
    async def live(manager: LifecycleManager, controller: FakeController) -> None:
        await manager.registered()
        while len(controller.of(BrokerHeartbeatRequest)) < 5:
            await asyncio.sleep(0.001)
        assert all(one.want_fence for one in controller.of(BrokerHeartbeatRequest))
        assert manager.state is BrokerState.RECOVERY

    living(live)


def test_beside_a_living_session_it_tries_until_that_ends_and_says_so() -> None:
    attempts = 0

    def register(_: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            return BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        return BrokerRegistrationResponse(broker_epoch=7)

    async def live(manager: LifecycleManager, controller: FakeController) -> None:
        while not manager.last_refusal:
            await asyncio.sleep(0.001)
        assert "another process has this node.id" in manager.last_refusal
        assert await manager.registered() == 7
        assert len({one.incarnation_id for one in controller.of(BrokerRegistrationRequest)}) == 1

    living(live, register=register)


def test_logs_that_lack_something_are_told_by_another_connection() -> None:
    """While the controller sees the first one, it takes that process for alive."""
    ports: list[int] = []
    epochs = iter((1000, 1001))

    def register(_: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        return BrokerRegistrationResponse(broker_epoch=next(epochs))

    async def live(manager: LifecycleManager, controller: FakeController) -> None:
        assert await manager.registered() == 1000
        ports.append(controller.connection_count)
        assert manager.vouches
        assert await manager.register_anew() == manager.epoch == 1001
        ports.append(controller.connection_count)
        assert not manager.vouches
        first, second = controller.of(BrokerRegistrationRequest)
        assert first.incarnation_id != second.incarnation_id
        assert (first.previous_broker_epoch, second.previous_broker_epoch) == (17, -1)
        await manager.serve()
        assert manager.state is BrokerState.RUNNING
        assert controller.of(BrokerHeartbeatRequest)[-1].broker_epoch == 1001

    living(live, register=register)
    assert ports == [1, 2]


def test_a_final_refusal_ends_it() -> None:
    async def run() -> None:
        refusing = {
            ApiKey.BROKER_REGISTRATION: lambda _: BrokerRegistrationResponse(
                error_code=ErrorCode.INCONSISTENT_CLUSTER_ID
            )
        }
        async with FakeController(refusing) as controller:
            quorum = Quorum([controller.address])
            quorum.note(1, 5, controller.address)
            connect = connect_by(PeerSecurity(listener="C"), client_id="b", clock=CLOCK)
            channel = ControllerChannel(quorum, connect, CLOCK, request_s_max=WAIT_S)
            manager = LifecycleManager(quick(), channel, CLOCK, metadata_offset=lambda: 0)
            with pytest.raises(RegistrationRefused, match="another cluster"):
                await manager.run()

    asyncio.run(run())


@pytest.mark.slow
def test_a_stop_without_a_controller_does_not_wait_for_one() -> None:
    async def live(manager: LifecycleManager, controller: FakeController) -> None:
        await manager.registered()
        await manager.serve()
        controller.answers.clear()
        await manager.leave()
        assert manager.state is BrokerState.SHUTTING_DOWN

    living(live)


def test_a_stop_that_the_controller_puts_off_waits() -> None:
    answered = 0

    def put_off(request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        nonlocal answered
        answered += request.want_shut_down
        return alive(request).replaced(should_shut_down=answered == 3)

    async def live(manager: LifecycleManager, _: FakeController) -> None:
        await manager.registered()
        await manager.serve()
        await manager.leave()
        assert answered == 3

    living(live, heartbeat=put_off)
