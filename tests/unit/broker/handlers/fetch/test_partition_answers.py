"""What is said of a partition in passing is what a look at it would have said."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.partition_answers import answer_without_read
from strandline.broker.handlers.fetch.plan import FetchPass
from strandline.broker.handlers.fetch.sessions import WantedPartition
from strandline.broker.protocol.messages.fetch import FetchCurrentLeader
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError
from strandline.storage.model import Isolation
from strandline.storage.records.batch.marker import MarkerType
from tests.unit.broker.cluster.served import leading
from tests.unit.broker.handlers.fetch.fetch_rig import handler_over, plan_of_nothing
from tests.unit.storage.local.builders import (
    append,
    append_marker,
    batch,
    fill,
    open_log,
)

LEADER_EPOCH = 4


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    """Offsets 10 to 41, deleted below 20; a transaction is open at 40, where epoch 2 begins."""
    local = open_log(tmp_path / "t", log_start_offset=10)
    fill(local, 3)
    opened = batch(producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    append(local, opened, leader_epoch=2)
    with leading(local, epoch=LEADER_EPOCH, log_start_offset=20) as made:
        yield made


async def _handler() -> FetchHandler:
    return handler_over()


def _wanted(offset: int, *, epoch: int = -1, last_epoch: int = -1) -> WantedPartition:
    return WantedPartition("topic", None, 0, offset, 1 << 20, epoch, last_epoch)


@pytest.mark.parametrize("codec", ["producer", "zstd"])
def test_it_says_what_a_look_says(partition: Partition, codec: str) -> None:
    partition.log.local.update_config(LogConfig(compression_type=codec))
    handler = asyncio.run(_handler())
    said = 0
    for offset, epoch, last_epoch, isolation, version, is_full in itertools.product(
        (0, 10, 19, 20, 25, 39, 40, 41, 42),
        (-1, LEADER_EPOCH - 1, LEADER_EPOCH, LEADER_EPOCH + 1),
        (-1, 0),
        Isolation,
        (4, 9, 10, 16),
        (False, True),
    ):
        # FetchPlan is no frozen value, but a copy of it costs nothing here.
        plan = replace(plan_of_nothing(version), isolation=isolation)
        wanted = _wanted(offset, epoch=epoch, last_epoch=last_epoch)
        in_passing, looked = (
            FetchPass(is_full=is_full, total_bytes=1000 * is_full) for _ in range(2)
        )
        partition.traffic.fetch_requests = 0
        answer = answer_without_read(plan, wanted, partition, in_passing)
        if answer is None:
            assert partition.traffic.fetch_requests == 0
            continue
        said += 1
        assert partition.traffic.fetch_requests == 1
        assert answer == handler._read_partition(plan, wanted, partition, looked)
        assert answer.error_code == 0
        assert in_passing.must_answer == looked.must_answer
        assert (in_passing.is_full, in_passing.total_bytes) == (is_full, 1000 * is_full)
        assert not looked.remote
    assert said > 20


def test_what_happened_since_it_was_said_last_is_said(partition: Partition) -> None:
    """For who has read all: the end moves, the open transaction ends, the beginning is deleted."""
    handler = asyncio.run(_handler())
    log = partition.log
    opened = batch(producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    events: list[Callable[[], object]] = [
        lambda: None,
        lambda: fill(log.local, 1),
        lambda: append_marker(log.local, MarkerType.COMMIT, producer_id=9),
        lambda: log.delete_records(30),
        lambda: append(log.local, opened),
        # As a log does that was opened anew without its snapshots: the end stays where it is.
        log.local.producers.clear,
    ]
    told: set[tuple[int, ...]] = set()
    for happens in events:
        happens()
        for isolation in (*Isolation, *reversed(Isolation)):
            plan = replace(plan_of_nothing(), isolation=isolation)
            wanted = _wanted(log.end_offset)
            found = FetchPass()
            answer = answer_without_read(plan, wanted, partition, found)
            assert answer is not None
            assert answer == handler._read_partition(plan, wanted, partition, FetchPass())
            assert not found.must_answer
            told.add((answer.high_watermark, answer.last_stable_offset, answer.log_start_offset))
    assert len(told) == len(events)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_partition_with_records_is_looked_at_until_the_answer_is_full(
    partition: Partition, is_full: bool
) -> None:
    found = FetchPass(is_full=is_full, total_bytes=1000 * is_full)
    assert (
        answer_without_read(plan_of_nothing(), _wanted(25), partition, found) is None
    ) is not is_full
    assert answer_without_read(plan_of_nothing(), _wanted(41), partition, found) is not None


def test_what_is_wrong_with_a_partition_is_not_passed_over(partition: Partition) -> None:
    full = FetchPass(is_full=True, total_bytes=1000)
    for wanted in (_wanted(19), _wanted(42), _wanted(41, epoch=LEADER_EPOCH + 1)):
        assert answer_without_read(plan_of_nothing(), wanted, partition, full) is None
    partition.log.local.stop(DiskError("input/output error"))
    assert answer_without_read(plan_of_nothing(), _wanted(41), partition, full) is None


@pytest.mark.parametrize(("version", "is_told"), [(12, False), (15, False), (16, True)])
def test_one_who_knows_an_older_leader_epoch_is_told_the_present_one(
    partition: Partition, version: int, is_told: bool
) -> None:
    """KIP-951, from the version on in which Kafka does."""
    handler = asyncio.run(_handler())
    found = FetchPass()
    wanted = _wanted(40, epoch=LEADER_EPOCH - 1)
    answer = handler._read_partition(plan_of_nothing(version), wanted, partition, found)
    told = FetchCurrentLeader(leader_id=1, leader_epoch=LEADER_EPOCH)
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert answer.current_leader == (told if is_told else None)
    # The other fields as in any error.
    assert (answer.high_watermark, answer.log_start_offset, found.must_answer) == (41, 20, True)
    newer = _wanted(40, epoch=LEADER_EPOCH + 1)
    answer = handler._read_partition(plan_of_nothing(version), newer, partition, found)
    assert (answer.error_code, answer.current_leader) == (ErrorCode.UNKNOWN_LEADER_EPOCH, None)
