"""The steps of transactions, what the time does to them, and what a restart takes up."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from strandline.broker.cluster.metadata.image import MetadataDelta
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.runtime.slots import coordinating_partition
from strandline.broker.coordination.transactions.config import TransactionConfig
from strandline.broker.coordination.transactions.ends import MARKERS_PER_TURN_MAX
from strandline.broker.coordination.transactions.markers import EndMarker, OnReplicated
from strandline.broker.coordination.transactions.power_loss.lost_ends import (
    DecidedEnd,
    OpenTransaction,
)
from strandline.broker.coordination.transactions.power_loss.repair import ENDS_PER_TURN_MAX
from strandline.broker.coordination.transactions.records import TransactionRecord, encode_record
from strandline.broker.coordination.transactions.transaction import (
    PRODUCER_EPOCH_MAX,
    LogEnd,
    ProducerIdentity,
    TransactionState,
    TransactionVersion,
)
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.coordination.transactions.verification import Confirmation
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from strandline.broker.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.concurrency import turns
from strandline.storage.crash_points import (
    TRANSACTION_AFTER_COMPLETE,
    TRANSACTION_AFTER_MARKER,
    TRANSACTION_AFTER_PREPARE,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import DiskError, RecordListTooLarge
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.local.segment.recovery_report import RecoveryReport
from strandline.storage.model import ZERO_TOPIC_ID, TopicPartition
from strandline.storage.records.batch.marker import MarkerType
from tests.sim.loop import next_turn
from tests.unit.broker.coordination.coordinator_world import MemoryPartition, World, move, play_in
from tests.unit.broker.coordination.transactions.test_marker_channel import all_written

V1, V2 = TransactionVersion.V0, TransactionVersion.V2
COMMIT, ABORT = MarkerType.COMMIT, MarkerType.ABORT
A, B = TopicPartition("t", 0), TopicPartition("gone", 0)
TIMEOUT_MS = 60_000
CONFIG = TransactionConfig(partition_count=2)


@dataclass
class Markers:
    """Notes the markers; `codes` says which partitions refuse theirs."""

    codes: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    written: list[tuple[TopicPartition, MarkerType, ProducerIdentity]] = field(default_factory=list)

    left_open: list[OpenTransaction] = field(default_factory=list)
    ended_since: list[OpenTransaction] = field(default_factory=list)
    # The greatest epoch of each producer in any log.
    epochs: dict[int, int] = field(default_factory=dict)
    asked: int = 0
    # Where all logs end.
    end_offset: int = 10

    def log_ends(self, partitions: Iterable[TopicPartition]) -> tuple[LogEnd, ...]:
        return tuple(LogEnd(one, ZERO_TOPIC_ID, 0, self.end_offset) for one in sorted(partitions))

    def write(
        self,
        marker: EndMarker,
        where: TopicPartition,
        on_replicated: OnReplicated = lambda _: None,
    ) -> ErrorCode:
        self.asked += 1
        code = self.codes.get(where, ErrorCode.NONE)
        if code is ErrorCode.NONE:
            self.written.append((where, marker.end, marker.producer))
        return code

    def open_after_crash(self) -> Iterator[OpenTransaction]:
        return iter(self.left_open)

    def is_open(self, opened: OpenTransaction) -> bool:
        return opened not in self.ended_since

    async def producers_above(self, epochs: Mapping[int, int]) -> set[int]:
        return {one for one, epoch in self.epochs.items() if epoch > epochs.get(one, epoch)}


@dataclass
class OtherBroker:
    """Broker 2, which leads `led` and takes markers, or answers with `code` or not at all."""

    led: set[TopicPartition] = field(default_factory=set)
    code: ErrorCode = ErrorCode.NONE
    is_away: bool = False
    requests: list[WriteTxnMarkersRequest] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    added: list[AddPartitionsToTxnRequest] = field(default_factory=list)
    # What it says of all partitions of a transaction, or of the request.
    added_code: int = ErrorCode.NONE
    whole_code: int = ErrorCode.NONE
    coordinated: str = "tx"

    def leader_of(self, partition: TopicPartition) -> int | None:
        return 2 if partition in self.led else None

    async def write_markers(
        self, node_id: int, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        assert node_id == 2
        self.requests.append(request)
        await self.may_answer.wait()
        if self.is_away:
            raise ConnectionResetError
        return all_written(request, self.code)

    async def add_partitions(
        self, node_id: int, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        assert node_id == 2
        self.added.append(request)
        if self.is_away:
            raise ConnectionResetError
        return AddPartitionsToTxnResponse(
            error_code=self.whole_code,
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=self.coordinated,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=self.added_code
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in request.transactions[0].topics
                    ],
                )
            ],
        )

    def spawn(self, task: Coroutine[Any, Any, None]) -> object:
        return asyncio.create_task(task)


class TransactionWorld(World):
    """A world with partitions that take markers."""

    def __init__(self) -> None:
        super().__init__()
        self.markers = Markers()
        self.config = CONFIG
        self.other = OtherBroker()

    def transactions(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            lambda: self.config,
            self,  # type: ignore[arg-type]  # a fake of what is used of it
            self,  # type: ignore[arg-type]  # likewise
            self,  # type: ignore[arg-type]  # likewise
            self.markers,  # type: ignore[arg-type]  # likewise
            self.markers,  # type: ignore[arg-type]  # likewise
            node_id=1,
            clock=self.clock,
            reads=self.executor,
            others=self.other,
        )

    def state_record_count(self) -> int:
        """How many records its log has, in all partitions."""
        return sum(partition.high_watermark for partition in self.partitions.values())

    def close(self, *, is_clean: bool) -> None:
        """How the next coordinator finds the logs."""
        for partition in self.partitions.values():
            partition.recovery_report = RecoveryReport(clean_shutdown=is_clean)

    async def restarted(self) -> TransactionCoordinator:
        """A coordinator that has loaded everything, with its loop running."""
        coordinator = self.transactions()
        self.task = asyncio.create_task(coordinator.run())
        while True:
            await asyncio.sleep(0.002)
            try:
                await coordinator.transactions()
            except CoordinatorFault:
                continue
            await asyncio.sleep(0.02)
            return coordinator


def play(scenario: Callable[[TransactionWorld], Coroutine[Any, Any, None]]) -> None:
    play_in(TransactionWorld, scenario)


async def begun(
    coordinator: TransactionCoordinator, *partitions: TopicPartition, name: str = "tx"
) -> ProducerIdentity:
    """A producer with a transaction over these partitions."""
    producer = await coordinator.init_producer(name, timeout_ms=TIMEOUT_MS, expected=None)
    code = await coordinator.add_partitions(name, producer, set(partitions), V2)
    assert code is ErrorCode.NONE
    return producer


async def begin_again(coordinator: TransactionCoordinator, *, name: str = "tx") -> ProducerIdentity:
    return await coordinator.init_producer(name, timeout_ms=TIMEOUT_MS, expected=None)


def state_of(coordinator: TransactionCoordinator, name: str = "tx") -> TransactionState:
    found = coordinator.find(name)
    assert found is not None
    return found.state


async def code_of(request: Coroutine[Any, Any, object]) -> ErrorCode:
    try:
        await request
    except CoordinatorFault as fault:
        return fault.error_code
    return ErrorCode.NONE


@pytest.mark.parametrize("end", [COMMIT, ABORT])
def test_an_end_is_written_to_every_partition_and_completed(end: MarkerType) -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        producer = await begun(coordinator, A)
        after = await coordinator.end("tx", producer, end, V2)
        fenced = ProducerIdentity(producer.producer_id, producer.epoch + 1)
        assert after == fenced
        assert world.markers.written == [(A, end, fenced)]
        completed = (
            TransactionState.COMPLETE_COMMIT if end is COMMIT else TransactionState.COMPLETE_ABORT
        )
        assert state_of(coordinator) is completed

    play(scenario)


@pytest.mark.parametrize(
    ("point", "markers_before"),
    [
        (TRANSACTION_AFTER_PREPARE, 0),
        (TRANSACTION_AFTER_MARKER, 1),
        (TRANSACTION_AFTER_COMPLETE, 1),
    ],
)
def test_a_start_finishes_what_was_decided(point: str, markers_before: int) -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        producer = await begun(coordinator, A)
        with simulated_crash(point), pytest.raises(SimulatedCrash):
            await coordinator.end("tx", producer, COMMIT, V2)
        assert len(world.markers.written) == markers_before
        restarted = await world.restarted()
        assert state_of(restarted) is TransactionState.COMPLETE_COMMIT
        assert {(where, end) for where, end, _ in world.markers.written} == {(A, COMMIT)}

    play(scenario)


def test_a_marker_that_cannot_be_written_is_tried_until_it_can() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        producer = await begun(coordinator, A)
        world.markers.codes[A] = ErrorCode.KAFKA_STORAGE_ERROR
        # The outcome is certain, so the producer need not wait.
        next_one = await coordinator.end("tx", producer, COMMIT, V2)
        assert state_of(coordinator) is TransactionState.PREPARE_COMMIT
        code = await coordinator.add_partitions("tx", next_one, {A}, V2)
        assert code is ErrorCode.CONCURRENT_TRANSACTIONS
        world.markers.codes.clear()
        while state_of(coordinator) is not TransactionState.COMPLETE_COMMIT:
            await asyncio.sleep(0.002)
        assert len(world.markers.written) == 1

    play(scenario)


def test_a_transaction_that_ended_before_all_was_loaded_blocks_no_partition() -> None:
    async def scenario(world: TransactionWorld) -> None:
        opened = OpenTransaction(
            partition=A,
            topic_id=ZERO_TOPIC_ID,
            producer=ProducerIdentity(7, 0),
            first_offset=3,
            leader_epoch=0,
            coordinator_epoch=0,
        )
        await begun(world.transactions(), A)
        world.markers.left_open.append(opened)
        # Its producer began again, whose marker had the epoch of the new coordinator.
        world.markers.ended_since.append(opened)
        world.markers.codes[A] = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        coordinator = await world.restarted()
        assert not coordinator.is_settling(A)

    play(scenario)


def test_a_new_producer_is_answered_when_its_record_is_on_the_device() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        for _ in range(2):
            await begin_again(coordinator)
            assert all(one.recovery_point == one.end_offset for one in world.partitions.values())

    play(scenario)


@pytest.mark.parametrize("is_clean", [True, False])
def test_after_an_unclean_stop_the_next_producer_has_an_id_that_nobody_had(is_clean: bool) -> None:
    async def scenario(world: TransactionWorld) -> None:
        first = await begin_again(world.transactions())
        world.close(is_clean=is_clean)
        coordinator = await world.restarted()
        # The one that goes on is the one that the coordinator knows.
        assert await coordinator.add_partitions("tx", first, {A}, V2) is ErrorCode.NONE
        recovered = await coordinator.end("tx", first, COMMIT, V2)
        assert recovered.producer_id == first.producer_id
        second = await begin_again(coordinator)
        assert (second.producer_id == first.producer_id) is is_clean
        third = await begin_again(coordinator)
        assert third == ProducerIdentity(second.producer_id, second.epoch + 1)

    play(scenario)


@pytest.mark.parametrize("is_open", [True, False])
def test_an_id_that_is_behind_the_logs_is_retired(is_open: bool) -> None:
    async def scenario(world: TransactionWorld) -> None:
        before = world.transactions()
        producer = await begun(before, A)
        if not is_open:
            await before.end("tx", producer, COMMIT, V1)
        await begun(before, A, name="other")
        world.markers.epochs = {producer.producer_id: producer.epoch + 1}
        coordinator = await world.restarted()
        ended = TransactionState.COMPLETE_ABORT if is_open else TransactionState.COMPLETE_COMMIT
        assert state_of(coordinator) is ended
        code = await coordinator.add_partitions("tx", producer, {A}, V2)
        assert code is ErrorCode.PRODUCER_FENCED
        assert (await begin_again(coordinator)).producer_id != producer.producer_id
        assert state_of(coordinator, "other") is TransactionState.ONGOING

    play(scenario)


def test_an_id_that_is_behind_the_logs_is_retired_after_its_decided_end() -> None:
    async def scenario(world: TransactionWorld) -> None:
        before = world.transactions()
        producer = await begun(before, A)
        world.markers.codes[A] = ErrorCode.KAFKA_STORAGE_ERROR
        await before.end("tx", producer, COMMIT, V1)
        world.markers.epochs = {producer.producer_id: producer.epoch + 1}
        coordinator = await world.restarted()
        assert state_of(coordinator) is TransactionState.PREPARE_COMMIT
        world.markers.codes.clear()
        while coordinator.find("tx").epoch == producer.epoch:  # type: ignore[union-attr]
            await asyncio.sleep(0.002)
        assert state_of(coordinator) is TransactionState.COMPLETE_COMMIT
        assert [(end, one) for _, end, one in world.markers.written] == [(COMMIT, producer)]

    play(scenario)


def test_an_id_that_cannot_be_retired_now_is_retired_later() -> None:
    async def scenario(world: TransactionWorld) -> None:
        producer = await begin_again(world.transactions())
        world.markers.epochs = {producer.producer_id: producer.epoch + 1}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryPartition, "append", raise_disk_error)
            coordinator = await world.restarted()
            assert coordinator.find("tx").epoch == producer.epoch  # type: ignore[union-attr]
        while coordinator.find("tx").epoch == producer.epoch:  # type: ignore[union-attr]
            await asyncio.sleep(0.002)

    play(scenario)


def test_a_transaction_does_not_end_before_it_is_known_whether_it_has_lost_a_part() -> None:
    async def scenario(world: TransactionWorld) -> None:
        world.markers.left_open = [
            OpenTransaction(
                partition=B,
                topic_id=ZERO_TOPIC_ID,
                producer=ProducerIdentity(0, 0),
                first_offset=0,
                leader_epoch=0,
                coordinator_epoch=0,
            )
        ]
        coordinator = world.transactions()
        producer = await begun(coordinator, A)
        assert producer == world.markers.left_open[0].producer
        ending = code_of(coordinator.end("tx", producer, COMMIT, V2))
        assert await ending is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        running = asyncio.create_task(coordinator.run())
        while state_of(coordinator) is not TransactionState.COMPLETE_ABORT:
            await asyncio.sleep(0.002)
        assert await code_of(coordinator.end("tx", producer, COMMIT, V2)) is (
            ErrorCode.PRODUCER_FENCED
        )
        running.cancel()

    play(scenario)


def left_open(partition: TopicPartition, producer_id: int, first_offset: int) -> OpenTransaction:
    return OpenTransaction(
        partition=partition,
        topic_id=ZERO_TOPIC_ID,
        producer=ProducerIdentity(producer_id, 0),
        first_offset=first_offset,
        leader_epoch=0,
        coordinator_epoch=0,
    )


@pytest.mark.parametrize("replicas", [(1,), (1, 2), (2,)])
def test_a_lone_replica_alone_ends_what_a_crash_left_open(replicas: tuple[int, ...]) -> None:
    async def scenario(world: TransactionWorld) -> None:
        await begin_again(world.transactions())
        topic, delta = world.image.topics[TRANSACTION_TOPIC], MetadataDelta(world.image)
        shared = replace(topic.partitions[1], replicas=replicas, isr=replicas, leader=replicas[0])
        delta.set_topic(replace(topic, partitions=(topic.partitions[0], shared)))
        world.image = delta.image()
        world.markers.left_open = [left_open(A, 1000, 0)]
        coordinator = await world.restarted()
        assert not coordinator.lacks_ends
        ended = [A] if replicas == (1,) else []
        assert [where for where, *_ in world.markers.written] == ended

    play(scenario)


def test_after_a_crash_the_ends_of_many_open_transactions_leave_turns_of_the_loop_to_others() -> (
    None
):
    async def scenario(world: TransactionWorld) -> None:
        many = [TopicPartition("many", index) for index in range(3 * ENDS_PER_TURN_MAX)]
        replicas = ((1,),) * len(many)
        world.image = world.image.apply_entry(topic_records("many", uuid.uuid4(), replicas, {}))
        world.markers.left_open = [left_open(one, 1000, 0) for one in many]
        # Those that cannot be ended now do not stop the others.
        refused = many[: ENDS_PER_TURN_MAX + 1]
        world.markers.codes = dict.fromkeys(refused, ErrorCode.KAFKA_STORAGE_ERROR)
        await begin_again(world.transactions())
        coordinator = world.transactions()
        running = asyncio.create_task(coordinator.run())
        while any(map(coordinator.is_settling, many[len(refused) :])):
            asked_before = world.markers.asked
            await next_turn()
            assert world.markers.asked - asked_before <= ENDS_PER_TURN_MAX
        world.markers.codes.clear()
        while any(map(coordinator.is_settling, refused)):
            await asyncio.sleep(0.002)
        assert len(world.markers.written) == len(many)
        running.cancel()

    play(scenario)


def test_after_a_crash_each_open_transaction_is_compared_with_few_of_the_ends_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log has a record for each transaction that ended since it was compacted."""
    compared = 0
    may_be_of = DecidedEnd.may_be_of

    def counted(end: DecidedEnd, producer: ProducerIdentity) -> bool:
        nonlocal compared
        compared += 1
        return may_be_of(end, producer)

    monkeypatch.setattr(DecidedEnd, "may_be_of", counted)

    async def scenario(world: TransactionWorld) -> None:
        before = world.transactions()
        partitions = [TopicPartition("many", index) for index in range(10)]
        producers = [await begun(before, one, name=str(one)) for one in partitions]
        count = 20
        for round_number in range(count):
            # Later ends are further on in their logs.
            world.markers.end_offset = round_number + 1
            for producer, one in zip(producers, partitions, strict=True):
                await before.add_partitions(str(one), producer, {one}, V1)
                await before.end(str(one), producer, COMMIT, V1)
        # The marker of the last one is lost.
        world.markers.left_open = [
            left_open(one, producer.producer_id, count - 1)
            for producer, one in zip(producers, partitions, strict=True)
        ]
        world.markers.written.clear()
        coordinator = await world.restarted()
        assert not any(map(coordinator.is_settling, partitions))
        assert {end for _, end, _ in world.markers.written} == {COMMIT}
        assert len(world.markers.written) == len(partitions)
        # Each end with what is open in its partition, and what may be lost once more.
        assert compared <= 2 * count * len(partitions)

    play(scenario)


def test_no_transaction_begins_in_a_partition_before_the_one_that_is_open_there_has_its_end() -> (
    None
):
    """Nobody knows that one: the coordinator would take it for a part of the new one."""

    async def scenario(world: TransactionWorld) -> None:
        world.markers.left_open = [
            OpenTransaction(
                partition=A,
                topic_id=ZERO_TOPIC_ID,
                producer=ProducerIdentity(0, 0),
                first_offset=0,
                leader_epoch=0,
                coordinator_epoch=0,
            )
        ]
        coordinator = world.transactions()
        producer = await begin_again(coordinator)
        assert producer == world.markers.left_open[0].producer
        code = await coordinator.add_partitions("tx", producer, {A, B}, V1)
        assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        running = asyncio.create_task(coordinator.run())
        while coordinator.is_settling(A):
            await asyncio.sleep(0.002)
        assert world.markers.written == [(A, ABORT, ProducerIdentity(0, 1))]
        running.cancel()

    play(scenario)


def raise_disk_error(*_args: object, **_kwargs: object) -> None:
    raise DiskError("full")


def test_the_topic_of_the_state_is_created_as_by_kafka() -> None:
    async def scenario(world: TransactionWorld) -> None:
        await begin_again(world.transactions())
        assert world.image.topics[TRANSACTION_TOPIC].properties == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(CONFIG.segment_bytes),
            "unclean.leader.election.enable": "false",
        }

    play(scenario)


def test_a_producer_whose_epochs_are_used_up_goes_on_under_another_id() -> None:
    async def scenario(world: TransactionWorld) -> None:
        before = world.transactions()
        first = await begin_again(before)
        known = before.find("tx")
        assert known is not None
        record = TransactionRecord("tx", known._replace(epoch=PRODUCER_EPOCH_MAX - 2))
        place = coordinating_partition("tx", len(world.partitions))
        batch = memoryview(encode_record(record, V2, 0))
        world.partitions[place].append(batch, origin=AppendOrigin.COORDINATOR)
        coordinator = await world.restarted()
        producer = ProducerIdentity(first.producer_id, PRODUCER_EPOCH_MAX - 2)
        used = []
        for _ in range(4):
            used.append(producer)
            assert await coordinator.add_partitions("tx", producer, {A}, V2) is ErrorCode.NONE
            ended, producer = producer, await coordinator.end("tx", producer, COMMIT, V2)
            # Also for one that did not see the answer.
            assert await coordinator.end("tx", ended, COMMIT, V2) == producer
        epochs = [PRODUCER_EPOCH_MAX - 2, PRODUCER_EPOCH_MAX - 1, 0, 1]
        assert [one.epoch for one in used] == epochs
        assert used[1].producer_id == first.producer_id != used[2].producer_id
        # Each marker has the epoch behind that of its transaction.
        markers = [one for _, _, one in world.markers.written]
        assert markers == [ProducerIdentity(one.producer_id, one.epoch + 1) for one in used]

    play(scenario)


def test_a_deleted_topic_needs_no_marker() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        producer = await begun(coordinator, A, B)
        world.markers.codes[B] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await coordinator.end("tx", producer, COMMIT, V2)
        assert state_of(coordinator) is TransactionState.COMPLETE_COMMIT

    play(scenario)


def test_a_transaction_of_more_partitions_than_one_turn_takes_ends_all_the_same() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        many = [TopicPartition("many", index) for index in range(1200)]
        producer = await begun(coordinator, *many)
        await coordinator.end("tx", producer, COMMIT, V2)
        while state_of(coordinator) is not TransactionState.COMPLETE_COMMIT:
            await asyncio.sleep(0.002)
        assert sorted(where for where, _, _ in world.markers.written) == many

    play(scenario)


def test_the_markers_of_a_large_transaction_leave_turns_of_the_loop_to_others() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        many = [TopicPartition("many", index) for index in range(5000)]
        producer = await begun(coordinator, *many)
        await coordinator.end("tx", producer, COMMIT, V2)
        while state_of(coordinator) is not TransactionState.COMPLETE_COMMIT:
            asked_before = world.markers.asked
            await next_turn()
            assert world.markers.asked - asked_before <= MARKERS_PER_TURN_MAX

    play(scenario)


def test_partitions_that_refuse_a_marker_keep_no_others_waiting() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        many = [TopicPartition("many", index) for index in range(1200)]
        refusing, others = many[::2], many[1::2]
        world.markers.codes |= dict.fromkeys(refusing, ErrorCode.KAFKA_STORAGE_ERROR)
        producer = await begun(coordinator, *many)
        await coordinator.end("tx", producer, COMMIT, V2)
        while len(world.markers.written) < len(others):
            await asyncio.sleep(0.002)
        assert sorted(where for where, _, _ in world.markers.written) == others
        assert state_of(coordinator) is TransactionState.PREPARE_COMMIT
        world.markers.codes.clear()
        while state_of(coordinator) is not TransactionState.COMPLETE_COMMIT:
            await asyncio.sleep(0.002)

    play(scenario)


def test_thousands_of_markers_that_are_refused_cost_a_bounded_time_and_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        many = [TopicPartition("many", index) for index in range(400)]
        world.markers.codes |= dict.fromkeys(many, ErrorCode.KAFKA_STORAGE_ERROR)
        for name in map(str, range(25)):
            producer = await begun(coordinator, *many, name=name)
            await coordinator.end(name, producer, COMMIT, V2)
        # Each has been asked for once; what runs now tries again, some at a time.
        assert coordinator.statistics().waiting_markers == 10_000
        world.markers.asked = 0
        while world.markers.asked < 20_000:
            asked_before = world.markers.asked
            await next_turn()
            assert world.markers.asked - asked_before <= MARKERS_PER_TURN_MAX
        world.markers.codes.clear()
        while coordinator.statistics().waiting_markers:
            await asyncio.sleep(0.002)

    play(scenario)
    said = [one for one in caplog.records if one.message == "transaction marker not written"]
    assert len([one for one in said if one.levelno >= logging.WARNING]) == 1


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (DiskError("full"), ErrorCode.NOT_COORDINATOR),
        (RecordListTooLarge("too large"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_record_that_cannot_be_written_changes_nothing(
    failure: Exception, code: ErrorCode
) -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        producer = await begun(coordinator, A)
        world.fail(failure)
        assert await code_of(coordinator.end("tx", producer, COMMIT, V2)) is code
        assert await code_of(begin_again(coordinator)) is code
        assert await coordinator.add_partitions("tx", producer, {B}, V2) is code
        # Not even the epoch, however often a producer tries to fence the one before it.
        assert await code_of(begin_again(coordinator)) is code
        found = coordinator.find("tx")
        assert found is not None
        assert (found.state, found.identity) == (TransactionState.ONGOING, producer)
        assert world.markers.written == []
        world.fail(None)
        assert await code_of(coordinator.end("tx", producer, COMMIT, V2)) is ErrorCode.NONE

    play(scenario)


def test_a_transaction_that_times_out_is_aborted_and_its_producer_fenced() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        producer = await begun(coordinator, A)
        world.clock.advance_ms(TIMEOUT_MS - 1)
        await asyncio.sleep(0.02)
        assert state_of(coordinator) is TransactionState.ONGOING
        world.clock.advance_ms(CONFIG.timeout_check_interval_ms + 2)
        while state_of(coordinator) is not TransactionState.COMPLETE_ABORT:
            await asyncio.sleep(0.002)
        assert [end for _, end, _ in world.markers.written] == [ABORT]
        assert (
            await coordinator.add_partitions("tx", producer, {A}, V2) is ErrorCode.PRODUCER_FENCED
        )

    play(scenario)


def test_transactions_that_time_out_together_leave_turns_of_the_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S_MAX", 0.0)

    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        names = list(map(str, range(500)))
        for name in names:
            await begun(coordinator, A, name=name)
        world.clock.advance_ms(TIMEOUT_MS + CONFIG.timeout_check_interval_ms)
        while len(world.markers.written) < len(names):
            written_before = len(world.markers.written)
            await asyncio.sleep(0)
            assert len(world.markers.written) - written_before <= 1

    play(scenario)


def test_an_idle_id_is_forgotten_and_one_with_a_transaction_is_not() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        await coordinator.init_producer("idle", timeout_ms=TIMEOUT_MS, expected=None)
        world.markers.codes[A] = ErrorCode.KAFKA_STORAGE_ERROR
        producer = await begun(coordinator, A, name="busy")
        await coordinator.end("busy", producer, COMMIT, V2)
        restarted = await world.restarted()
        world.clock.advance_ms(CONFIG.expiration_ms + CONFIG.expiration_check_interval_ms)
        while restarted.find("idle") is not None:
            await asyncio.sleep(0.002)
        assert state_of(restarted, "busy") is TransactionState.PREPARE_COMMIT
        # The tombstone is in the log: the next start does not know the id either.
        world.task.cancel()
        assert (await world.restarted()).find("idle") is None

    play(scenario)


def test_an_id_whose_end_cannot_be_written_is_forgotten_later() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        await coordinator.init_producer("idle", timeout_ms=TIMEOUT_MS, expected=None)
        world.fail(DiskError("full"))
        world.clock.advance_ms(CONFIG.expiration_ms + CONFIG.expiration_check_interval_ms)
        await asyncio.sleep(0.05)
        assert state_of(coordinator, "idle") is TransactionState.EMPTY
        world.fail(None)
        world.clock.advance_ms(CONFIG.expiration_check_interval_ms + 1)
        while coordinator.find("idle") is not None:
            await asyncio.sleep(0.002)

    play(scenario)


def test_more_idle_ids_than_one_turn_forgets_go_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S_MAX", 0.0)

    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        for name in map(str, range(50)):
            await coordinator.init_producer(name, timeout_ms=TIMEOUT_MS, expected=None)
        world.clock.advance_ms(CONFIG.expiration_ms + CONFIG.expiration_check_interval_ms)
        while await coordinator.transactions():
            await asyncio.sleep(0.002)

    play(scenario)


def test_no_id_is_served_before_its_log_is_read() -> None:
    async def scenario(world: TransactionWorld) -> None:
        producer = await begun(world.transactions(), A)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        restarted = world.transactions()
        assert await code_of(begin_again(restarted)) is loading
        assert await code_of(restarted.end("tx", producer, COMMIT, V2)) is loading
        assert await restarted.add_partitions("tx", producer, {A}, V2) is loading
        assert await restarted.verify_partitions("tx", producer, {A}) == {A: loading}
        assert await code_of(restarted.describe("tx")) is loading
        assert await code_of(restarted.transactions()) is loading

    play(scenario)


def test_an_empty_id_is_no_id() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        producer = await begun(coordinator, A)
        invalid = ErrorCode.INVALID_REQUEST
        assert await code_of(begin_again(coordinator, name="")) is invalid
        assert await code_of(coordinator.end("", producer, COMMIT, V2)) is invalid
        assert await coordinator.add_partitions("", producer, {A}, V2) is invalid
        assert await coordinator.verify_partitions("", producer, {A}) == {A: invalid}

    play(scenario)


def test_a_restart_knows_every_transaction() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        producers = {name: await begun(coordinator, A, name=name) for name in map(str, range(10))}
        restarted = world.transactions()
        assert await code_of(restarted.end("1", producers["1"], COMMIT, V2)) is (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        )
        loaded = await world.restarted()
        assert {
            one.transactional_id: one.identity for one in await loaded.transactions()
        } == producers
        assert {one.partitions for one in await loaded.transactions()} == {frozenset({A})}
        assert await code_of(loaded.end("1", producers["1"], COMMIT, V2)) is ErrorCode.NONE

    play(scenario)


@pytest.mark.parametrize(
    ("confirmation", "code"),
    [
        (Confirmation.LOOK, ErrorCode.INVALID_TXN_STATE),
        (Confirmation.LOOK_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (Confirmation.ADD, ErrorCode.NONE),
    ],
)
def test_a_partition_is_confirmed_as_the_client_understands_it(
    confirmation: Confirmation, code: ErrorCode
) -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        producer = await begun(coordinator, A)
        assert coordinator.confirm("tx", producer, A, confirmation) is ErrorCode.NONE
        assert coordinator.confirm("tx", producer, B, confirmation) is code
        older = ProducerIdentity(producer.producer_id, producer.epoch - 1)
        fenced = coordinator.confirm("tx", older, A, confirmation)
        assert fenced is ErrorCode.INVALID_PRODUCER_EPOCH

    play(scenario)


def test_partitions_of_one_request_join_with_one_record() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        producer = await coordinator.init_producer("tx", timeout_ms=TIMEOUT_MS, expected=None)
        before = world.state_record_count()
        for partition in (A, B):
            code = coordinator.confirm("tx", producer, partition, Confirmation.ADD, {A, B})
            assert code is ErrorCode.NONE
        assert coordinator.find("tx").partitions == {A, B}  # type: ignore[union-attr]
        assert world.state_record_count() == before + 1

    play(scenario)


def test_a_partition_that_waits_for_a_lost_end_joins_with_no_other() -> None:
    async def scenario(world: TransactionWorld) -> None:
        world.markers.left_open = [
            OpenTransaction(
                partition=B,
                topic_id=ZERO_TOPIC_ID,
                producer=ProducerIdentity(0, 0),
                first_offset=0,
                leader_epoch=0,
                coordinator_epoch=0,
            )
        ]
        coordinator = world.transactions()
        producer = await coordinator.init_producer("tx", timeout_ms=TIMEOUT_MS, expected=None)
        code = coordinator.confirm("tx", producer, A, Confirmation.ADD, {A, B})
        assert code is ErrorCode.NONE
        code = coordinator.confirm("tx", producer, B, Confirmation.ADD, {A, B})
        assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert coordinator.find("tx").partitions == {A}  # type: ignore[union-attr]

    play(scenario)


def test_a_marker_has_the_epoch_of_its_coordinator() -> None:
    seen = []

    class Watched(Markers):
        def write(
            self,
            marker: EndMarker,
            where: TopicPartition,
            on_replicated: OnReplicated = lambda _: None,
        ) -> ErrorCode:
            seen.append(marker.coordinator_epoch)
            return super().write(marker, where, on_replicated)

    async def scenario(world: TransactionWorld) -> None:
        world.markers = Watched()
        coordinator = world.transactions()
        producer = await begun(coordinator, A)
        move(world, coordinator, TRANSACTION_TOPIC, leader=1, epoch=8)
        await coordinator.end("tx", producer, COMMIT, V1)
        assert seen == [8]

    play(scenario)


def test_partitions_are_verified_until_that_is_turned_off_and_again_once_it_is_on() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = await world.restarted()
        producer = await begun(coordinator, A)
        assert coordinator.confirm("tx", producer, B, Confirmation.LOOK) is not ErrorCode.NONE
        world.config = replace(CONFIG, verifies_partitions=False)
        assert coordinator.confirm("tx", producer, B, Confirmation.LOOK) is ErrorCode.NONE
        world.config = CONFIG
        assert coordinator.confirm("tx", producer, B, Confirmation.LOOK) is not ErrorCode.NONE

    play(scenario)


# --- partitions of other brokers -----------------------------------------------------------------

ELSEWHERE = TopicPartition("t", 1)


def test_a_transaction_is_complete_when_the_other_brokers_have_its_markers() -> None:
    async def scenario(world: TransactionWorld) -> None:
        world.other.led = {ELSEWHERE}
        coordinator = world.transactions()
        producer = await begun(coordinator, A, ELSEWHERE)
        # Answered at once: the outcome is certain.
        await coordinator.end("tx", producer, COMMIT, V2)
        await next_turn()
        assert [where for where, _, _ in world.markers.written] == [A]
        assert coordinator.statistics().waiting_markers == 1
        assert state_of(coordinator) is TransactionState.PREPARE_COMMIT
        world.other.may_answer.set()
        while state_of(coordinator) is not TransactionState.COMPLETE_COMMIT:
            await asyncio.sleep(0.002)
        (request,) = world.other.requests
        (marker,) = request.markers
        assert [(one.name, list(one.partition_indexes)) for one in marker.topics] == [("t", [1])]
        assert coordinator.statistics().waiting_markers == 0

    play(scenario)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        None,
    ],
)
def test_a_marker_that_the_leader_did_not_take_goes_to_the_leader_of_then(
    code: ErrorCode | None,
) -> None:
    async def scenario(world: TransactionWorld) -> None:
        world.other.led = {A}
        world.other.may_answer.set()
        world.other.is_away, world.other.code = code is None, code or ErrorCode.NONE
        coordinator = await world.restarted()
        producer = await begun(coordinator, A)
        await coordinator.end("tx", producer, ABORT, V2)
        while len(world.other.requests) < 2:
            await asyncio.sleep(0.002)
        assert state_of(coordinator) is TransactionState.PREPARE_ABORT
        # This broker is elected.
        world.other.led = set()
        while state_of(coordinator) is not TransactionState.COMPLETE_ABORT:
            await asyncio.sleep(0.002)
        assert [where for where, _, _ in world.markers.written] == [A]

    play(scenario)


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
def test_a_partition_where_a_newer_one_has_ended_it_is_not_asked_again(code: ErrorCode) -> None:
    async def scenario(world: TransactionWorld) -> None:
        world.other.led, world.other.code = {A}, code
        world.other.may_answer.set()
        coordinator = await world.restarted()
        producer = await begun(coordinator, A)
        await coordinator.end("tx", producer, COMMIT, V2)
        while state_of(coordinator) is not TransactionState.COMPLETE_COMMIT:
            await asyncio.sleep(0.002)
        assert len(world.other.requests) == 1

    play(scenario)


def test_a_partition_that_is_deleted_while_its_broker_is_asked_holds_nothing_up() -> None:
    async def scenario(world: TransactionWorld) -> None:
        world.other.led, world.other.code = {B}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        world.other.may_answer.set()
        coordinator = await world.restarted()
        producer = await begun(coordinator, B)
        await coordinator.end("tx", producer, COMMIT, V2)
        while state_of(coordinator) is not TransactionState.COMPLETE_COMMIT:
            await asyncio.sleep(0.002)

    play(scenario)


def test_an_answer_for_a_coordinator_that_resigned_meanwhile_changes_nothing() -> None:
    async def scenario(world: TransactionWorld) -> None:
        world.other.led = {A}
        coordinator = await world.restarted()
        producer = await begun(coordinator, A)
        await coordinator.end("tx", producer, COMMIT, V2)
        await next_turn()
        move(world, coordinator, TRANSACTION_TOPIC, leader=2, epoch=9)
        records = world.state_record_count()
        world.other.may_answer.set()
        await asyncio.sleep(1)
        assert world.state_record_count() == records
        # The next coordinator, under a higher epoch, sends its own.
        move(world, coordinator, TRANSACTION_TOPIC, leader=1, epoch=10)
        while coordinator.statistics().waiting_markers or len(world.other.requests) < 2:
            await asyncio.sleep(0.002)
        while state_of(coordinator) is not TransactionState.COMPLETE_COMMIT:
            await asyncio.sleep(0.002)
        assert [one.markers[0].coordinator_epoch for one in world.other.requests][-1] == 10

    play(scenario)


def test_a_partition_is_asked_once_at_a_time() -> None:
    async def scenario(world: TransactionWorld) -> None:
        world.other.led = {A}
        coordinator = await world.restarted()
        producer = await begun(coordinator, A)
        await coordinator.end("tx", producer, COMMIT, V2)
        await asyncio.sleep(5)
        assert len(world.other.requests) == 1

    play(scenario)


def elsewhere(world: TransactionWorld) -> TransactionCoordinator:
    """A coordinator of a broker on which no partition of the transactions' topic is led."""
    records = topic_records(TRANSACTION_TOPIC, uuid.UUID(int=9), ((2,), (2,)), {})
    world.image = world.image.apply_entry(records)
    world.other.led = {TopicPartition(TRANSACTION_TOPIC, index) for index in range(2)}
    return world.transactions()


@pytest.mark.parametrize("confirmation", list(Confirmation))
def test_a_coordinator_elsewhere_is_asked_once_about_all_partitions(
    confirmation: Confirmation,
) -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = elsewhere(world)
        assert coordinator.elsewhere("tx") == 2
        assert coordinator.elsewhere("") is None
        codes = await coordinator.confirm_elsewhere(
            2, "tx", ProducerIdentity(7, 3), {A, ELSEWHERE}, confirmation
        )
        assert codes == {A: ErrorCode.NONE, ELSEWHERE: ErrorCode.NONE}
        (request,) = world.other.added
        (asked,) = request.transactions
        assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("tx", 7, 3)
        assert asked.verify_only is (confirmation is not Confirmation.ADD)
        assert [(one.name, list(one.partitions)) for one in asked.topics] == [("t", [0, 1])]

    play(scenario)


@pytest.mark.parametrize(
    ("said", "confirmation", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, Confirmation.LOOK, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, Confirmation.LOOK, ErrorCode.INVALID_TXN_STATE),
        (
            ErrorCode.TRANSACTION_ABORTABLE,
            Confirmation.LOOK_ABORTABLE,
            ErrorCode.TRANSACTION_ABORTABLE,
        ),
        (ErrorCode.CONCURRENT_TRANSACTIONS, Confirmation.ADD, ErrorCode.CONCURRENT_TRANSACTIONS),
        # It is this broker that asked the wrong one.
        (ErrorCode.NOT_COORDINATOR, Confirmation.ADD, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (12345, Confirmation.ADD, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_a_coordinator_elsewhere_says_is_told_as_clients_know_it(
    said: int, confirmation: Confirmation, told: ErrorCode
) -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = elsewhere(world)
        world.other.added_code = said
        codes = await coordinator.confirm_elsewhere(
            2, "tx", ProducerIdentity(7, 3), {A}, confirmation
        )
        assert codes == {A: told}
        assert coordinator.statistics().refused_partitions_total == 1

    play(scenario)


def test_a_coordinator_elsewhere_that_gives_no_or_another_answer_confirms_nothing() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = elsewhere(world)

        async def told() -> ErrorCode:
            codes = await coordinator.confirm_elsewhere(
                2, "tx", ProducerIdentity(7, 3), {A}, Confirmation.ADD
            )
            return codes[A]

        world.other.is_away = True
        assert await told() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.other.is_away, world.other.coordinated = False, "another"
        assert await told() is ErrorCode.UNKNOWN_SERVER_ERROR
        # A right that this broker lacks is none that its client could get.
        world.other.whole_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await told() is ErrorCode.INVALID_TXN_STATE
        world.other.whole_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await told() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    play(scenario)


def test_partitions_are_not_verified_elsewhere_where_the_key_says_so() -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = elsewhere(world)
        world.config = replace(CONFIG, verifies_partitions=False)
        producer = ProducerIdentity(7, 3)
        codes = await coordinator.confirm_elsewhere(2, "tx", producer, {A}, Confirmation.LOOK)
        assert (codes, world.other.added) == ({A: ErrorCode.NONE}, [])
        await coordinator.confirm_elsewhere(2, "tx", producer, {A}, Confirmation.ADD)
        assert len(world.other.added) == 1

    play(scenario)
