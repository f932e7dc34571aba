"""Markers for partitions of other brokers, as by Kafka's TransactionMarkerChannelManager."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

import pytest

from strandline.broker.coordination.transactions.marker_channel import (
    MARKERS_PER_REQUEST_MAX,
    MarkerChannel,
    SentMarker,
)
from strandline.broker.coordination.transactions.markers import EndMarker
from strandline.broker.coordination.transactions.transaction import (
    ProducerIdentity,
    TransactionVersion,
)
from strandline.broker.handlers.authorization import refusals
from strandline.broker.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import StorageError
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.marker import MarkerType
from tests.sim.loop import run

A, B, C = (TopicPartition("t", index) for index in range(3))


@dataclass
class Brokers:
    """Other brokers that answer from `answers`, in turn; without one, NONE for all."""

    leaders: dict[TopicPartition, int] = field(default_factory=dict)
    answers: deque[WriteTxnMarkersResponse | Exception] = field(default_factory=deque)
    asked: list[tuple[int, WriteTxnMarkersRequest]] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def leader_of(self, partition: TopicPartition) -> int | None:
        return self.leaders.get(partition)

    async def write_markers(
        self, node_id: int, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        self.asked.append((node_id, request))
        await self.may_answer.wait()
        answer = self.answers.popleft() if self.answers else all_written(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def spawn(self, task: Coroutine[object, object, None]) -> object:
        spawned = asyncio.ensure_future(task)
        self.tasks.add(spawned)
        return spawned


def all_written(
    request: WriteTxnMarkersRequest, code: int = ErrorCode.NONE
) -> WriteTxnMarkersResponse:
    return refusals.markers(request, code)  # type: ignore[arg-type]  # some are of no Kafka


def end_of(producer_id: int, epoch: int = 0) -> EndMarker:
    return EndMarker(
        producer=ProducerIdentity(producer_id, epoch),
        end=MarkerType.COMMIT,
        coordinator_epoch=3,
        version=TransactionVersion.V2,
    )


def sent(producer_id: int, partition: TopicPartition, epoch: int = 0) -> SentMarker:
    return SentMarker(f"tx-{producer_id}", end_of(producer_id, epoch), partition)


@dataclass
class World:
    brokers: Brokers
    channel: MarkerChannel
    answered: list[tuple[SentMarker, ErrorCode]]

    async def finish(self) -> None:
        self.brokers.may_answer.set()
        while not all(task.done() for task in self.brokers.tasks):
            await asyncio.sleep(0)
        for task in self.brokers.tasks:
            task.result()

    def asked_of(self, node_id: int) -> list[list[tuple[int, list[tuple[str, list[int]]]]]]:
        return [
            [
                (
                    one.producer_id,
                    [(topic.name, list(topic.partition_indexes)) for topic in one.topics],
                )
                for one in request.markers
            ]
            for node, request in self.brokers.asked
            if node == node_id
        ]


def play(scenario: Callable[[World], Coroutine[None, None, None]]) -> None:
    async def played() -> None:
        brokers = Brokers(leaders=dict(zip((A, B, C), (2, 2, 3), strict=True)))
        answered: list[tuple[SentMarker, ErrorCode]] = []
        channel = MarkerChannel(brokers, lambda one, code: answered.append((one, code)))
        await scenario(World(brokers, channel, answered))

    run(played)


def test_each_broker_gets_the_markers_of_its_partitions_in_one_request() -> None:
    async def scenario(world: World) -> None:
        for partition in (A, B, C):
            assert world.channel.send(sent(7, partition))
        await asyncio.sleep(0)
        # The first went at once; what came meanwhile goes together.
        await world.finish()
        assert world.asked_of(2) == [[(7, [("t", [0, 1])])]]
        assert world.asked_of(3) == [[(7, [("t", [2])])]]
        assert [code for _, code in world.answered] == [ErrorCode.NONE] * 3

    play(scenario)


def test_what_queues_while_a_broker_is_asked_goes_with_the_next_request() -> None:
    async def scenario(world: World) -> None:
        world.channel.send(sent(1, A))
        await asyncio.sleep(0)
        for producer_id in (2, 3, 4):
            world.channel.send(sent(producer_id, A))
        await world.finish()
        assert [len(one) for one in world.asked_of(2)] == [1, 3]
        assert len(world.answered) == 4
        assert repr(world.channel) == "<MarkerChannel 0 to 0>"

    play(scenario)


def test_a_partition_that_no_other_broker_leads_is_not_sent() -> None:
    async def scenario(world: World) -> None:
        del world.brokers.leaders[A]
        assert not world.channel.send(sent(7, A))
        await world.finish()
        assert not world.brokers.asked

    play(scenario)


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), StorageError("refused")])
def test_a_broker_that_gives_no_answer_is_told_for_each_marker_and_asked_again_later(
    error: Exception,
) -> None:
    async def scenario(world: World) -> None:
        world.brokers.answers.append(error)
        world.channel.send(sent(7, A))
        world.channel.send(sent(7, B))
        await world.finish()
        assert [code for _, code in world.answered] == [ErrorCode.NETWORK_EXCEPTION] * 2
        world.channel.send(sent(7, A))
        await world.finish()
        assert world.answered[-1] == (sent(7, A), ErrorCode.NONE)

    play(scenario)


def test_codes_are_told_as_they_come_and_unknown_or_missing_ones_as_unknown() -> None:
    async def scenario(world: World) -> None:
        world.channel.send(sent(7, A))
        await asyncio.sleep(0)
        request = world.brokers.asked[0][1]
        world.brokers.answers.append(all_written(request, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        world.brokers.answers.append(all_written(request, 9999))
        world.brokers.answers.append(WriteTxnMarkersResponse(markers=[]))
        for _ in range(3):
            await world.finish()
            world.channel.send(sent(7, A))
        await world.finish()
        assert [code for _, code in world.answered] == [
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.NONE,
        ]

    play(scenario)


def test_two_ends_of_one_producer_share_no_request_as_its_answer_names_producers_alone() -> None:
    async def scenario(world: World) -> None:
        world.channel.send(sent(7, A, epoch=1))
        world.channel.send(sent(7, A, epoch=2))
        await world.finish()
        assert [len(one) for one in world.asked_of(2)] == [1, 1]
        assert [one.marker.producer.epoch for one, _ in world.answered] == [1, 2]

    play(scenario)


def test_a_request_is_bounded() -> None:
    async def scenario(world: World) -> None:
        many = [TopicPartition("many", index) for index in range(MARKERS_PER_REQUEST_MAX + 1)]
        world.brokers.leaders.update(dict.fromkeys(many, 2))
        for partition in many:
            world.channel.send(sent(7, partition))
        await world.finish()
        sizes = [sum(len(t[1]) for one in request for t in one[1]) for request in world.asked_of(2)]
        assert sizes == [MARKERS_PER_REQUEST_MAX, 1]

    play(scenario)


def test_the_request_says_all_of_the_marker() -> None:
    async def scenario(world: World) -> None:
        world.channel.send(sent(7, A, epoch=5))
        await world.finish()
        (marker,) = world.brokers.asked[0][1].markers
        assert (marker.producer_id, marker.producer_epoch) == (7, 5)
        assert marker.transaction_result
        assert marker.coordinator_epoch == 3
        assert marker.transaction_version == TransactionVersion.V2

    play(scenario)
