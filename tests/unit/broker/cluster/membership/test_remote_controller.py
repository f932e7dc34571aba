"""What a broker itself asks of a controller elsewhere, and what waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from strandline.broker.cluster.membership import remote_controller
from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.membership.quorum import Quorum
from strandline.broker.cluster.membership.remote_controller import (
    ControllerAway,
    NoProducerIds,
    RemoteController,
)
from strandline.broker.cluster.metadata.controller_messages import CreateTopics, NewTopic
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.coordination.transactions.producer_ids import ProducerIds
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
NODE = 9
# Of a request of a client; whoever waits as long here does not end.
REQUEST_MS_MAX = 1 << 30


async def silence(_: Any) -> Any:
    await asyncio.Event().wait()


def asking(work: Callable[[RemoteController, FakeController], Awaitable[None]]) -> None:
    """Runs `work` with a controller that takes each request and answers none."""

    async def run() -> None:
        answers = {ApiKey.CREATE_TOPICS: silence, ApiKey.ALLOCATE_PRODUCER_IDS: silence}
        async with FakeController(answers) as controller:
            quorum = Quorum([controller.address])
            quorum.note(1, 5, controller.address)
            connect = connect_by(PeerSecurity(listener="C"), client_id="b", clock=CLOCK)
            remote = RemoteController(
                ControllerChannel(quorum, connect, CLOCK, request_s_max=REQUEST_MS_MAX / 1000),
                MetadataView(MetadataImage()),
                node_id=NODE,
                broker_epoch=lambda: 1000,
                request_ms_max=REQUEST_MS_MAX,
                until=lambda _: asyncio.sleep(0),
            )
            await work(remote, controller)

    asyncio.run(run())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_controller, "ANSWER_S_MAX", 0.05)


def test_a_topic_that_a_request_needs_is_not_waited_for_as_long_as_a_request() -> None:
    """Other requests of its connection wait behind, such as a fetch of what is led here."""

    async def work(remote: RemoteController, _: FakeController) -> None:
        with pytest.raises(ControllerAway) as caught:
            await remote.ask(CreateTopics([NewTopic(name="__consumer_offsets")]))
        assert caught.value.kafka_code == ErrorCode.REQUEST_TIMED_OUT

    asking(work)


def test_without_producer_ids_a_producer_is_told_to_try_again() -> None:
    """As RPCProducerIdManager: older clients take a time-out for the end of the producer."""

    async def work(remote: RemoteController, controller: FakeController) -> None:
        ids = ProducerIds(remote, NODE)
        # On a machine that stands still no request may leave within the wait.
        while not controller.requests:
            ended = await asyncio.gather(*(ids.take() for _ in range(50)), return_exceptions=True)
            assert {type(one) for one in ended} == {NoProducerIds}
        assert NoProducerIds.kafka_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        # One asked for all of them.
        assert len(controller.requests) == 1

        def block(_: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
            return AllocateProducerIdsResponse(producer_id_start=7, producer_id_len=1000)

        controller.answers[ApiKey.ALLOCATE_PRODUCER_IDS] = block
        remote._channel._quorum.note(1, 5, controller.address)  # as the feed finds it again
        assert sorted(await asyncio.gather(*(ids.take() for _ in range(50)))) == list(range(7, 57))

    asking(work)
