"""A coordinator over partitions in memory, in virtual time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from strandline.broker.cluster.metadata.controller_messages import ControllerRequest, ResultT
from strandline.broker.cluster.metadata.features import first_levels
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.cluster.replicas.partition import HighWatermarkWaiter
from strandline.broker.config.loading import load_config
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.coordination.groups.group_coordinator import GroupCoordinator
from strandline.broker.coordination.model.classic_messages import CoordinatorFault, GroupRules
from strandline.broker.coordination.model.consumer_messages import ConsumerRules
from strandline.broker.coordination.model.group_config import GroupConfig
from strandline.broker.coordination.model.offset_messages import CommitRequest, OffsetToCommit
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.protocol.formats.metadata_records import MetadataRecord
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.server.decisions import decisions
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.local.segment.recovery_report import RecoveryReport
from strandline.storage.model import Isolation, TopicPartition
from strandline.storage.records.batch.batch import read_header, stamp
from tests.sim.loop import VirtualClock, run
from tests.sim.pools import InlinePool
from tests.unit.broker.cluster.controlled import registered

TOPIC_ID = uuid.UUID(int=7)
CONFIG = GroupConfig(
    session_timeout_ms_min=1000,
    session_timeout_ms_max=60_000,
    classic=GroupRules(initial_rebalance_delay_ms=0, size_max=100),
    consumer=ConsumerRules(size_max=100),
    offsets_partition_count=2,
    offsets_segment_bytes=1_048_576,
    offsets_retention_ms=600_000,
    offsets_retention_check_interval_ms=60_000,
    offset_metadata_length_max=100,
)


DECISIONS = decisions(RunningConfig(load_config()))


class MemoryPartition:
    """A partition that is its own log, in memory; appends fail with `failure` if it is set.

    `hold` keeps its high watermark where it is, as a replica that does not fetch.
    """

    must_flush = False
    # Who replicates it is `hold` alone.
    leading = None

    def __init__(self, index: int) -> None:
        self.topic_partition = TopicPartition(OFFSETS_TOPIC, index)
        self.log = self
        self.log_start_offset = 0
        self.end_offset = 0
        self.batches: list[tuple[int, bytes]] = []
        self.failure: Exception | None = None
        self._held: int | None = None
        self._waiters: set[HighWatermarkWaiter] = set()
        # Where it was flushed last.
        self.recovery_point = 0
        self.local = self
        self.recovery_report = RecoveryReport(clean_shutdown=True)

    async def flush(self) -> None:
        self.recovery_point = self.end_offset

    @property
    def high_watermark(self) -> int:
        return self.end_offset if self._held is None else self._held

    def hold(self) -> None:
        self._held = self.high_watermark

    def release(self) -> None:
        self._held = None
        for waiter in tuple(self._waiters):
            waiter.on_high_watermark(1)

    def wait(self, waiter: HighWatermarkWaiter) -> None:
        self._waiters.add(waiter)

    def stop_waiting(self, waiter: HighWatermarkWaiter) -> None:
        self._waiters.discard(waiter)

    def may_rely_on(self, end_offset: int) -> bool:
        return end_offset <= self.high_watermark

    def append(self, records: memoryview, *, origin: AppendOrigin) -> None:
        assert origin is AppendOrigin.COORDINATOR
        if self.failure is not None:
            raise self.failure
        stamp(records, 0, self.end_offset, 0)
        self.batches.append((self.end_offset, bytes(records)))
        self.end_offset += read_header(records).record_count

    def read(self, offset: int, *, bytes_max: int, isolation: Isolation) -> object:
        """One batch at a time, as a log with tiny chunks."""
        assert isolation is Isolation.LOG_END
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
        default_factory=lambda: MetadataImage().apply_entry(
            [*first_levels(), registered(), *topic_records("t", TOPIC_ID, ((1,),), {})]
        )
    )
    partitions: dict[int, MemoryPartition] = field(
        default_factory=lambda: {0: MemoryPartition(0), 1: MemoryPartition(1)}
    )
    clock: VirtualClock = field(default_factory=VirtualClock)
    executor: InlinePool = field(default_factory=InlinePool)

    async def ask(self, request: ControllerRequest[ResultT]) -> Sequence[ResultT]:
        decision = DECISIONS[type(request)](self.image, request)
        if decision.records:
            self.image = self.image.apply_entry(decision.records)
        return decision.results

    def publish(self, coordinator: GroupCoordinator, *records: MetadataRecord) -> None:
        """Changes the metadata, which that coordinator follows."""
        delta = MetadataDelta(self.image)
        delta.replay(records)
        self.image = delta.image()
        coordinator.follow(delta, self.image)

    def partition(self, topic: str, index: int) -> MemoryPartition | None:
        return self.partitions.get(index) if topic in self.image.topics else None

    def is_coming(self, _: TopicPartition) -> bool:
        """Partitions are there as soon as the image has them."""
        return False

    def coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            replace(CONFIG, offsets_partition_count=len(self.partitions)),
            self,  # type: ignore[arg-type]  # a fake of what is used of it
            self,  # type: ignore[arg-type]  # likewise
            self,  # type: ignore[arg-type]  # likewise
            node_id=1,
            clock=self.clock,
            reads=self.executor,
        )

    def fail(self, failure: Exception | None) -> None:
        for partition in self.partitions.values():
            partition.failure = failure


def move(
    world: World,
    coordinator: GroupCoordinator | TransactionCoordinator,
    topic: str,
    *,
    leader: int,
    epoch: int,
) -> None:
    """Gives all partitions of a topic another leader, or another epoch of theirs."""
    before, delta = world.image.topics[topic], MetadataDelta(world.image)
    partitions = tuple(replace(one, leader=leader, leader_epoch=epoch) for one in before.partitions)
    delta.set_topic(replace(before, partitions=partitions))
    world.image = delta.image()
    coordinator.follow(delta, world.image)


WorldT = TypeVar("WorldT", bound=World)


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    play_in(World, scenario)


def play_in(
    make: Callable[[], WorldT], scenario: Callable[[WorldT], Coroutine[Any, Any, None]]
) -> None:
    """Plays a scenario in a new world, in virtual time."""

    async def played() -> None:
        await scenario(make())

    run(played)


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


def commit_request(offset: int = 5) -> CommitRequest:
    return CommitRequest(offsets=(OffsetToCommit("t", 0, offset, topic_id=TOPIC_ID),))


def fault_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(CoordinatorFault) as caught:
        call()
    return caught.value.error_code


def offset_in(coordinator: GroupCoordinator, group_id: str) -> int | None:
    offsets = coordinator.offsets_of(group_id)
    found = None if offsets is None else offsets.get("t", 0)
    return None if found is None else found.offset
