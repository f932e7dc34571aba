"""The shell: records before answers, loading, and what happens when the log does not play along."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.broker.cluster.decisions import TopicDefaults
from strandline.broker.cluster.image import MetadataImage, replay
from strandline.broker.cluster.records import ClusterCreated, TopicCreated, TopicDeleted
from strandline.broker.coordination import runtime
from strandline.broker.coordination.faults import CoordinatorFault
from strandline.broker.coordination.group_offsets import CommittedOffset
from strandline.broker.coordination.group_values import (
    GroupState,
    JoinRequest,
    LeavingMember,
    MemberProtocol,
    SyncRequest,
)
from strandline.broker.coordination.offset_records import encode_records
from strandline.broker.coordination.runtime import GroupCoordinator
from strandline.broker.coordination.shard_values import (
    CommitRequest,
    OffsetRecord,
    OffsetToCommit,
)
from strandline.broker.protocol.errors import ErrorCode
from strandline.broker.protocol.offsets_topic import OFFSETS_TOPIC
from strandline.storage.clock import ManualClock
from strandline.storage.errors import DiskError, MessageTooLarge
from strandline.storage.local.log import AppendOrigin
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch import read_header, stamp
from strandline.storage.records.record import Record, encode_batch, iter_records
from tests.unit.coordination.group_trace import subscription

TOPIC_ID = uuid.UUID(int=7)
CONFIG = SimpleNamespace(
    group_min_session_timeout_ms=1000,
    group_max_session_timeout_ms=60_000,
    group_initial_rebalance_delay_ms=0,
    group_max_size=100,
    group_consumer_session_timeout_ms=45_000,
    group_consumer_heartbeat_interval_ms=5_000,
    group_consumer_max_size=100,
    group_consumer_assignors=("uniform", "range"),
    group_consumer_regex_refresh_interval_ms=600_000,
    group_consumer_migration_policy="bidirectional",
    offsets_topic_num_partitions=2,
    offsets_topic_segment_bytes=1_048_576,
    offsets_retention_minutes=10,
    offsets_retention_check_interval_ms=60_000,
    offset_metadata_max_bytes=100,
)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does not see a manual clock move, so it must not sleep long."""
    monkeypatch.setattr(runtime, "POLL_S", 0.005)


class MemoryPartition:
    """A partition that is its own log, in memory; appends fail with `failure` if it is set."""

    must_flush = False

    def __init__(self, index: int) -> None:
        self.topic_partition = TopicPartition(OFFSETS_TOPIC, index)
        self.log = self
        self.log_start_offset = 0
        self.end_offset = 0
        self.batches: list[tuple[int, bytes]] = []
        self.failure: Exception | None = None

    @property
    def high_watermark(self) -> int:
        return self.end_offset

    def append(self, records: memoryview, *, origin: AppendOrigin) -> None:
        assert origin is AppendOrigin.COORDINATOR
        if self.failure is not None:
            raise self.failure
        stamp(records, 0, self.end_offset, 0)
        self.batches.append((self.end_offset, bytes(records)))
        self.end_offset += read_header(records).record_count

    def read(self, offset: int, *, bytes_max: int) -> object:
        """One batch at a time, as a log with tiny chunks."""
        if self.failure is not None:
            raise self.failure
        (batch,) = [data for start, data in self.batches if start == offset]
        following = [start for start, _ in self.batches if start > offset]
        return SimpleNamespace(
            range=SimpleNamespace(read=lambda: batch),
            next_offset=min(following, default=self.end_offset),
        )


@dataclass
class World:
    """Metadata, partitions and a clock that outlive the coordinators of a test."""

    image: MetadataImage = field(
        default_factory=lambda: replay(
            MetadataImage(),
            [
                [
                    ClusterCreated(cluster_id="c"),
                    TopicCreated(topic="t", topic_id=TOPIC_ID, replicas=((1,),), properties={}),
                ]
            ],
        )
    )
    partitions: dict[int, MemoryPartition] = field(
        default_factory=lambda: {0: MemoryPartition(0), 1: MemoryPartition(1)}
    )
    clock: ManualClock = field(default_factory=ManualClock)
    executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    async def change(self, decide: Callable[[MetadataImage], Any]) -> Any:
        decision = decide(self.image)
        self.image = self.image.apply_entry(decision.records)
        return decision

    def partition(self, topic: str, index: int) -> MemoryPartition | None:
        return self.partitions.get(index) if topic in self.image.topics else None

    def coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            CONFIG,
            self,  # type: ignore[arg-type]  # a fake of what is used of it
            self,  # type: ignore[arg-type]  # likewise
            node_id=1,
            topic_defaults=TopicDefaults(),
            clock=self.clock,
            reads=self.executor,
        )

    def fail(self, failure: Exception | None) -> None:
        for partition in self.partitions.values():
            partition.failure = failure


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        world = World()
        async with asyncio.timeout(10):
            await scenario(world)
        world.executor.shutdown()

    asyncio.run(bounded())


class Running:
    """A coordinator whose loop runs; used with `async with`."""

    def __init__(self, world: World) -> None:
        self._coordinator = world.coordinator()

    async def __aenter__(self) -> GroupCoordinator:
        self._task = asyncio.create_task(self._coordinator.run())
        return self._coordinator

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def until(check: Callable[[], object]) -> None:
    while not check():
        await asyncio.sleep(0.002)


async def until_loaded(coordinator: GroupCoordinator) -> None:
    await until(lambda: coordinator.statistics().loaded_partitions == 2)


def join_request(member_id: str = "", *, session_timeout_ms: int = 10_000) -> JoinRequest:
    return JoinRequest(
        member_id=member_id,
        client_id="c",
        client_host="/h",
        protocol_type="consumer",
        protocols=(MemberProtocol("range", subscription("t")),),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=10_000,
        needs_member_id=False,
    )


def commit_request(offset: int = 5) -> CommitRequest:
    return CommitRequest(offsets=(OffsetToCommit("t", 0, offset),))


def fault_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(CoordinatorFault) as caught:
        call()
    return caught.value.error_code


def offset_in(coordinator: GroupCoordinator, group_id: str) -> int | None:
    offsets = coordinator.offsets_of(group_id)
    found = None if offsets is None else offsets.get("t", 0)
    return None if found is None else found.offset


def test_nothing_is_created_for_those_who_only_look() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        assert coordinator.offsets_of("g") is None
        assert coordinator.describe("g") is None
        assert coordinator.groups() == []
        assert await coordinator.delete("g") is ErrorCode.GROUP_ID_NOT_FOUND
        assert OFFSETS_TOPIC not in world.image.topics

    play(scenario)


def test_the_first_commit_creates_the_topic_with_the_partitions_asked_for() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        assert await coordinator.commit("g", commit_request()) == (ErrorCode.NONE,)
        topic = world.image.topics[OFFSETS_TOPIC]
        assert topic.partition_count == 2
        assert topic.properties["cleanup.policy"] == "compact"

    play(scenario)


def test_a_second_coordinator_loads_what_the_first_has_written() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as first:
            joined = await first.join("g", join_request())
            wanted = SyncRequest(
                member_id=joined.member_id,
                generation=1,
                assignments={joined.member_id: b"all"},
            )
            assert (await first.sync("g", wanted)).assignment == b"all"
            await first.commit("h", commit_request(5))
            await first.commit("h", commit_request(6))
        async with Running(world) as second:
            await until_loaded(second)
            assert offset_in(second, "h") == 6
            described = second.describe("g")
            assert described is not None
            assert described.state is GroupState.STABLE
            assert described.members[0].assignment == b"all"
            (left,) = await second.leave("g", [LeavingMember(member_id=joined.member_id)])
            assert left.error_code is ErrorCode.NONE

    play(scenario)


def test_a_silent_member_is_missed() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            joined = await coordinator.join("g", join_request())
            await coordinator.sync("g", SyncRequest(member_id=joined.member_id, generation=1))
            world.clock.advance_ms(10_000)
            await until(lambda: coordinator.statistics().groups_by_state[GroupState.EMPTY] == 1)

    play(scenario)


def test_old_offsets_are_looked_for_and_forgotten() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            await coordinator.commit("g", commit_request())
            world.clock.advance_ms(11 * 60_000)
            await until(lambda: not coordinator.statistics().offset_count)
            assert coordinator.describe("g") is None
        async with Running(world) as coordinator:
            await until_loaded(coordinator)
            assert coordinator.describe("g") is None

    play(scenario)


def test_the_offsets_of_a_deleted_topic_are_forgotten_before_the_next_commit() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.commit("g", commit_request())
        world.image = world.image.apply(TopicDeleted(topic_id=TOPIC_ID))
        assert offset_in(coordinator, "g") is None

    play(scenario)


# --- while it loads --------------------------------------------------------------------------


def test_groups_are_not_served_before_their_log_is_read() -> None:
    async def scenario(world: World) -> None:
        await world.coordinator().commit("g", commit_request())
        restarted = world.coordinator()
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert fault_of(lambda: restarted.offsets_of("g")) is loading
        assert fault_of(lambda: restarted.describe("g")) is loading
        assert fault_of(restarted.groups) is loading
        assert await restarted.delete("g") is loading
        with pytest.raises(CoordinatorFault):
            await restarted.commit("g", commit_request())
        with pytest.raises(CoordinatorFault):
            await restarted.join("g", join_request())
        # Members are told that all is well: their session begins when the group is loaded.
        code = restarted.heartbeat("g", member_id="m", group_instance_id=None, generation=1)
        assert code is ErrorCode.NONE

    play(scenario)


def test_a_log_that_cannot_be_read_is_tried_again_and_nothing_forgotten() -> None:
    async def scenario(world: World) -> None:
        await world.coordinator().commit("g", commit_request())
        world.fail(DiskError("broken"))
        async with Running(world) as restarted:
            await asyncio.sleep(0.05)
            assert restarted.statistics().loading_partitions == 1
            world.fail(None)
            world.clock.advance_ms(30_000)
            await until_loaded(restarted)
            assert offset_in(restarted, "g") == 5

    play(scenario)


def _transactional(offset: int, producer_id: int) -> bytes:
    committed = CommittedOffset(offset, -1, "", 1)
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


# --- when it cannot write --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (DiskError("full"), ErrorCode.NOT_COORDINATOR),
        (MessageTooLarge("too much"), ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_cannot_be_written_is_refused_and_not_seen(
    failure: Exception, code: ErrorCode
) -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.commit("g", commit_request(1))
        world.fail(failure)
        with pytest.raises(CoordinatorFault) as caught:
            await coordinator.commit("g", commit_request(2))
        assert caught.value.error_code is code
        assert offset_in(coordinator, "g") == 1

    play(scenario)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (DiskError("full"), ErrorCode.NOT_COORDINATOR),
        (MessageTooLarge("too much"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_group_that_cannot_be_written_never_was(failure: Exception, code: ErrorCode) -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        world.fail(failure)
        answer = await coordinator.join("g", join_request())
        assert answer.error_code is code
        assert coordinator.describe("g") is None
        assert coordinator.statistics().parked_requests == 0

    play(scenario)


def test_members_are_told_that_their_assignment_was_not_written() -> None:
    async def scenario(world: World) -> None:
        async with Running(world) as coordinator:
            joined = await coordinator.join("g", join_request())
            world.fail(DiskError("full"))
            synced = await coordinator.sync(
                "g", SyncRequest(member_id=joined.member_id, generation=1)
            )
            assert synced.error_code is ErrorCode.NOT_COORDINATOR

    play(scenario)


def test_a_caller_that_gives_up_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        waiting = asyncio.create_task(coordinator.join("g", join_request()))
        await until(lambda: coordinator.statistics().parked_requests)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert coordinator.statistics().parked_requests == 0

    play(scenario)
