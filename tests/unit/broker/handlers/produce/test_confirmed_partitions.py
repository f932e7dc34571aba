"""What a partition and the coordinator are asked before a batch of a transaction is appended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from strandline.broker.handlers.produce.confirmed_partitions import NotConfirmed, origin_of
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import InvalidProducerEpoch, OutOfOrderSequence
from strandline.storage.local.formats.producer_state import REFUSED_PRODUCERS_MAX
from strandline.storage.local.log.append_rules import AppendInfo
from strandline.storage.model import TopicPartition
from tests.unit.storage.local.builders import batch, open_log

PRODUCER = 7
OLD_VERSION, NEW_VERSION = 11, 12


class World:
    """A partition, and a coordinator that answers `code`."""

    def __init__(self, folder: Path) -> None:
        self.log = open_log(folder)
        self.code = ErrorCode.NONE
        self.asked_count = 0

    def is_settling(self, _partition: TopicPartition) -> bool:
        return False

    def confirm(self, *_args: object) -> ErrorCode:
        self.asked_count += 1
        return self.code

    def send(self, sequence: int, *, epoch: int = 0, version: int = OLD_VERSION) -> AppendInfo:
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
        )
        return self.log.append(records, leader_epoch=0, origin=origin)


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
