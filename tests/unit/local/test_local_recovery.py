"""Starting again after a stop: clean, killed, and with files that were damaged meanwhile."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from strandline.storage.local.log import LocalLog
from strandline.storage.log_config import LogConfig
from strandline.storage.model import EpochStart
from tests.unit.local.builders import (
    NOW_MS,
    append,
    assert_dense,
    batch,
    fill,
    log_files,
    open_log,
    read_bytes,
)

CONFIG = LogConfig(
    segment_bytes=4000, index_interval_bytes=300, max_message_bytes=1000, file_delete_delay_ms=0
)


def killed(log: LocalLog, target: Path) -> Path:
    """The folder as a killed process leaves it: what was written, without closing anything."""
    shutil.copytree(log.directory, target, dirs_exist_ok=True)
    return target


def reopen(
    directory: Path, *, clean: bool = False, recovery_point: int = 0, config: LogConfig = CONFIG
) -> LocalLog:
    return open_log(directory, clean_shutdown=clean, recovery_point=recovery_point, config=config)


def filled(directory: Path, batch_count: int = 40) -> LocalLog:
    log = open_log(directory, config=CONFIG)
    fill(log, batch_count)
    assert len(log.segments) >= 3
    return log


def goes_on(log: LocalLog) -> None:
    """The log takes new batches, serves everything, and is the same after a clean restart."""
    fill(log, 12)
    assert_dense(log)
    last_ms = NOW_MS + log.end_offset - 1
    found = log.find_timestamp(last_ms)
    assert found is not None
    assert found.offset == log.end_offset - 1
    content, end_offset = read_bytes(log), log.end_offset
    log.close()
    again = reopen(log.directory, clean=True)
    assert not again.recovery_report.problems
    assert again.end_offset == end_offset
    assert read_bytes(again) == content
    again.close()


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
    assert not again.recovery_report.lost_data
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
    assert first.recovery_report.lost_data
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
    assert again.recovery_report.lost_data
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
    goes_on(again)


# --- indexes ------------------------------------------------------------------------------------


def _truncate(path: Path, size_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:size_bytes])


INDEX_DAMAGE: dict[str, Callable[[Path], None]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b"") and None,
    "torn": lambda path: _truncate(path, path.stat().st_size - 3),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\xff\xff\xff\xff") and None,
    "noise": lambda path: path.write_bytes(bytes(range(240))) and None,
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_damaged_indexes_are_rebuilt(tmp_path: Path, suffix: str, damage: str, clean: bool) -> None:
    log = filled(tmp_path / "log")
    content = read_bytes(log)
    log.close()
    directory = killed(log, tmp_path / "damaged")
    originals = {path.name: path.read_bytes() for path in directory.glob(f"*{suffix}")}
    for path in directory.glob(f"*{suffix}"):
        INDEX_DAMAGE[damage](path)
    again = reopen(directory, clean=clean)
    assert again.end_offset == 400
    assert not again.recovery_report.lost_data
    for offset in range(0, 400, 7):
        found = again.read(offset, bytes_max=200)
        assert found.next_offset == offset // 10 * 10 + 10
    assert read_bytes(again) == content
    for wanted in range(0, 400, 9):
        time = again.find_timestamp(NOW_MS + wanted)
        assert time is not None
        assert time.offset == wanted
    for segment in again.segments[:-1]:
        path = segment.log_path.with_suffix(suffix)
        assert path.read_bytes() == originals[path.name]
    goes_on(again)


def test_an_index_that_lost_entries_is_slow_and_right(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    log.close()
    for path in tmp_path.glob("log/*.index"):
        _truncate(path, 16)
    again = reopen(log.directory, clean=True)
    assert_dense(again)


def test_an_entry_that_names_no_batch_border_is_not_believed(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    content = read_bytes(log)
    log.close()
    for path in tmp_path.glob("log/*.index"):
        entries = list(struct.iter_unpack(">II", path.read_bytes()))
        moved = [(offset, position + 5) for offset, position in entries[:-1]] + entries[-1:]
        path.write_bytes(b"".join(struct.pack(">II", *entry) for entry in moved))
    again = reopen(log.directory, clean=True)
    for offset in range(0, 400, 3):
        found = again.read(offset, bytes_max=700)
        assert found.range is not None
        position = content.index(found.range.read())
        assert content[position : position + 8] == struct.pack(">q", offset // 10 * 10)


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_in_the_middle_of_an_index_gives_wrong_data(tmp_path: Path, seed: int) -> None:
    """The last entries are looked at when a log is opened, all others when they are used."""
    log = filled(tmp_path / "log")
    content = read_bytes(log)
    log.close()
    random = Random(seed)
    for pattern, entry_bytes in (("*.index", 8), ("*.timeindex", 12)):
        for path in log.directory.glob(pattern):
            damaged = bytearray(path.read_bytes())
            for _ in range(4):
                damaged[random.randrange(len(damaged) - entry_bytes)] ^= 1 << random.randrange(8)
            path.write_bytes(damaged)
    again = reopen(log.directory, clean=True)
    assert read_bytes(again, bytes_max=random.choice([100, 700, 1500, 1 << 20])) == content
    for offset in range(0, 400, 3):
        found = again.read(offset, bytes_max=random.randrange(2000))
        assert found.range is not None
        position = content.index(found.range.read())
        assert content[position : position + 8] == struct.pack(">q", offset // 10 * 10)
        assert again.find_timestamp(NOW_MS + offset) == (NOW_MS + offset, offset, 0)


def test_a_deleted_index_of_a_running_log_is_survived(tmp_path: Path) -> None:
    log = filled(tmp_path)
    for segment in log.segments[:-1]:
        segment.offset_index.unload()
        segment.index_path.unlink()
    assert_dense(log)


def test_damage_in_a_safe_segment_is_an_error_and_never_wrong_data(tmp_path: Path) -> None:
    """Below the recovery point nothing is cut: it was whole once, and the rest is still good."""
    log = filled(tmp_path / "log")
    log.close()
    damaged = log.segments[1]
    path = damaged.log_path
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    path.write_bytes(content)
    damaged.index_path.unlink()
    again = reopen(log.directory, clean=True)
    assert again.end_offset == 400
    assert path.read_bytes() == content
    assert any("is damaged" in problem for problem in again.recovery_report.problems)
    assert again.read(0, bytes_max=1).next_offset == 10
    assert again.read(damaged.end_offset, bytes_max=1).range is not None


# --- the other files ----------------------------------------------------------------------------


def with_producers(directory: Path) -> LocalLog:
    log = open_log(directory, config=CONFIG)
    for i in range(40):
        append(log, batch(10, producer_id=i % 3, producer_epoch=0, base_sequence=i // 3 * 10))
    assert len(log.segments) >= 3
    return log


def producers_of(log: LocalLog) -> bytes:
    return log.producers.encode_snapshot()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["corrupt", "emptied", "deleted", "newer version"])
def test_producers_come_back_without_their_snapshots(
    tmp_path: Path, damage: str, clean: bool
) -> None:
    log = with_producers(tmp_path / "log")
    expected = producers_of(log)
    recovery_point = 0
    if clean:
        log.close()
    else:
        log.flush()
        recovery_point = log.recovery_point
    directory = killed(log, tmp_path / "damaged")
    for path in directory.glob("*.snapshot"):
        content = bytearray(path.read_bytes())
        if damage == "corrupt":
            content[-1] ^= 1
        elif damage == "newer version":
            content[1] = 9
        elif damage == "emptied":
            content = bytearray()
        path.write_bytes(content)
        if damage == "deleted":
            path.unlink()
    again = reopen(directory, clean=clean, recovery_point=recovery_point)
    assert sorted(again.producers.entries) == [0, 1, 2]
    assert len(producers_of(again)) == len(expected)
    assert [entry.next_sequence for entry in again.producers.entries.values()] == [
        entry.next_sequence for entry in log.producers.entries.values()
    ]
    assert again.recovery_report.producer_batches_replayed > 0 or not clean


def test_producers_of_records_that_were_cut_never_come_back(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", config=CONFIG)
    append(log, batch(1, producer_id=5, producer_epoch=0, base_sequence=0))
    for sequence in range(1, 4):
        append(log, batch(1, producer_id=5, producer_epoch=0, base_sequence=sequence))
        log.roll()
    directory = killed(log, tmp_path / "killed")
    # The second segment is torn: with it goes what lies behind, though snapshots speak of it.
    path = log_files(directory)[1]
    path.write_bytes(path.read_bytes()[:-1])
    again = reopen(directory)
    assert again.end_offset == 2
    assert max(int(path.stem) for path in directory.glob("*.snapshot")) <= 2
    # Another producer has those offsets now, and the newest snapshot is lost.
    append(again, batch(4, producer_id=6, producer_epoch=0, base_sequence=0))
    again.close()
    (directory / f"{again.end_offset:020d}.snapshot").unlink()
    last_time = reopen(directory, clean=True)
    sequences = {key: e.next_sequence for key, e in last_time.producers.entries.items()}
    assert sequences == {5: 2, 6: 4}


def test_snapshots_at_segment_borders_are_kept_and_others_removed(tmp_path: Path) -> None:
    log = with_producers(tmp_path)
    log.close()
    (tmp_path / f"{15:020d}.snapshot").write_bytes(b"stray")
    again = reopen(tmp_path, clean=True)
    borders = {segment.base_offset for segment in again.segments[1:]} | {again.end_offset}
    assert {int(path.stem) for path in tmp_path.glob("*.snapshot")} == borders


def test_a_segment_knows_the_producers_at_its_end(tmp_path: Path) -> None:
    log = with_producers(tmp_path / "log")
    again = reopen(killed(log, tmp_path / "killed"))
    for before, after in zip(log.segments[:-1], again.segments[:-1], strict=True):
        assert after.snapshot_path.read_bytes() == before.snapshot_path.read_bytes()


@pytest.mark.parametrize("damage", ["deleted", "corrupt", "emptied"])
@pytest.mark.parametrize("clean", [True, False])
def test_leader_epochs_are_read_from_the_batches_if_their_file_is_not_usable(
    tmp_path: Path, damage: str, clean: bool
) -> None:
    log = open_log(tmp_path, config=CONFIG)
    for i in range(40):
        append(log, batch(10), leader_epoch=i // 15)
    starts = log.leader_epochs.starts
    assert starts == (EpochStart(0, 0), EpochStart(1, 150), EpochStart(2, 300))
    log.close()
    path = tmp_path / "leader-epoch-checkpoint"
    if damage == "deleted":
        path.unlink()
    else:
        path.write_text("0\n7\n1 2\n" if damage == "corrupt" else "")
    again = reopen(tmp_path, clean=clean)
    assert again.leader_epochs.starts == starts


def test_half_done_work_of_others_is_tidied_and_strange_files_stay(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    base = f"{0:020d}"
    for name in (f"{base}.log.deleted", f"{base}.log.cleaned", "x.tmp", f"{7:020d}.index"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "12.log").write_text("mine too")
    again = reopen(tmp_path, clean=True)
    assert again.end_offset == 400
    names = {path.name for path in tmp_path.iterdir()}
    assert {"notes.txt", "folder.log", "12.log"} <= names
    assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".tmp"))]
    assert f"{7:020d}.index" not in names
    assert again.recovery_report.files_removed == 4


def test_a_finished_compaction_of_kafkas_takes_over(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    first, second = log.segments[:2]
    merged = first.log_path.read_bytes() + second.log_path.read_bytes()
    (tmp_path / f"{first.log_path.name}.swap").write_bytes(merged)
    content = read_bytes_of(tmp_path)
    again = reopen(tmp_path, clean=True)
    assert not second.log_path.exists()
    assert again.segments[1].base_offset == log.segments[2].base_offset
    assert read_bytes(again) == content
    assert not list(tmp_path.glob("*.swap"))


def read_bytes_of(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in log_files(directory))


def test_the_age_of_a_segment_survives_restarts(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    again = reopen(tmp_path, clean=True)
    # The manual clock is behind the files' real times, so nothing can seem older than it is.
    assert all(segment.created_ms <= NOW_MS for segment in again.segments)
