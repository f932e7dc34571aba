"""Groups lie where Kafka puts them, and are not served before their log is read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from strandline.broker.cluster.metadata.controller_messages import ControllerRequest, ResultT
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.model.offset_messages import OffsetRecord
from strandline.broker.coordination.records.offset_records import encode_records
from strandline.broker.coordination.runtime.slots import (
    coordinating_partition,
    java_hash,
)
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC, OffsetCommitValue
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.model import TopicId, TopicPartition
from strandline.storage.records.batch.batch import read_header
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from tests.unit.broker.coordination.coordinator_world import (
    MemoryPartition,
    Running,
    World,
    commit_request,
    fault_of,
    move,
    offset_in,
    play,
    until_loaded,
)
from tests.unit.broker.coordination.group_trace import join_request


def test_groups_are_not_served_before_their_log_is_read() -> None:
    async def scenario(world: World) -> None:
        await world.coordinator().commit("g", commit_request())
        restarted = world.coordinator()
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert fault_of(lambda: restarted.offsets_of("g")) is loading
        with pytest.raises(CoordinatorFault):
            await restarted.describe("g")
        assert fault_of(restarted.groups) is loading
        assert await restarted.delete("g") is loading
        with pytest.raises(CoordinatorFault):
            await restarted.commit("g", commit_request())
        with pytest.raises(CoordinatorFault):
            await restarted.join("g", join_request())
        # Members are told that all is well: their session begins when the group is loaded.
        code = await restarted.heartbeat("g", member_id="m", group_instance_id=None, generation=1)
        assert code is ErrorCode.NONE

    play(scenario)


@dataclass
class SlowWorld(World):
    """A change shows in the image before the partitions follow it; the next change waits."""

    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, request: ControllerRequest[ResultT]) -> Sequence[ResultT]:
        async with self.changing:
            before = self.image
            results = await super().ask(request)
            if self.image.version > before.version and self.image.topics != before.topics:
                following, self.partitions = self.partitions, {}
                await asyncio.sleep(0)
                self.partitions = following
            return results


def test_a_commit_waits_while_another_creates_the_topic() -> None:
    async def scenario(_: World) -> None:
        coordinator = SlowWorld().coordinator()
        answers = await asyncio.gather(
            *(coordinator.commit(group, commit_request()) for group in ("g", "h"))
        )
        assert [list(codes) for codes in answers] == [[ErrorCode.NONE]] * 2

    play(scenario)


@dataclass
class SlowDiskWorld(World):
    """The logs of a new topic come after the change of the metadata."""

    late: Sequence[int] = (0, 1)
    coming: dict[int, MemoryPartition] = field(default_factory=dict)

    async def ask(self, request: ControllerRequest[ResultT]) -> Sequence[ResultT]:
        topics = self.image.topics
        results = await super().ask(request)
        if self.image.topics != topics:
            self.coming = {index: self.partitions.pop(index) for index in self.late}
        return results

    def is_coming(self, key: TopicPartition) -> bool:
        return key.partition in self.coming

    async def created(self, topic_ids: Iterable[TopicId]) -> None:
        assert list(topic_ids) == [self.image.topics[OFFSETS_TOPIC].topic_id]
        await asyncio.sleep(10)
        self.partitions |= self.coming
        self.coming = {}


def test_the_first_groups_wait_for_a_slow_disk_to_have_their_topic() -> None:
    async def scenario(_: World) -> None:
        coordinator = SlowDiskWorld().coordinator()
        first = asyncio.create_task(coordinator.commit("g", commit_request()))
        await asyncio.sleep(5)
        second = coordinator.commit("h", commit_request())
        answers = await asyncio.gather(first, second)
        assert [list(codes) for codes in answers] == [[ErrorCode.NONE]] * 2

    play(scenario)


def test_a_group_whose_disk_is_prompt_does_not_wait_for_the_slow_disk_of_another() -> None:
    async def scenario(_: World) -> None:
        slow, prompt = (
            next(name for name in "abcdefgh" if coordinating_partition(name, 2) == index)
            for index in (0, 1)
        )
        coordinator = SlowDiskWorld(late=(0,)).coordinator()
        waiting = asyncio.create_task(coordinator.commit(slow, commit_request()))
        await asyncio.sleep(0)
        assert list(await coordinator.commit(prompt, commit_request())) == [ErrorCode.NONE]
        assert not waiting.done()
        assert list(await waiting) == [ErrorCode.NONE]

    play(scenario)


def test_a_log_that_cannot_be_read_is_tried_again_and_nothing_forgotten() -> None:
    async def scenario(world: World) -> None:
        await world.coordinator().commit("g", commit_request())
        world.fail(DiskError("broken"))
        async with Running(world) as restarted:
            await asyncio.sleep(0.05)
            assert restarted.statistics().loaded_partitions == 1
            world.fail(None)
            world.clock.advance_ms(30_000)
            await until_loaded(restarted)
            assert offset_in(restarted, "g") == 5

    play(scenario)


def test_a_log_that_cannot_be_read_is_logged_once_a_minute_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)

    def failed() -> list[logging.LogRecord]:
        return [one for one in caplog.records if one.getMessage() == "groups not loaded"]

    async def scenario(world: World) -> None:
        await world.coordinator().commit("g", commit_request())
        world.fail(DiskError("broken"))
        async with Running(world):
            for count in range(1, 5):
                while len(failed()) < count:
                    await asyncio.sleep(0.002)
                world.clock.advance_ms(30_000)

    play(scenario)
    levels = [one.levelname for one in failed()[:4]]
    assert levels == ["ERROR", "DEBUG", "ERROR", "DEBUG"]


def test_a_partition_that_moved_away_is_not_coordinated_and_one_that_returns_is_loaded() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            await coordinator.commit("g", commit_request(1))
            for partition in world.partitions.values():
                partition.hold()
            waiting = asyncio.create_task(coordinator.commit("g", commit_request(2)))
            await asyncio.sleep(0)
            move(world, coordinator, OFFSETS_TOPIC, leader=2, epoch=5)
            for refused in (waiting, coordinator.commit("g", commit_request(3))):
                with pytest.raises(CoordinatorFault) as caught:
                    await refused
                assert caught.value.error_code is ErrorCode.NOT_COORDINATOR
            assert coordinator.statistics().loaded_partitions == 0
            move(world, coordinator, OFFSETS_TOPIC, leader=1, epoch=6)
            assert fault_of(lambda: coordinator.offsets_of("g")) is (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            )
            await until_loaded(coordinator)
            # What is above the high watermark is state too: the leader keeps it.
            assert offset_in(coordinator, "g") == 2

    play(scenario)


def _transactional(offset: int, producer_id: int) -> bytes:
    committed = OffsetCommitValue(offset=offset, committed_ms=1)
    batch = encode_records([OffsetRecord("g", "t", 0, committed)], 1)
    # Rebuilt with the producer's id; what the broker itself writes has none.
    records = list(iter_records(batch, read_header(batch)))
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )


def _marker(kind: int, producer_id: int) -> bytes:
    record = Record(offset=0, timestamp_ms=1, key=kind.to_bytes(4, "big"), value=b"\0\0\0\0\0\0")
    return encode_batch(
        [record], producer_id=producer_id, producer_epoch=0, transactional=True, control=True
    )


def test_transactional_commits_count_when_their_transaction_did() -> None:
    async def scenario(world: World) -> None:
        first = world.coordinator()
        await first.commit("g", commit_request(1))
        (partition,) = [p for p in world.partitions.values() if p.end_offset]
        for data in (
            _transactional(10, 77),
            _transactional(20, 88),
            _marker(1, 77),
            _marker(0, 88),
            _transactional(30, 99),
        ):
            partition.append(memoryview(bytearray(data)), origin=AppendOrigin.COORDINATOR)
        async with Running(world) as restarted:
            await until_loaded(restarted)
            assert offset_in(restarted, "g") == 10

    play(scenario)


@pytest.mark.parametrize(
    ("text", "signed"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("ä", 228),
        ("😀", 1772899),
    ],
)
def test_java_hash_is_that_of_java(text: str, signed: int) -> None:
    assert java_hash(text) == signed % 2**32


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("", 0),
        ("a", 97 % 50),
        # Its hash is the lowest number, which has no absolute value.
        ("polygenelubricants", 0),
        # Of negative hashes the absolute value.
        ("orders-producer", 42),
        ("copier-0", 33),
        ("payments", 13),
    ],
)
def test_a_group_or_transactional_id_lies_where_kafka_puts_it(name: str, partition: int) -> None:
    assert coordinating_partition(name, 50) == partition
