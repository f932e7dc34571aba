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
)
from tests.unit.storage.local.restarts import CONFIG, filled, killed, reopen, with_producers


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


def test_the_age_of_a_segment_survives_restarts(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    again = reopen(tmp_path, clean=True)
    # The manual clock is behind the files' real times, so nothing can seem older than it is.
    assert all(segment.created_ms <= NOW_MS for segment in again.segments)
