"""Proposals of in-sync sets on their way to the controller: Kafka's AlterPartitionManagerTest."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from strandline.broker.cluster.in_sync.in_sync_set import InSyncSet, Proposal, SyncedReplica
from strandline.broker.cluster.in_sync.leading import Leading
from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.peers.errors import PeerUnreachable
from strandline.broker.protocol.messages.alter_partition import (
    AlteredPartitionResult,
    AlteredTopicResult,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.replication.alterations import InSyncAlterations
from strandline.storage.clock import SystemClock
from strandline.storage.model import TopicPartition
from tests.unit.broker.cluster.controlled import A

B = uuid.UUID(int=0xB)
Answer = Callable[[AlterPartitionRequest], AlterPartitionResponse]


class Channel:
    """Answers what the test says, in order, when the test says."""

    def __init__(self) -> None:
        self.requests: list[AlterPartitionRequest] = []
        self.answers: asyncio.Queue[Answer | Exception] = asyncio.Queue()

    async def ask(self, request: Any, _answer: Any, *, code_of: Any) -> Any:
        self.requests.append(request)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer(request)

    def close(self) -> None:
        pass


class Lead:
    """A lead with one proposal, which notes its answer."""

    def __init__(self) -> None:
        self.topic_partition = TopicPartition("t", 0)
        self.in_sync = InSyncSet()
        self.in_sync.commit(frozenset({1}), 7, 0)
        self.told: list[object] = []

    def propose(self) -> Proposal:
        replicas = [SyncedReplica(1, 11), SyncedReplica(2, 12)]
        return self.in_sync.propose(replicas, leader_epoch=3, joining=2)

    def altered(self, proposal: Proposal, *state: object) -> None:
        self.told.append(state)
        self.in_sync.withdraw()

    def refused(self, proposal: Proposal, code: ErrorCode) -> bool:
        self.told.append(code)
        return code is ErrorCode.UNKNOWN_SERVER_ERROR


def carried_out(request: AlterPartitionRequest) -> AlterPartitionResponse:
    return answered(request, ErrorCode.NONE)


def answered(request: AlterPartitionRequest, code: ErrorCode) -> AlterPartitionResponse:
    return AlterPartitionResponse(
        topics=[
            AlteredTopicResult(
                topic_id=topic.topic_id,
                partitions=[
                    AlteredPartitionResult(
                        partition_index=one.partition_index,
                        error_code=code,
                        leader_id=1,
                        leader_epoch=one.leader_epoch,
                        isr=one.new_isr,
                        partition_epoch=one.partition_epoch + 1,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def play(scenario: Callable[[Channel, InSyncAlterations], Awaitable[None]]) -> None:
    async def run() -> None:
        channel = Channel()
        alterations = InSyncAlterations(
            cast(ControllerChannel, channel),
            SystemClock(),
            node_id=1,
            broker_epoch=lambda: 11,
        )
        running = asyncio.create_task(alterations.run())
        try:
            await scenario(channel, alterations)
        finally:
            running.cancel()

    asyncio.run(run())


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.001)


def propose(alterations: InSyncAlterations, lead: Lead, topic_id: Any = A, index: int = 0) -> None:
    alterations.propose(topic_id, index, cast(Leading, lead), lead.propose())


def test_a_proposal_names_the_brokers_with_their_epochs_and_its_lead_gets_the_answer() -> None:
    async def scenario(channel: Channel, alterations: InSyncAlterations) -> None:
        lead = Lead()
        propose(alterations, lead)
        channel.answers.put_nowait(carried_out)
        await until(lambda: bool(lead.told))
        (request,) = channel.requests
        assert (request.broker_id, request.broker_epoch) == (1, 11)
        (one,) = request.topics[0].partitions
        assert (one.leader_epoch, one.partition_epoch, list(one.new_isr)) == (3, 7, [1, 2])
        assert [(x.broker_id, x.broker_epoch) for x in one.new_isr_with_epochs] == [
            (1, 11),
            (2, 12),
        ]
        assert lead.told == [(frozenset({1, 2}), 3, 8)]

    play(scenario)


def test_one_request_is_under_way_and_the_next_one_has_all_that_came_meanwhile() -> None:
    async def scenario(channel: Channel, alterations: InSyncAlterations) -> None:
        leads = [Lead() for _ in range(4)]
        propose(alterations, leads[0])
        await until(lambda: len(channel.requests) == 1)
        propose(alterations, leads[1], A, 1)
        propose(alterations, leads[2], B, 0)
        propose(alterations, leads[3], B, 1)
        await asyncio.sleep(0.01)
        assert len(channel.requests) == 1
        channel.answers.put_nowait(carried_out)
        channel.answers.put_nowait(carried_out)
        await until(lambda: all(lead.told for lead in leads))
        assert [len(topic.partitions) for topic in channel.requests[1].topics] == [1, 2]

    play(scenario)


@pytest.mark.parametrize(
    "failure",
    [
        PeerUnreachable("no controller"),
        lambda _: AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
        lambda _: AlterPartitionResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        lambda _: AlterPartitionResponse(),
        lambda request: answered(request, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_failed_is_asked_again(failure: Any) -> None:
    async def scenario(channel: Channel, alterations: InSyncAlterations) -> None:
        lead = Lead()
        propose(alterations, lead)
        channel.answers.put_nowait(failure)
        channel.answers.put_nowait(carried_out)
        await until(lambda: lead.told[-1:] == [(frozenset({1, 2}), 3, 8)])
        assert len(channel.requests) == 2

    play(scenario)


def test_a_refusal_is_told_and_not_asked_again() -> None:
    async def scenario(channel: Channel, alterations: InSyncAlterations) -> None:
        lead = Lead()
        propose(alterations, lead)
        channel.answers.put_nowait(lambda one: answered(one, ErrorCode.INELIGIBLE_REPLICA))
        await until(lambda: bool(lead.told))
        await asyncio.sleep(0.02)
        assert lead.told == [ErrorCode.INELIGIBLE_REPLICA]
        assert len(channel.requests) == 1

    play(scenario)


def test_what_an_election_made_void_is_not_asked() -> None:
    async def scenario(channel: Channel, alterations: InSyncAlterations) -> None:
        first, second = Lead(), Lead()
        propose(alterations, first)
        first.in_sync.commit(frozenset({1, 2}), 9, 0)
        propose(alterations, second, B)
        channel.answers.put_nowait(carried_out)
        await until(lambda: bool(second.told))
        assert first.told == []
        assert [topic.topic_id for topic in channel.requests[0].topics] == [B]

    play(scenario)
