"""What a partition says of leader epochs that wrote nothing: clients may know them all the same.

A consumer that began at the end of a log was told the epoch that leads. After the next start it
asks where that one ended (KIP-320), and takes "I do not know it" for a log that was truncated.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest

from strandline.broker.cluster.replicas.partition import NotLeader, Partition
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.sections import FetchConfig
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.plan import FetchPass
from strandline.broker.handlers.fetch.sessions import FetchSessionCache, WantedPartition
from strandline.broker.handlers.metadata.offsets import EARLIEST, LATEST, OffsetHandlers
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.fetch import FetchResponsePartition
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from strandline.storage.clock import SystemClock
from strandline.storage.errors import DiskError, InvalidRecords
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.model import TopicPartition
from strandline.storage.tiering.log.unified_log import UnifiedLog
from tests.unit.broker.cluster.served import leading
from tests.unit.broker.handlers.fetch.fetch_rig import plan_of_nothing
from tests.unit.storage.local.builders import PARTITION, append, batch, open_log

OFFSET_OUT_OF_RANGE = 1
CONTEXT = cast(RequestContext, SimpleNamespace(api_version=10))
T = TypeVar("T")

END = 10
WAIT_S_MAX = 60.0


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    """Epoch 1 wrote [0, 3), epoch 3 [3, 5); epoch 6 leads and has written nothing yet."""
    with leading(open_log(tmp_path / "t"), epoch=6) as made:
        append(made.log.local, batch(3), leader_epoch=1)
        append(made.log.local, batch(2), leader_epoch=3)
        yield made


def _handlers(partition: Partition) -> OffsetHandlers:
    replicas = SimpleNamespace(leader=lambda _topic, _index, _epoch: partition)
    return OffsetHandlers(cast(Services, SimpleNamespace(replicas=replicas)))


def _end_of(partition: Partition, epoch: int) -> tuple[int, int]:
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=PARTITION.topic, partitions=[wanted])]
    )
    answer = _handlers(partition).offset_for_leader_epoch(request, CONTEXT)
    (topic,) = answer.topics
    (end,) = topic.partitions
    assert end.error_code == 0
    return end.leader_epoch, end.end_offset


def _epoch_at(partition: Partition, timestamp: int) -> int:
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=PARTITION.topic,
                partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)],
            )
        ]
    )
    answer = _handlers(partition).list_offsets(request, CONTEXT)
    assert isinstance(answer, ListOffsetsResponse)
    (topic,) = answer.topics
    (found,) = topic.partitions
    return found.leader_epoch


def test_an_epoch_that_wrote_nothing_ended_where_its_forerunner_did(partition: Partition) -> None:
    ends = {epoch: _end_of(partition, epoch) for epoch in range(8)}
    assert ends == {
        # Nothing is left of it, so it ended where the log begins.
        0: (0, 0),
        1: (1, 3),
        2: (1, 3),
        3: (3, 5),
        4: (3, 5),
        5: (3, 5),
        6: (6, 5),
        7: (-1, -1),
    }
    # The first record of the epoch that leads changes no answer but where that one ends.
    append(partition.log.local, batch(1), leader_epoch=6)
    assert {epoch: _end_of(partition, epoch) for epoch in range(8)} == {**ends, 6: (6, 6)}


def test_who_was_deposed_appends_nothing_and_keeps_its_high_watermark(tmp_path: Path) -> None:
    """The leader of that epoch may have other records there, and followers could not tell."""
    with leading(open_log(tmp_path / "t"), epoch=6) as partition:
        partition.append(batch(3))
        partition.end_leading(2, 7)
        with pytest.raises(NotLeader):
            partition.append(batch(2), origin=AppendOrigin.COORDINATOR)
        assert (partition.log.end_offset, partition.high_watermark) == (3, 3)
        partition.begin_leading(1, 8)
        partition.append(batch(2))
        assert partition.log.end_offset == 5


def test_every_epoch_of_a_log_without_records_ended_where_it_begins(tmp_path: Path) -> None:
    with leading(open_log(tmp_path / "t"), epoch=2) as partition:
        ends = [_end_of(partition, epoch) for epoch in (-1, 0, 1, 2, 3)]
        assert ends == [(-1, -1), (0, 0), (1, 0), (2, 0), (-1, -1)]


def test_what_comes_next_is_written_by_the_epoch_that_leads(tmp_path: Path) -> None:
    with leading(open_log(tmp_path / "t"), epoch=2) as partition:
        assert [_epoch_at(partition, when) for when in (EARLIEST, LATEST)] == [2, 2]
        append(partition.log.local, batch(1), leader_epoch=2)
        partition.leader_epoch = 4
        assert [_epoch_at(partition, when) for when in (EARLIEST, LATEST)] == [2, 4]
        partition.log.move_log_start(1)
        assert [_epoch_at(partition, when) for when in (EARLIEST, LATEST)] == [4, 4]


@pytest.mark.parametrize(
    ("offset", "last_epoch", "sent_back_to"),
    [
        (5, 3, None),
        (5, 4, (3, 5)),
        (5, 5, (3, 5)),
        (5, 6, None),
        (4, 1, (1, 3)),
        (3, 1, None),
    ],
)
def test_a_reader_is_sent_back_to_where_its_log_and_ours_part(
    partition: Partition, offset: int, last_epoch: int, sent_back_to: tuple[int, int] | None
) -> None:
    answer = _looked_at(partition, offset, last_epoch)
    diverging = answer.diverging_epoch
    told = None if diverging is None else (diverging.epoch, diverging.end_offset)
    assert (answer.error_code, told) == (0, sent_back_to)


def test_a_reader_that_read_what_nobody_wrote_is_out_of_range(partition: Partition) -> None:
    answer = _looked_at(partition, 2, 7)
    assert (answer.error_code, answer.records_bytes) == (OFFSET_OUT_OF_RANGE, 0)


def test_what_was_deleted_is_out_of_range_whichever_epoch_was_read_last(
    partition: Partition,
) -> None:
    partition.log.move_log_start(4)
    answer = _looked_at(partition, 3, 2)
    assert (answer.error_code, answer.diverging_epoch) == (OFFSET_OUT_OF_RANGE, None)


def _looked_at(partition: Partition, offset: int, last_epoch: int) -> FetchResponsePartition:
    async def look() -> FetchResponsePartition:
        services = SimpleNamespace(
            replicas=None,
            sessions=None,
            config=BrokerConfig(fetch=FetchConfig(bytes_max=10**6)),
            quotas=None,
            traffic=SimpleNamespace(apis={1: None}, remote_fetches=None),
            clock=SystemClock(),
            cold_pace=None,
            records=None,
        )
        handler = FetchHandler(cast(Services, services), cast(FetchSessionCache, None))
        wanted = WantedPartition(PARTITION.topic, None, 0, offset, 1 << 20, -1, last_epoch)
        return handler._read_partition(plan_of_nothing(), wanted, partition, FetchPass())

    return asyncio.run(look())


class MovedLog:
    """A log whose folder goes away while it is flushed."""

    recovery_point = 0

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.moved = threading.Event()

    def advance_high_watermark(self, _offset: int) -> None: ...

    def flush(self, _up_to: int | None = None) -> None:
        self.begun.set()
        assert self.moved.wait(30)
        raise DiskError("cannot sync t-0: No such file or directory")


def partition_over(log: object, syncs: Executor) -> Partition:
    return Partition(
        TopicPartition("t", 0),
        uuid.uuid4(),
        cast(UnifiedLog, log),
        0,
        leader_id=1,
        syncs=lambda _: syncs,
        traffic=TopicTraffic(),
    )


def flushed(*, is_replaced: bool, callers: int) -> list[BaseException | None]:
    """What each caller of a flush gets whose log's folder went away under it."""

    async def run() -> list[BaseException | None]:
        old = MovedLog()
        log = SimpleNamespace(end_offset=END, local=old)
        with ThreadPoolExecutor(1) as syncs:
            partition = partition_over(log, syncs)
            asked = [asyncio.create_task(partition.flush()) for _ in range(callers)]
            assert await asyncio.to_thread(old.begun.wait, 30)
            if is_replaced:
                log.local = SimpleNamespace(recovery_point=END)
            old.moved.set()
            return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(run())


@pytest.mark.parametrize("callers", [1, 3])
def test_who_waits_for_a_flush_is_not_refused_because_of_a_move(callers: int) -> None:
    assert flushed(is_replaced=True, callers=callers) == [None] * callers


@pytest.mark.parametrize("callers", [1, 3])
def test_a_folder_that_fails_refuses_everybody_who_waits(callers: int) -> None:
    assert [type(one) for one in flushed(is_replaced=False, callers=callers)] == (
        [DiskError] * callers
    )


def test_who_waits_for_a_flush_of_what_was_cut_off_meanwhile_is_refused() -> None:
    """The log never reaches that end again, or with other records."""

    class CutLog:
        recovery_point = 0

        def advance_high_watermark(self, _offset: int) -> None: ...

        def flush(self, _up_to: int | None = None) -> None:
            self.recovery_point = log.end_offset = END // 2

    async def run() -> None:
        with ThreadPoolExecutor(1) as syncs:
            partition = partition_over(log, syncs)
            async with asyncio.timeout(WAIT_S_MAX):
                with pytest.raises(DiskError, match="was cut below 10"):
                    await partition.flush()

    log = SimpleNamespace(end_offset=END, local=CutLog())
    asyncio.run(run())


class SyncedLog:
    """A log that is synced up to its end; asked often for its recovery point, it fails."""

    READS_MAX = 1000

    def __init__(self) -> None:
        self.end_offset = 0
        self._synced_end = 0
        self._read_count = 0

    @property
    def local(self) -> SyncedLog:
        return self

    @property
    def recovery_point(self) -> int:
        self._read_count += 1
        assert self._read_count < self.READS_MAX, "a caller asks again and again"
        return self._synced_end

    def advance_high_watermark(self, _offset: int) -> None: ...

    def flush(self, _up_to: int | None = None) -> None:
        self._synced_end = self.end_offset


class SyncsOnLoop(Executor):
    """Runs a sync at once: its future ends while the loop goes on."""

    def submit(self, call: Callable[..., T], /, *args: object, **_: object) -> Future[T]:
        ended: Future[T] = Future()
        ended.set_result(call(*args))
        return ended


def test_who_appends_when_a_flush_has_just_ended_starts_the_next_one() -> None:
    """The one that began the flush before is told of its end some turns of the loop later."""

    async def run() -> None:
        log = SyncedLog()
        partition = partition_over(log, SyncsOnLoop())
        async with asyncio.TaskGroup() as callers:
            for _ in range(10):
                log.end_offset += 1
                callers.create_task(partition.flush())
                # One turn: each comes at another moment of the flush before.
                await asyncio.sleep(0)
        assert log.recovery_point == log.end_offset

    asyncio.run(run())


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_log_whose_flush_failed_is_freed_without_a_collection() -> None:
    """Its files are open for as long as it lives."""

    class FailingLog(SyncedLog):
        def flush(self, _up_to: int | None = None) -> None:
            raise DiskError("cannot sync t-0: Input/output error")

    async def run() -> weakref.ref[SyncedLog]:
        log = FailingLog()
        log.end_offset = END
        with ThreadPoolExecutor(1) as syncs:
            partition = partition_over(log, syncs)
            with pytest.raises(DiskError):
                await partition.flush()
        return weakref.ref(log)

    assert asyncio.run(run())() is None


@pytest.mark.usefixtures("no_collection")
def test_a_refused_batch_is_freed_without_a_collection() -> None:
    """Its error references the request's buffer, and clients choose how many there are."""

    def refuse() -> memoryview:
        raise InvalidRecords("records that do not match their header")

    async def run() -> weakref.ref[InvalidRecords]:
        with ThreadPoolExecutor(1) as workers:
            partition = partition_over(SyncedLog(), workers)
            loop = asyncio.get_running_loop()
            try:
                await partition.append_prepared(loop.run_in_executor(workers, refuse))
            except InvalidRecords as error:
                return weakref.ref(error)
        raise AssertionError("it was not refused")

    assert asyncio.run(run())() is None
