"""Starting again: producers, leader epochs, and the files that a stop left half done."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import EpochStart
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    batch,
    log_files,
    open_log,
    read_bytes,
)
from tests.unit.storage.local.restarts import CONFIG, filled, killed, reopen


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
