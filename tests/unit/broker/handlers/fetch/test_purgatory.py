"""A parked fetch ends once: with an answer, or with the mistake that kept it from being built."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace

from strandline.broker.cluster.replicas.partition import HighWatermarkWaiter
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.network.responses import DeferredAnswer, Parts
from strandline.broker.protocol.header import RequestHeader
from strandline.broker.protocol.schema.api import ApiKey
from strandline.storage.model import TopicPartition
from tests.system.calls import fetch_request, fetch_topic
from tests.unit.broker.handlers.fetch.fetch_rig import handler_over

LONG_MS = 600_000
VERSION = 12


class EmptyPartition:
    """A partition without records; reading it fails once it is `broken`."""

    def __init__(self) -> None:
        self.topic_partition = TopicPartition("t", 0)
        self.traffic = SimpleNamespace(fetch_requests=0, failed_fetch=0, bytes_out=0)
        self.high_watermark = self.last_stable_offset = self.log_start_offset = 0
        self.leader_epoch = 0
        self.is_leader = True
        self.waiters: list[HighWatermarkWaiter] = []
        self.broken = False

    @property
    def log(self) -> EmptyPartition:
        return self

    @property
    def local(self) -> SimpleNamespace:
        # Not the reader's offset, so it is looked at.
        return SimpleNamespace(high_watermark=1)

    def fetch_refusal(self, _epoch: int, _offset: int) -> None:
        return

    def read(self, _offset: int, **_limits: object) -> SimpleNamespace:
        if self.broken:
            raise ZeroDivisionError("a mistake of ours")
        return SimpleNamespace(next_offset=0, range=None, is_cut=False)

    def wait(self, waiter: HighWatermarkWaiter) -> None:
        self.waiters.append(waiter)

    def stop_waiting(self, waiter: HighWatermarkWaiter) -> None:
        self.waiters.remove(waiter)


def handler_of(partition: EmptyPartition) -> FetchHandler:
    return handler_over(
        SimpleNamespace(
            partition=lambda _topic, _partition: partition,
            partitions_of=lambda _topic: {0: partition},
        )
    )


def park(handler: FetchHandler) -> tuple[DeferredAnswer, list[Parts], list[Exception]]:
    request = fetch_request(fetch_topic("t", {0: 0}), max_wait_ms=LONG_MS)
    header = RequestHeader(ApiKey.FETCH, VERSION, 1, "test", 0)
    answer = handler.handle(request, header, 0.0)
    assert isinstance(answer, DeferredAnswer)
    answers: list[Parts] = []
    failures: list[Exception] = []
    answer.attach(answers.append, failures.append)
    return answer, answers, failures


def test_it_leaves_nothing_for_the_collector() -> None:
    """Each fetch at the end of a log is one: the collector would stop everybody for them."""

    async def test() -> None:
        partition = EmptyPartition()
        handler = handler_of(partition)
        gc.collect()
        gc.disable()
        try:
            for end in ("woken", "cancelled"):
                answer, answers, _ = park(handler)
                (waiter,) = partition.waiters
                if end == "woken":
                    waiter.on_high_watermark(10**6)
                    await asyncio.sleep(0)
                    assert len(answers) == 1
                else:
                    answer.cancel()
                gone = weakref.ref(waiter)
                del answer, answers, waiter, _
                await asyncio.sleep(0)
                assert gone() is None, end
        finally:
            gc.enable()

    asyncio.run(test())


def test_it_is_answered_once_however_often_it_is_woken() -> None:
    async def test() -> None:
        partition = EmptyPartition()
        handler = handler_of(partition)
        _, answers, failures = park(handler)
        (waiter,) = partition.waiters
        for _ in range(3):
            waiter.on_high_watermark(100)
        waiter.on_gone()
        assert not answers  # A producer does not wait for it to be built.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (len(answers), failures, handler.parked_count) == (1, [], 0)
        assert partition.waiters == []

    asyncio.run(test())


def test_what_cannot_be_answered_is_said_and_not_waited_for() -> None:
    async def test() -> None:
        partition = EmptyPartition()
        handler = handler_of(partition)
        _, answers, failures = park(handler)
        partition.broken = True
        partition.waiters[0].on_high_watermark(100)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (answers, [type(error) for error in failures]) == ([], [ZeroDivisionError])
        assert (handler.parked_count, partition.waiters) == (0, [])

    asyncio.run(test())


def test_nobody_is_answered_whose_client_went_away() -> None:
    async def test() -> None:
        partition = EmptyPartition()
        handler = handler_of(partition)
        deferred, answers, failures = park(handler)
        partition.waiters[0].on_high_watermark(100)
        deferred.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (answers, failures, handler.parked_count) == ([], [], 0)

    asyncio.run(test())
