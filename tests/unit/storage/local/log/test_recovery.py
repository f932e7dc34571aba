"""Starting again after a stop: clean, killed, and with a tail or segments that were damaged."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import CODEC_MASK, CRC_START
from strandline.storage.records.batch.marker import MarkerType
from tests.unit.storage.local.builders import (
    append,
    append_marker,
    assert_dense,
    batch,
    fill,
    log_files,
    open_log,
    read_bytes,
)
from tests.unit.storage.local.restarts import CONFIG, filled, goes_on, killed, reopen


def test_a_clean_restart_reads_only_the_tail(tmp_path: Path) -> None:
    log = filled(tmp_path)
    content = read_bytes(log)
    log.close()
    again = reopen(tmp_path, clean=True)
    report = again.recovery_report
    assert (report.segments_checked, report.bytes_cut, report.indexes_rebuilt) == (0, 0, 0)
    assert report.batches_checked <= 3
    assert report.producer_batches_replayed == 0
    assert again.recovery_point == again.end_offset == 400
    assert read_bytes(again) == content
    goes_on(again)


def test_nothing_that_was_appended_is_missing_after_a_kill(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    again = reopen(killed(log, tmp_path / "killed"))
    assert again.recovery_report.segments_checked == len(log.segments)
    assert again.recovery_report.bytes_cut == 0
    assert not again.recovery_report.has_lost_records
    assert not again.recovery_report.problems
    assert read_bytes(again) == read_bytes(log)
    goes_on(again)


def test_only_what_lies_behind_the_recovery_point_is_checked(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    log.flush()
    point = log.recovery_point
    fill(log, 30)
    again = reopen(killed(log, tmp_path / "killed"), recovery_point=point)
    behind = [segment for segment in log.segments if segment.end_offset > point]
    assert again.recovery_report.segments_checked == len(behind) < len(log.segments)
    assert again.recovery_point == point
    assert read_bytes(again) == read_bytes(log)
    goes_on(again)


def test_opening_twice_after_a_kill_finds_nothing_more_to_do(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    directory = killed(log, tmp_path / "killed")
    path = log_files(directory)[-1]
    path.write_bytes(path.read_bytes() + b"garbage")
    first = reopen(directory)
    assert first.recovery_report.bytes_cut > 0
    second = reopen(directory)
    assert not second.recovery_report.problems
    assert read_bytes(second) == read_bytes(log)


# --- tails --------------------------------------------------------------------------------------

GARBAGE = {
    "one byte": b"\x01",
    "zeros shorter than a header": bytes(30),
    "zeros": bytes(5000),
    "noise": bytes(range(256)) * 20,
    "header without body": bytes(batch(10))[:61],
    "batch that does not follow": bytes(batch(10)),
    "length of everything": struct.pack(">qi", 400, 2**31 - 1) + bytes(200),
    "negative length": struct.pack(">qi", 400, -5) + bytes(200),
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", GARBAGE)
def test_a_garbage_tail_is_cut_and_nothing_else(tmp_path: Path, kind: str, clean: bool) -> None:
    log = filled(tmp_path / "log")
    content = read_bytes(log)
    if clean:
        log.close()
    directory = killed(log, tmp_path / "killed")
    path = log_files(directory)[-1]
    path.write_bytes(path.read_bytes() + GARBAGE[kind])
    again = reopen(directory, clean=clean)
    assert again.recovery_report.bytes_cut == len(GARBAGE[kind])
    assert again.recovery_report.bytes_cut > 0
    assert read_bytes(again) == content
    goes_on(again)


@pytest.mark.slow
def test_a_tail_torn_at_any_byte_of_the_last_batch_loses_that_batch_only(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    fill(log, 3)
    border = log.size_bytes
    before = read_bytes(log)
    fill(log, 1, record_count=2, value_bytes=5)
    whole = log_files(log.directory)[0].read_bytes()
    directory = tmp_path / "killed"
    for size_bytes in range(border, len(whole)):
        shutil.rmtree(directory, ignore_errors=True)
        killed(log, directory)
        log_files(directory)[0].write_bytes(whole[:size_bytes])
        again = open_log(directory, clean_shutdown=False)
        assert again.end_offset == 30
        assert again.recovery_report.bytes_cut == size_bytes - border
        assert not again.recovery_report.has_lost_records
        assert read_bytes(again) == before
        fill(again, 1)
        assert_dense(again)


@pytest.mark.slow
def test_a_bit_turned_anywhere_in_the_last_batch_is_noticed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    fill(log, 3)
    border = log.size_bytes
    before = read_bytes(log)
    fill(log, 1, record_count=2, value_bytes=5)
    whole = bytearray(log_files(log.directory)[0].read_bytes())
    directory = killed(log, tmp_path / "killed")
    # The leader epoch is outside of the CRC, and nothing else tells what it was.
    for position in set(range(border, len(whole))) - set(range(border + 12, border + 16)):
        whole[position] ^= 0x04
        log_files(directory)[0].write_bytes(whole)
        whole[position] ^= 0x04
        again = open_log(directory, clean_shutdown=False)
        assert (position, again.end_offset) == (position, 30)
        assert read_bytes(again) == before


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_ends_before_what_was_safe_says_so(tmp_path: Path, clean: bool) -> None:
    log = filled(tmp_path / "log")
    log.close()
    point = log.recovery_point
    active = log.active_segment
    active.log_path.write_bytes(b"")
    again = reopen(log.directory, clean=clean, recovery_point=point)
    assert again.end_offset == again.recovery_point == active.base_offset < point
    assert any(f"up to {point} were safe" in text for text in again.recovery_report.problems)
    assert again.recovery_report.has_lost_records
    goes_on(again)


def test_damage_in_the_middle_cuts_there_and_removes_what_lies_behind(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    directory = killed(log, tmp_path / "killed")
    damaged = log.segments[1]
    path = directory / damaged.log_path.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    again = reopen(directory)
    assert damaged.base_offset < again.end_offset < damaged.end_offset
    assert again.recovery_report.segments_removed == len(log.segments) - 2
    assert len(log_files(directory)) == 2
    lost = log.size_bytes - again.size_bytes
    assert again.recovery_report.bytes_cut == lost
    assert again.recovery_report.has_lost_records
    assert read_bytes(log).startswith(read_bytes(again))
    goes_on(again)


def test_a_segment_whose_end_was_lost_ends_the_log(tmp_path: Path) -> None:
    """Blocks that never reached the disk leave a shorter file, cut at a batch by chance."""
    log = filled(tmp_path / "log")
    directory = killed(log, tmp_path / "killed")
    shortened = log.segments[1]
    border = shortened.locate(shortened.end_offset - 10)
    assert border is not None
    path = directory / shortened.log_path.name
    path.write_bytes(path.read_bytes()[: border.position])
    again = reopen(directory)
    assert again.end_offset == shortened.end_offset - 10
    assert again.recovery_report.has_lost_records
    assert again.recovery_report.segments_removed == len(log.segments) - 2
    goes_on(again)


@pytest.mark.parametrize("victim", [0, 1, -1])
def test_empty_segment_files_are_survived(tmp_path: Path, victim: int) -> None:
    log = filled(tmp_path / "log")
    directory = killed(log, tmp_path / "killed")
    emptied = log.segments[victim]
    (directory / emptied.log_path.name).write_bytes(b"")
    again = reopen(directory)
    assert again.end_offset == emptied.base_offset
    goes_on(again)


def test_a_new_segment_that_got_nothing_yet_is_not_a_problem(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    log.roll()
    again = reopen(killed(log, tmp_path / "killed"))
    assert not again.recovery_report.problems
    assert again.end_offset == log.end_offset
    assert again.active_segment.size_bytes == 0
    goes_on(again)


def test_a_sealed_segment_that_is_missing_in_a_killed_log_ends_it(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    directory = killed(log, tmp_path / "killed")
    missing = log.segments[1]
    (directory / missing.log_path.name).unlink()
    again = reopen(directory)
    assert again.end_offset == missing.base_offset
    assert again.recovery_report.has_lost_records
    goes_on(again)


@pytest.mark.parametrize("wrong_offset", [2**40, 2**63 - 5, -5])
@pytest.mark.parametrize("clean", [True, False])
def test_an_impossible_offset_in_a_compacted_log_cuts_it_and_ends_no_start(
    tmp_path: Path, wrong_offset: int, clean: bool
) -> None:
    """The base offset lies outside the checksum, and after compaction any gap may be right."""
    config = LogConfig(cleanup_policy=("compact",), index_interval_bytes=300)
    log = open_log(tmp_path / "log", config=config)
    fill(log, 20)
    directory = killed(log, tmp_path / "killed")
    if clean:
        log.active_segment.write_indexes()
        directory = killed(log, tmp_path / "killed")
    path = directory / log.active_segment.log_path.name
    content = bytearray(path.read_bytes())
    damaged = [found.position for found in walk(content)][-1]
    struct.pack_into(">q", content, damaged, wrong_offset)
    path.write_bytes(content)
    again = open_log(directory, clean_shutdown=clean, config=config)
    assert again.end_offset == 190
    assert again.recovery_report.problems
    fill(again, 3)
    assert_dense(again)


def test_a_damaged_marker_in_a_safe_segment_ends_no_start(tmp_path: Path) -> None:
    """Its codec may then be one that nobody knows; checksums are not looked at there."""
    log = open_log(tmp_path / "log", config=CONFIG)
    append(log, batch(3, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    append_marker(log, MarkerType.COMMIT, producer_id=1)
    log.roll()
    fill(log, 3)
    directory = killed(log, tmp_path / "killed")
    path = directory / log.segments[0].log_path.name
    content = bytearray(path.read_bytes())
    content[[found.position for found in walk(content)][1] + CRC_START + 1] |= CODEC_MASK
    path.write_bytes(content)
    (directory / "leader-epoch-checkpoint").write_bytes(b"garbage")
    again = open_log(directory, clean_shutdown=False, recovery_point=4, config=CONFIG)
    assert again.end_offset == log.end_offset
    assert again.recovery_report.problems
