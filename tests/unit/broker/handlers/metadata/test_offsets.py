"""Lookups by time whose time is over: each partition by itself, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import cast

from strandline.broker.cluster.replicas.partition import LeaderRefusal
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.sections import RemoteWaitConfig
from strandline.broker.handlers.metadata.offsets import LATEST, OffsetHandlers
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.telemetry.requests import RemoteWaits
from strandline.storage.model import TimestampOffset

UNKNOWN_TOPIC_OR_PARTITION = 3
REQUEST_TIMED_OUT = 7
UNSUPPORTED_VERSION = 35
NONE = 0
WHEN_MS = 1_000
END = 10


async def _never(_timestamp_ms: int) -> TimestampOffset:
    await asyncio.Event().wait()
    raise AssertionError


async def _at_once(timestamp_ms: int) -> TimestampOffset:
    return TimestampOffset(timestamp_ms, 3, 0)


class _World:
    """Partitions by the way in which they look for a time."""

    def __init__(self, *lookups: Callable[[int], Awaitable[TimestampOffset]]) -> None:
        self.waits = RemoteWaits()
        self.partitions = [
            SimpleNamespace(
                leading=None,
                is_offline=False,
                is_gone=False,
                leader_epoch=0,
                log=SimpleNamespace(
                    find_timestamp=lookup,
                    is_tiered=True,
                    has_unknown_extent=False,
                    local=SimpleNamespace(readable_end=lambda _isolation: END),
                ),
            )
            for lookup in lookups
        ]
        services = SimpleNamespace(
            replicas=SimpleNamespace(
                leader=lambda _topic, index, _epoch: dict(enumerate(self.partitions)).get(
                    index, LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                ),
            ),
            traffic=SimpleNamespace(remote_lookups=self.waits),
            config=BrokerConfig(remote_waits=RemoteWaitConfig(list_offsets_ms_max=1)),
        )
        self._handlers = OffsetHandlers(cast(Services, services))

    async def ask(
        self, *timestamps_ms: int, timeout_ms: int
    ) -> Sequence[ListOffsetsResponsePartition]:
        wanted = [
            ListOffsetsPartition(partition_index=index, timestamp=timestamp_ms)
            for index, timestamp_ms in enumerate(timestamps_ms)
        ]
        request = ListOffsetsRequest(
            topics=[ListOffsetsTopic(name="t", partitions=wanted)], timeout_ms=timeout_ms
        )
        context = cast(RequestContext, SimpleNamespace(api_version=11))
        answering = self._handlers.list_offsets(request, context)
        answer = answering if isinstance(answering, ListOffsetsResponse) else await answering
        (topic,) = answer.topics
        return topic.partitions


def test_who_is_late_is_told_so_and_the_others_have_their_answers() -> None:
    world = _World(_never, _at_once, _never, _at_once)
    answers = asyncio.run(world.ask(WHEN_MS, WHEN_MS, WHEN_MS, LATEST, timeout_ms=1))
    assert [(a.partition_index, a.error_code, a.offset) for a in answers] == [
        (0, REQUEST_TIMED_OUT, -1),
        (1, NONE, 3),
        (2, REQUEST_TIMED_OUT, -1),
        (3, NONE, END),
    ]
    assert (world.waits.waiting, world.waits.expired) == (0, 2)


def test_without_a_time_of_the_clients_it_is_the_brokers() -> None:
    for timeout_ms in (0, -5):
        world = _World(_never)
        (answer,) = asyncio.run(world.ask(WHEN_MS, timeout_ms=timeout_ms))
        assert answer.error_code == REQUEST_TIMED_OUT
        assert world.waits.expired == 1


def test_a_lookup_is_counted_while_it_waits() -> None:
    async def waiting_then_given_up() -> tuple[int, int]:
        world = _World(_never)
        asking = asyncio.ensure_future(world.ask(WHEN_MS, timeout_ms=10**6))
        await asyncio.sleep(0)
        waiting = world.waits.waiting
        asking.cancel()
        await asyncio.wait([asking])
        return waiting, world.waits.waiting

    assert asyncio.run(waiting_then_given_up()) == (1, 0)


def test_what_is_found_in_a_topic_that_was_deleted_meanwhile_is_not_there() -> None:
    async def deleting(timestamp_ms: int) -> TimestampOffset:
        world.partitions[0].is_gone = True
        return await _at_once(timestamp_ms)

    world = _World(deleting, _at_once)
    answers = asyncio.run(world.ask(WHEN_MS, WHEN_MS, timeout_ms=10**6))
    assert [(a.error_code, a.offset) for a in answers] == [
        (UNKNOWN_TOPIC_OR_PARTITION, -1),
        (NONE, 3),
    ]


def test_a_time_that_means_nothing_is_refused_whether_the_partition_is_there_or_not() -> None:
    world = _World(_at_once)
    answers = asyncio.run(world.ask(-7, -7, WHEN_MS, timeout_ms=1))
    assert [a.error_code for a in answers] == [
        UNSUPPORTED_VERSION,
        UNSUPPORTED_VERSION,
        UNKNOWN_TOPIC_OR_PARTITION,
    ]
