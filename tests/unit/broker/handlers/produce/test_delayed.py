"""Producers that wait for followers: Kafka's DelayedProduce. Partitions tell by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from strandline.broker.cluster.in_sync.acknowledgements import Acknowledgements
from strandline.broker.cluster.in_sync.leading import Leading
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.produce.delayed import (
    DelayedProduce,
    DelayedTimes,
    PendingReplication,
)
from strandline.broker.protocol.messages.produce import ProduceResponsePartition
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.sim import loop


class Replicated:
    """A partition with followers, and its lead."""

    def __init__(self) -> None:
        self.waits = Acknowledgements()
        self.high_watermark = 0
        self.code = ErrorCode.NONE
        self.leading: object = self
        self.is_leader = True

    def wait(self, end_offset: int) -> ErrorCode | None:
        return self.code if self.high_watermark >= end_offset else None

    def advance(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self.waits.tell_below(high_watermark, self.code)


class Request:
    """A request for some partitions, which have their ends."""

    def __init__(
        self, times: DelayedTimes, *ends: tuple[Replicated, int], timeout_ms: int = 1000
    ) -> None:
        self.answers = [ProduceResponsePartition(index=n, base_offset=5) for n in range(len(ends))]
        self.finished_s: list[float] = []
        time = asyncio.get_running_loop().time
        waits = [
            PendingReplication(
                cast(Partition, one), self.answers, n, cast(Leading, one), end_offset
            )
            for n, (one, end_offset) in enumerate(ends)
        ]
        self.delayed = DelayedProduce(
            waits, times, timeout_ms, lambda: self.finished_s.append(time())
        )

    @property
    def codes(self) -> list[int]:
        return [one.error_code for one in self.answers]


def play(scenario: Callable[[DelayedTimes], Awaitable[None]]) -> None:
    async def begin() -> None:
        await scenario(DelayedTimes())

    loop.run(begin)


def test_a_request_is_answered_once_all_its_partitions_are_replicated() -> None:
    async def scenario(times: DelayedTimes) -> None:
        one, two = Replicated(), Replicated()
        request = Request(times, (one, 5), (two, 9))
        one.advance(4)
        two.advance(9)
        await asyncio.sleep(0)
        assert not request.finished_s
        one.advance(6)
        # In a later turn: a follower's fetch tells it.
        assert not request.finished_s
        await asyncio.sleep(0)
        assert len(request.finished_s) == 1
        assert request.codes == [0, 0]
        assert len(times) == 0

    play(scenario)


def test_requests_of_one_partition_are_told_in_the_order_of_their_offsets() -> None:
    async def scenario(times: DelayedTimes) -> None:
        one = Replicated()
        requests = [Request(times, (one, end)) for end in (3, 6, 9)]
        one.advance(7)
        await asyncio.sleep(0)
        assert [bool(request.finished_s) for request in requests] == [True, True, False]

    play(scenario)


def test_what_is_replicated_already_waits_for_nothing() -> None:
    async def scenario(times: DelayedTimes) -> None:
        one = Replicated()
        one.advance(5)
        one.code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        request = Request(times, (one, 5))
        await asyncio.sleep(0)
        assert request.finished_s
        assert request.codes == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]

    play(scenario)


def test_who_waits_too_long_is_told_so_for_what_is_not_replicated_alone() -> None:
    async def scenario(times: DelayedTimes) -> None:
        one, two = Replicated(), Replicated()
        began_s = asyncio.get_running_loop().time()
        late = Request(times, (one, 5), (two, 5), timeout_ms=2000)
        soon = Request(times, (two, 5), timeout_ms=500)
        one.advance(5)
        await asyncio.sleep(3)
        assert [round(s - began_s, 3) for s in (*soon.finished_s, *late.finished_s)] == [0.5, 2.0]
        assert soon.codes == [ErrorCode.REQUEST_TIMED_OUT]
        assert late.codes == [0, ErrorCode.REQUEST_TIMED_OUT]
        # The answer keeps where the records are: they may be replicated yet.
        assert late.answers[1].base_offset == 5
        two.advance(5)
        await asyncio.sleep(0)
        assert len(late.finished_s) == 1

    play(scenario)


def test_a_lead_that_ends_tells_who_waits() -> None:
    async def scenario(times: DelayedTimes) -> None:
        one = Replicated()
        request = Request(times, (one, 5))
        one.waits.tell_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await asyncio.sleep(0)
        assert request.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    play(scenario)


def test_records_of_an_earlier_lead_are_not_waited_for() -> None:
    async def scenario(times: DelayedTimes) -> None:
        one = Replicated()
        one.leading = Replicated()
        request = Request(times, (one, 5))
        await asyncio.sleep(0)
        assert request.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    play(scenario)


def test_a_client_that_has_gone_leaves_nothing() -> None:
    async def scenario(times: DelayedTimes) -> None:
        one = Replicated()
        request = Request(times, (one, 5))
        request.delayed.cancel()
        assert len(times) == 0
        one.advance(5)
        await asyncio.sleep(2)
        assert not request.finished_s

    play(scenario)


def test_waits_that_ended_otherwise_do_not_pile_up() -> None:
    async def scenario(times: DelayedTimes) -> None:
        one = Replicated()
        for _ in range(5000):
            Request(times, (one, 5)).delayed.cancel()
        assert len(one.waits) < 1000

    play(scenario)
