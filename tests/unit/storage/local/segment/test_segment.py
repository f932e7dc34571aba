"""Sealed segments: known by name after a start, opened when needed, closed under pressure."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from strandline.retention.enforcer import LocalUnit
from strandline.retention.policy import RetentionLimits, judge
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import CorruptFile, DiskError
from strandline.storage.local.segment.open_files import OpenSegments
from tests.unit.storage.local.builders import NOW_MS, fill, headers, open_log, read_bytes
from tests.unit.storage.local.segment.reopened import (
    SEALED_COUNT,
    _open_logs,
    _piece,
    _reopened,
    _written,
)


def test_a_start_opens_the_active_segment_alone(tmp_path: Path) -> None:
    log, content = _written(tmp_path)
    again = _reopened(tmp_path, log)
    assert _open_logs(tmp_path) == 1
    assert [segment.is_opened for segment in again.segments] == [False] * SEALED_COUNT + [True]
    assert again.end_offset == log.end_offset
    assert read_bytes(again) == content


def test_a_read_opens_the_segment_that_it_reads(tmp_path: Path) -> None:
    log, _ = _written(tmp_path)
    again = _reopened(tmp_path, log)
    _piece(again, again.segments[1].base_offset + 7)
    assert [segment.is_opened for segment in again.segments] == [False, True, False, False, True]
    assert _open_logs(tmp_path) == 2


def test_the_size_of_a_log_is_known_without_opening_it(tmp_path: Path) -> None:
    log, content = _written(tmp_path)
    again = _reopened(tmp_path, log)
    assert again.size_bytes == len(content)
    assert _open_logs(tmp_path) == 1


def test_a_log_that_nobody_read_is_closed_and_flushed_without_opening_it(tmp_path: Path) -> None:
    log, content = _written(tmp_path)
    again = _reopened(tmp_path, log)
    again.flush()
    again.close()
    assert not any(segment.is_opened for segment in again.segments[:-1])
    assert read_bytes(open_log(tmp_path, recovery_point=again.end_offset)) == content


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["torn", "foreign"])
def test_a_damaged_index_is_rebuilt_when_its_segment_is_first_used(
    tmp_path: Path, suffix: str, damage: str
) -> None:
    log, content = _written(tmp_path)
    log.close()
    path = tmp_path / f"{log.segments[1].base_offset:020d}{suffix}"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if damage == "torn" else b"\x01" * len(whole))
    again = open_log(tmp_path, recovery_point=log.end_offset, clean_shutdown=True)
    assert again.recovery_report.problems == []
    assert read_bytes(again) == content
    assert again.recovery_report.indexes_rebuilt == 1
    assert len(again.recovery_report.problems) == 1
    assert path.read_bytes() == whole
    # What was rebuilt is synced with the next flush.
    assert not again.segments[1].is_durable
    again.flush()
    assert again.segments[1].is_durable


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_is_missing_is_rebuilt_by_the_start(tmp_path: Path, suffix: str) -> None:
    log, content = _written(tmp_path)
    log.close()
    path = tmp_path / f"{log.segments[2].base_offset:020d}{suffix}"
    whole = path.read_bytes()
    path.unlink()
    again = open_log(tmp_path, recovery_point=log.end_offset, clean_shutdown=True)
    assert again.recovery_report.indexes_rebuilt == 1
    assert path.read_bytes() == whole
    assert read_bytes(again) == content


def test_after_an_unclean_stop_what_lies_behind_the_recovery_point_is_checked_at_once(
    tmp_path: Path,
) -> None:
    log, _ = _written(tmp_path)
    log.close()
    recovery_point = log.segments[2].base_offset
    damaged = tmp_path / f"{log.segments[3].base_offset:020d}.log"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    again = open_log(tmp_path, recovery_point=recovery_point, clean_shutdown=False)
    assert again.recovery_report.segments_checked == 2
    assert again.recovery_report.bytes_cut > 0
    assert [segment.is_opened for segment in again.segments] == [False, False, True, True]


def test_a_segment_that_is_removed_unread_can_be_read_by_who_has_it(tmp_path: Path) -> None:
    log, _ = _written(tmp_path)
    first_bytes = _piece(log, 0)
    again = _reopened(tmp_path, log)
    removed = again.segments[0]
    again.delete_segments([removed])
    again.purge_deleted(2**62)
    found = removed.read_range(0, bytes_max=1 << 20)
    assert found is not None
    assert found.range is not None
    assert found.range.read() == first_bytes


def test_a_segment_whose_file_is_gone_is_an_error_of_the_disk(tmp_path: Path) -> None:
    log, _ = _written(tmp_path)
    again = _reopened(tmp_path, log)
    (tmp_path / f"{again.segments[0].base_offset:020d}.log").unlink()
    with pytest.raises(DiskError):
        again.read(0, bytes_max=1 << 20)


def test_threads_may_open_the_same_segments_at_once(
    tmp_path: Path, two_at_most: OpenSegments
) -> None:
    log, content = _written(tmp_path)
    again = _reopened(tmp_path, log)
    begin = threading.Barrier(6)
    read: list[bytes] = []

    def reader() -> None:
        begin.wait()
        for _ in range(20):
            pieces = [s.file().read_at(0, s.size_bytes) for s in again.segments]
            read.append(b"".join(pieces))

    threads = [threading.Thread(target=reader) for _ in range(6)]
    interval_s = sys.getswitchinterval()
    # A thread is stopped anywhere, even between a segment's file and what says that it has one.
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert len(read) == 120
    assert set(read) == {content}
    assert again.recovery_report.problems == []


def test_a_log_is_truncated_into_a_segment_that_nobody_read(tmp_path: Path) -> None:
    log, content = _written(tmp_path)
    again = _reopened(tmp_path, log)
    target = again.segments[1].base_offset + 20
    again.truncate_to(target)
    assert again.end_offset == target
    fill(again, 1)
    assert again.active_segment.base_offset == log.segments[1].base_offset
    assert content.startswith(read_bytes(again))


@pytest.mark.parametrize("retention_bytes", [-1, 10**9])
def test_retention_asks_the_oldest_segment_alone_if_that_one_stays(
    tmp_path: Path, retention_bytes: int
) -> None:
    log, _ = _written(tmp_path)
    again = _reopened(tmp_path, log)
    verdict = judge(
        [LocalUnit(segment) for segment in again.segments],
        RetentionLimits(retention_ms=10**9, retention_bytes=retention_bytes),
        now_ms=NOW_MS,
        log_start_offset=0,
    )
    assert verdict.drop_count == 0
    assert [segment.is_opened for segment in again.segments] == [True, False, False, False, True]


def test_retention_by_age_opens_no_more_than_goes_and_the_first_that_stays(tmp_path: Path) -> None:
    log, _ = _written(tmp_path)
    again = _reopened(tmp_path, log)
    border_ms = log.segments[1].max_timestamp_ms
    verdict = judge(
        [LocalUnit(segment) for segment in again.segments],
        RetentionLimits(retention_ms=1000, retention_bytes=-1),
        now_ms=border_ms + 1000,
        log_start_offset=0,
    )
    assert verdict.end_offset == log.segments[1].end_offset
    assert [segment.is_opened for segment in again.segments] == [True, True, True, False, True]


@pytest.mark.parametrize("batches_kept", [0, 7])
def test_what_a_sealed_segment_lost_is_an_error_and_no_next_segment(
    tmp_path: Path, batches_kept: int
) -> None:
    """A file that ends with a whole batch shows nothing: what follows must not take its place."""
    log, content = _written(tmp_path)
    damaged, following = log.segments[1:3]
    first_offset = damaged.base_offset
    batches = [one for one in headers(content) if one.base_offset >= first_offset]
    log.close()
    with damaged.log_path.open("r+b") as file:
        file.truncate(sum(one.size_bytes for one in batches[:batches_kept]))
    lost_offset = batches[batches_kept].base_offset
    again = open_log(tmp_path, recovery_point=log.end_offset, clean_shutdown=True)
    for offset in (lost_offset, following.base_offset - 1):
        with pytest.raises(CorruptFile, match=f"has lost offset {offset}"):
            again.read(offset, bytes_max=1 << 20)
    whole = _piece(again, 0) + read_bytes(again, start_offset=following.base_offset)
    kept = _piece(again, first_offset) if batches_kept else b""
    assert len(whole) + len(kept) == len(content) - sum(
        one.size_bytes for one in batches[batches_kept:] if one.base_offset < following.base_offset
    )


def test_what_compaction_took_is_passed_over(tmp_path: Path) -> None:
    log, _ = _written(tmp_path)
    log.close()
    emptied, following = log.segments[1:3]
    emptied.log_path.write_bytes(b"")
    again = open_log(
        tmp_path,
        recovery_point=log.end_offset,
        clean_shutdown=True,
        config=LogConfig(cleanup_policy=("compact",)),
    )
    found = _piece(again, emptied.base_offset)
    assert next(headers(found)).base_offset == following.base_offset
