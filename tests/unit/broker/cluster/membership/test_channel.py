"""Requests reach the controller that is active, and only its answers count."""

from __future__ import annotations

import asyncio

import pytest

from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.membership.quorum import Quorum
from strandline.broker.peers.errors import PeerUnreachable
from strandline.broker.peers.peer import connect_by
from strandline.broker.peers.security import PeerSecurity
from strandline.broker.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import SystemClock
from tests.support.fake_controller import FakeController

CLOCK = SystemClock()
WAIT_S = 30.0
REQUEST = AllocateProducerIdsRequest(broker_id=9, broker_epoch=1)


def channel_of(quorum: Quorum, request_s_max: float = WAIT_S) -> ControllerChannel:
    connect = connect_by(PeerSecurity(listener="C"), client_id="broker-9", clock=CLOCK)
    return ControllerChannel(quorum, connect, CLOCK, request_s_max=request_s_max)


async def first_id(channel: ControllerChannel) -> int:
    answer = await channel.ask(
        REQUEST, AllocateProducerIdsResponse, code_of=lambda found: found.error_code
    )
    return answer.producer_id_start


def ids_from(first: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=1000)


def test_a_controller_that_is_active_no_more_is_asked_once() -> None:
    async def run() -> None:
        refusing = {
            ApiKey.ALLOCATE_PRODUCER_IDS: lambda _: AllocateProducerIdsResponse(
                error_code=ErrorCode.NOT_CONTROLLER
            )
        }
        async with (
            FakeController(refusing) as former,
            FakeController({ApiKey.ALLOCATE_PRODUCER_IDS: lambda _: ids_from(7)}) as active,
        ):
            quorum = Quorum([former.address])
            quorum.note(1, 5, former.address)
            asking = asyncio.ensure_future(first_id(channel_of(quorum)))
            while quorum.active is not None:
                await asyncio.sleep(0.001)
            quorum.note(2, 6, active.address)
            assert await asking == 7
            assert len(former.requests) == 1

    asyncio.run(run())


def test_an_answer_of_a_controller_that_was_deposed_meanwhile_does_not_count() -> None:
    """KAFKA-14154: it decided by what it knew before the others elected another one."""

    async def run() -> None:
        deposed, may_answer = asyncio.Event(), asyncio.Event()

        async def late(_: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
            deposed.set()
            await may_answer.wait()
            return ids_from(1)

        async with (
            FakeController({ApiKey.ALLOCATE_PRODUCER_IDS: late}) as former,
            FakeController({ApiKey.ALLOCATE_PRODUCER_IDS: lambda _: ids_from(7)}) as active,
        ):
            quorum = Quorum([former.address])
            quorum.note(1, 5, former.address)
            asking = asyncio.ensure_future(first_id(channel_of(quorum)))
            await deposed.wait()
            quorum.note(2, 6, active.address)
            may_answer.set()
            assert await asking == 7

    asyncio.run(run())


def test_a_controller_that_stands_still_leaves_time_for_the_next_one() -> None:
    async def run() -> None:
        async def never(_: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
            await asyncio.Event().wait()
            raise AssertionError

        async with (
            FakeController({ApiKey.ALLOCATE_PRODUCER_IDS: never}) as still,
            FakeController({ApiKey.ALLOCATE_PRODUCER_IDS: lambda _: ids_from(7)}) as active,
        ):
            quorum = Quorum([still.address])
            quorum.note(1, 5, still.address)
            asking = asyncio.ensure_future(
                channel_of(quorum).ask(
                    REQUEST,
                    AllocateProducerIdsResponse,
                    code_of=lambda found: found.error_code,
                    answer_s=0.05,
                )
            )
            while quorum.active is not None:
                await asyncio.sleep(0.001)
            quorum.note(2, 6, active.address)
            assert (await asking).producer_id_start == 7

    asyncio.run(run())


def test_a_connection_that_breaks_is_tried_again() -> None:
    async def run() -> None:
        async with FakeController({}) as controller:  # which ends it at each request
            quorum = Quorum([controller.address])
            quorum.note(1, 5, controller.address)
            asking = asyncio.ensure_future(first_id(channel_of(quorum)))
            while quorum.active is not None:
                await asyncio.sleep(0.001)
            controller.answers[ApiKey.ALLOCATE_PRODUCER_IDS] = lambda _: ids_from(3)
            quorum.note(1, 5, controller.address)
            assert await asking == 3

    asyncio.run(run())


def test_without_a_controller_the_request_fails_in_its_time_and_says_why() -> None:
    async def run() -> None:
        async with FakeController({}) as controller:
            quorum = Quorum([controller.address])
            with pytest.raises(PeerUnreachable, match="no active controller is known"):
                await first_id(channel_of(quorum, request_s_max=0.05))

    asyncio.run(run())
