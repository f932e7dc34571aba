"""The high watermark of a log, and which transactions are undecided because of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.model import Isolation
from strandline.storage.records.batch.marker import MarkerType
from tests.unit.storage.local.builders import (
    append_marker,
    batch,
    fill,
    marker,
    open_log,
)


def send(log: LocalLog, producer_id: int) -> None:
    """Ten records of a transaction that no other replica has yet."""
    records = batch(
        10, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )
    log.append(records, leader_epoch=0, origin=AppendOrigin.VERIFIED)


def end(log: LocalLog, producer_id: int, kind: MarkerType = MarkerType.COMMIT) -> None:
    """A marker that no other replica has yet."""
    log.append(
        marker(kind, producer_id=producer_id), leader_epoch=0, origin=AppendOrigin.COORDINATOR
    )


def test_an_append_does_not_move_it_and_its_owner_never_moves_it_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(10), leader_epoch=0)
    assert (log.high_watermark, log.last_stable_offset, log.end_offset) == (0, 0, 10)
    log.advance_high_watermark(10)
    log.append(batch(10), leader_epoch=0)
    log.advance_high_watermark(0)
    assert (log.high_watermark, log.last_stable_offset, log.end_offset) == (10, 10, 20)
    with pytest.raises(AssertionError):
        log.advance_high_watermark(21)


def test_each_isolation_reads_up_to_its_own_end(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 1)
    send(log, 1)
    log.advance_high_watermark(20)
    log.append(batch(10), leader_epoch=0)
    ends = {isolation.name: log.readable_end(isolation) for isolation in Isolation}
    assert ends == {"READ_UNCOMMITTED": 20, "READ_COMMITTED": 10, "LOG_END": 30}


@pytest.mark.parametrize("kind", MarkerType)
def test_a_transaction_is_undecided_until_its_marker_is_replicated(
    tmp_path: Path, kind: MarkerType
) -> None:
    log = open_log(tmp_path)
    fill(log, 1)
    send(log, 1)
    end(log, 1, kind)
    assert log.producers.first_open_offset is None
    for high_watermark, stable_offset in ((15, 10), (20, 10), (21, 21)):
        log.advance_high_watermark(high_watermark)
        assert log.last_stable_offset == stable_offset


def test_the_first_undecided_transaction_holds_whichever_ended_first(tmp_path: Path) -> None:
    """Offsets 0 and 10 begin transactions; the second ends at 20, the first at 21."""
    log = open_log(tmp_path)
    send(log, 1)
    send(log, 2)
    end(log, 2)
    end(log, 1)
    send(log, 3)
    for high_watermark, stable_offset in ((20, 0), (21, 0), (22, 22), (32, 22)):
        log.advance_high_watermark(high_watermark)
        assert log.last_stable_offset == stable_offset
    end(log, 3)
    log.advance_high_watermark(33)
    assert log.last_stable_offset == 33


def test_the_second_one_is_undecided_when_the_first_is_not_any_more(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 1)
    send(log, 2)
    end(log, 1)
    end(log, 2)
    log.advance_high_watermark(21)
    assert log.last_stable_offset == 10
    log.advance_high_watermark(22)
    assert log.last_stable_offset == 22


def test_a_cut_takes_it_along_and_the_markers_that_are_left_count(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 1)
    append_marker(log, MarkerType.COMMIT, producer_id=1)
    send(log, 2)
    end(log, 2)
    log.truncate_to(21)
    assert (log.high_watermark, log.last_stable_offset, log.end_offset) == (11, 11, 21)
    log.truncate_to(5)
    assert (log.high_watermark, log.last_stable_offset, log.end_offset) == (0, 0, 0)


def test_a_log_that_continues_an_archive_begins_there(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 2)
    log.append(batch(10), leader_epoch=0)
    log.reset_to(100)
    assert (log.high_watermark, log.last_stable_offset) == (100, 100)


def test_it_is_never_below_the_log_start(tmp_path: Path) -> None:
    with_records = open_log(tmp_path / "a")
    fill(with_records, 3)
    with_records.close()
    log = LocalLog.open(
        tmp_path / "a",
        topic_partition=with_records.topic_partition,
        topic_id=with_records.topic_id,
        config=with_records.config,
        clock=with_records.clock,
        recovery_point=30,
        log_start_offset=12,
        clean_shutdown=True,
    )
    assert (log.log_start_offset, log.high_watermark, log.end_offset) == (12, 12, 30)
