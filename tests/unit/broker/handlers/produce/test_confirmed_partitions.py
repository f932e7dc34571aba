"""What a partition and the coordinator are asked before a batch of a transaction is appended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.produce.confirmed_partitions import (
    Confirmed,
    NotConfirmed,
    origin_of,
)
from strandline.broker.handlers.produce.elsewhere import Unconfirmed
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import InvalidProducerEpoch, OutOfOrderSequence
from strandline.storage.local.formats.producer_state import (
    REFUSED_PRODUCERS_MAX,
    VERIFIED_PRODUCERS_MAX,
    InvalidTransactionState,
)
from strandline.storage.local.log.append_rules import AppendInfo, AppendOrigin
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.marker import (
    MarkerType,
    TransactionMarker,
    encode_marker_batch,
)
from tests.unit.storage.local.builders import batch, open_log

PRODUCER = 7
OLD_VERSION, NEW_VERSION = 11, 12


class World:
    """A partition, and a coordinator that answers `code`."""

    def __init__(self, folder: Path) -> None:
        self.log = open_log(folder)
        self.code = ErrorCode.NONE
        self.asked_count = 0
        # Of the coordinator, if that is another broker.
        self.node_id: int | None = None

    def is_settling(self, _partition: TopicPartition) -> bool:
        return False

    def confirm(self, *_args: object) -> ErrorCode:
        self.asked_count += 1
        return self.code

    def elsewhere(self, _name: str) -> int | None:
        return self.node_id

    async def confirm_elsewhere(
        self, node_id: int, *_args: object
    ) -> dict[TopicPartition, ErrorCode]:
        assert node_id == self.node_id
        self.asked_count += 1
        return {TopicPartition("t", 0): self.code}

    @property
    def partition(self) -> Partition:
        found = Partition.__new__(Partition)
        found.topic_partition = TopicPartition("t", 0)
        found.log = SimpleNamespace(local=self.log)  # type: ignore[assignment]  # what is used
        return found

    async def asked_elsewhere(self) -> Mapping[TopicPartition, Confirmed] | None:
        """What is confirmed of the producer's first batch; None if nobody was asked."""
        unconfirmed = Unconfirmed.of(
            "tx",
            [(first_batch(0), self.partition), (None, self.partition)],
            self,  # type: ignore[arg-type]  # a fake of what is used of it
        )
        if unconfirmed is None:
            return None
        return await unconfirmed.ask(self, NEW_VERSION)  # type: ignore[arg-type]  # likewise

    def send(
        self,
        sequence: int,
        *,
        epoch: int = 0,
        version: int = OLD_VERSION,
        confirmed: Mapping[TopicPartition, Confirmed] | None = None,
    ) -> AppendInfo:
        records = batch(
            1,
            producer_id=PRODUCER,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        partition = SimpleNamespace(
            topic_partition=TopicPartition("t", 0), log=SimpleNamespace(local=self.log)
        )
        origin = origin_of(
            records,
            partition,  # type: ignore[arg-type]  # a fake of what is used of it
            "tx",
            self,  # type: ignore[arg-type]  # likewise
            version,
            frozenset(),
            confirmed or {},
        )
        return self.log.append(records, leader_epoch=0, origin=origin)

    def write_marker(self, epoch: int = 0) -> None:
        marker = encode_marker_batch(
            TransactionMarker(MarkerType.ABORT, 0),
            producer_id=PRODUCER,
            producer_epoch=epoch,
            now_ms=1,
        )
        self.log.append(
            memoryview(bytearray(marker)), leader_epoch=0, origin=AppendOrigin.COORDINATOR
        )


def first_batch(sequence: int) -> memoryview:
    return batch(
        1, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence, transactional=True
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_batch_waits_for_one_before_it_that_the_coordinator_was_not_ready_for(
    world: World,
) -> None:
    world.code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for sequence in (5, 4, 6):
        with pytest.raises(NotConfirmed) as refused:
            world.send(sequence)
        assert refused.value.kafka_code == ErrorCode.NOT_ENOUGH_REPLICAS
    world.code = ErrorCode.NONE
    for sequence in (5, 6):
        with pytest.raises(OutOfOrderSequence):
            world.send(sequence)
    assert [world.send(sequence).base_offset for sequence in (4, 5, 6)] == [0, 1, 2]


def test_a_producer_that_begins_a_new_epoch_need_not_repeat_what_was_refused(world: World) -> None:
    world.code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(NotConfirmed):
        world.send(0)
    with pytest.raises(NotConfirmed):
        world.send(3, epoch=1)
    world.code = ErrorCode.NONE
    assert world.send(3, epoch=1).base_offset == 0


def test_refused_producers_are_remembered_up_to_a_bound(world: World) -> None:
    for number in range(2 * REFUSED_PRODUCERS_MAX):
        world.log.producers.note_refused(number, 0, 5)
    with pytest.raises(OutOfOrderSequence):
        world.log.producers.check_refused(2 * REFUSED_PRODUCERS_MAX - 1, 0, 6)
    world.log.producers.check_refused(0, 0, 6)


@pytest.mark.parametrize("version", [OLD_VERSION, NEW_VERSION])
def test_a_stale_batch_is_fenced_by_the_log_whatever_the_coordinator_would_say(
    world: World, version: int
) -> None:
    world.send(0, epoch=3, version=version)
    asked_count = world.asked_count
    world.code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(InvalidProducerEpoch):
        world.send(1, epoch=2, version=version)
    assert world.asked_count == asked_count


# --- a coordinator on another broker -------------------------------------------------------------


def test_a_batch_that_a_coordinator_elsewhere_confirmed_begins_the_transaction(
    world: World,
) -> None:
    world.node_id = 2
    confirmed = asyncio.run(world.asked_elsewhere())
    assert confirmed is not None
    assert world.send(0, version=NEW_VERSION, confirmed=confirmed).base_offset == 0
    assert world.asked_count == 1
    # The log knows of it now.
    assert asyncio.run(world.asked_elsewhere()) is None


def test_nobody_elsewhere_is_asked_while_the_coordinator_is_here(world: World) -> None:
    assert asyncio.run(world.asked_elsewhere()) is None


def test_a_marker_that_came_while_the_coordinator_was_asked_makes_its_answer_void(
    world: World,
) -> None:
    world.node_id = 2
    confirmed = asyncio.run(world.asked_elsewhere())
    world.write_marker()
    with pytest.raises(InvalidTransactionState):
        world.send(0, confirmed=confirmed)
    # Asked again, it may say that this is the next transaction.
    assert world.send(0, confirmed=asyncio.run(world.asked_elsewhere())).base_offset == 1


def test_the_marker_of_the_transaction_before_leaves_the_answer_valid(world: World) -> None:
    """A coordinator may have been asked before that, and answer once followers have the marker."""
    world.node_id = 2
    confirmed = asyncio.run(world.asked_elsewhere())
    world.send(0, version=NEW_VERSION, confirmed=confirmed)
    producers = world.log.producers
    guard = producers.begin_verification(PRODUCER, 1)
    world.write_marker(epoch=1)
    assert producers.is_verified(PRODUCER, guard)
    # One that fences the producer ends this transaction too.
    world.write_marker(epoch=2)
    assert not producers.is_verified(PRODUCER, guard)


def test_the_marker_of_the_same_transaction_makes_the_answer_void(world: World) -> None:
    """Also where the producer had another epoch before, as after a restart in version 1."""
    world.node_id = 2
    world.send(0, confirmed=asyncio.run(world.asked_elsewhere()))
    world.write_marker()
    producers = world.log.producers
    guard = producers.begin_verification(PRODUCER, 1)
    world.write_marker(epoch=1)
    assert not producers.is_verified(PRODUCER, guard)


def test_what_a_coordinator_elsewhere_refuses_is_refused(world: World) -> None:
    world.node_id, world.code = 2, ErrorCode.COORDINATOR_NOT_AVAILABLE
    confirmed = asyncio.run(world.asked_elsewhere())
    with pytest.raises(NotConfirmed) as refused:
        world.send(0, confirmed=confirmed)
    assert refused.value.kafka_code == ErrorCode.NOT_ENOUGH_REPLICAS
    world.code = ErrorCode.TRANSACTION_ABORTABLE
    confirmed = asyncio.run(world.asked_elsewhere())
    with pytest.raises(NotConfirmed) as refused:
        world.send(0, confirmed=confirmed)
    assert refused.value.kafka_code == ErrorCode.TRANSACTION_ABORTABLE


def test_guards_of_two_questions_of_one_epoch_are_one_and_a_new_epoch_has_its_own(
    world: World,
) -> None:
    producers = world.log.producers
    first = producers.begin_verification(PRODUCER, 0)
    assert producers.begin_verification(PRODUCER, 0) is first
    assert producers.begin_verification(PRODUCER, 1) is not first
    assert not producers.is_verified(PRODUCER, first)


def test_guards_are_kept_up_to_a_bound(world: World) -> None:
    producers = world.log.producers
    guards = [producers.begin_verification(one, 0) for one in range(2 * VERIFIED_PRODUCERS_MAX)]
    held = [producers.is_verified(one, guard) for one, guard in enumerate(guards)]
    assert held.count(True) == VERIFIED_PRODUCERS_MAX
    assert held[-1]
