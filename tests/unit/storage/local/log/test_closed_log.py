"""What a clean stop notes of its logs spares the next start a look at them, and changes nothing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log import closed_log
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.records.batch.marker import MarkerType
from tests.unit.storage.local.builders import (
    TOPIC_ID,
    append,
    append_marker,
    assert_dense,
    batch,
    fill,
    read_bytes,
)
from tests.unit.storage.local.log_folders import T0, T1, kill, open_dirs

CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=300)
ROWS = closed_log.FILE_NAME


def _load(dirs: LogDirs) -> dict[object, LocalLog]:
    return dict(dirs.load(lambda _partition, _topic_id: CONFIG))


def _nothing(_log: LocalLog) -> None:
    pass


def _one_batch(log: LocalLog) -> None:
    fill(log, 1)


def _several_segments(log: LocalLog) -> None:
    fill(log, 40)


def _a_long_index(log: LocalLog) -> None:
    log.update_config(LogConfig(segment_bytes=1 << 20, index_interval_bytes=1))
    fill(log, 100)


def _producers(log: LocalLog) -> None:
    for sequence in range(7):
        append(log, batch(producer_id=7, producer_epoch=1, base_sequence=sequence))


def _several_epochs(log: LocalLog) -> None:
    for epoch in (0, 3, 4):
        append(log, batch(3), leader_epoch=epoch)


def _an_open_transaction(log: LocalLog) -> None:
    fill(log, 2)
    append(log, batch(producer_id=9, producer_epoch=0, base_sequence=0, transactional=True))


def _a_commit(log: LocalLog) -> None:
    _an_open_transaction(log)
    append_marker(log, MarkerType.COMMIT, producer_id=9)


CONTENTS = [
    _nothing,
    _one_batch,
    _several_segments,
    _a_long_index,
    _producers,
    _several_epochs,
    _an_open_transaction,
    _a_commit,
]


def _closed(folder: Path, content: Callable[[LocalLog], None]) -> None:
    dirs = open_dirs(folder)
    content(dirs.create_log(T0, TOPIC_ID, CONFIG))
    dirs.close()


def _state(log: LocalLog) -> dict[str, object]:
    """All that a log knows of itself, but for what `created_ms` is only guessed from files."""
    segments = []
    for segment in log.segments:
        segment.open()
        slots = set(LogSegment.__slots__) - {"__weakref__", "_created_ms", "_file", "_hints"}
        slots -= {"_look", "_offset_index", "_roll_age_ms", "_time_index", "_txn_index"}
        slots -= {"directory", "roll_timestamp_ms"}
        segments.append(
            {
                **{name: getattr(segment, name) for name in sorted(slots)},
                "offset index": segment.offset_index.columns(),
                "time index": segment.time_index.columns(),
                "aborted": list(segment.txn_index.entries),
            }
        )
    return {
        "segments": segments,
        "epochs": log.leader_epochs.starts,
        "producers": log.producers.encode_snapshot(),
        "offsets": (log.start_offset, log.last_stable_offset, log.end_offset, log.size_bytes),
        "recovery point": log.recovery_point,
        "log start": log.log_start_offset,
        "content": read_bytes(log, bytes_max=1 << 30),
    }


@pytest.mark.parametrize("content", CONTENTS)
def test_a_log_that_was_left_alone_is_the_same_as_one_that_was_looked_at(
    tmp_path: Path, content: Callable[[LocalLog], None]
) -> None:
    _closed(tmp_path / "a", content)
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # Other files, so they are looked at.
    known, looked_at = (_load(open_dirs(tmp_path / name))[T0] for name in "ab")
    assert known.recovery_report.was_resumed
    assert not looked_at.recovery_report.was_resumed
    for _ in range(2):
        assert _state(known) == _state(looked_at)
        for log in (known, looked_at):  # Through a roll, and with what the indexes go on from.
            append(log, batch(producer_id=7, producer_epoch=2, base_sequence=0), leader_epoch=9)
            fill(log, 70)
            assert_dense(log)


@pytest.mark.parametrize("content", CONTENTS)
def test_a_second_clean_stop_notes_what_the_first_did(
    tmp_path: Path, content: Callable[[LocalLog], None]
) -> None:
    _closed(tmp_path, content)
    dirs = open_dirs(tmp_path)
    before = _state(_load(dirs)[T0])
    dirs.close()
    again = _load(open_dirs(tmp_path))[T0]
    assert again.recovery_report.was_resumed
    assert _state(again) == before


def test_a_start_lists_no_folder_and_reads_no_file_of_a_log_that_was_left_alone(
    tmp_path: Path,
) -> None:
    _closed(tmp_path, _several_segments)
    dirs = open_dirs(tmp_path)
    touched: list[str] = []
    is_watching = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if is_watching and event in ("open", "os.scandir", "os.listdir", "os.remove"):
            path = str(arguments[0])
            if path.startswith(f"{tmp_path}/t-0"):
                touched.append(f"{event} {Path(path).suffix}")

    sys.addaudithook(hook)
    log = _load(dirs)[T0]
    is_watching = False
    assert log.recovery_report.was_resumed
    assert touched == ["open .log"]


def _append(folder: Path, suffix: str) -> None:
    with open(max(folder.glob(f"*{suffix}")), "ab") as file:
        file.write(b"more")


def _overwrite(folder: Path, suffix: str) -> None:
    with open(max(folder.glob(f"*{suffix}")), "r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))


def _cut(folder: Path, suffix: str) -> None:
    path = max(folder.glob(f"*{suffix}"))
    os.truncate(path, path.stat().st_size - 3)


def _remove(folder: Path, suffix: str) -> None:
    max(folder.glob(f"*{suffix}")).unlink()


@pytest.mark.parametrize("harm", [_append, _overwrite, _cut])
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", "-epoch-checkpoint"])
def test_a_file_that_was_changed_since_is_looked_at(
    tmp_path: Path, harm: Callable[[Path, str], None], suffix: str
) -> None:
    _closed(tmp_path, _several_segments)
    harm(tmp_path / "t-0", suffix)
    log = _load(open_dirs(tmp_path))[T0]
    assert not log.recovery_report.was_resumed
    assert log.end_offset == (390 if (harm, suffix) == (_cut, ".log") else 400)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot", "-checkpoint"])
def test_a_folder_that_lost_a_file_since_is_looked_at(tmp_path: Path, suffix: str) -> None:
    _closed(tmp_path, _several_segments)
    _remove(tmp_path / "t-0", suffix)
    assert not _load(open_dirs(tmp_path))[T0].recovery_report.was_resumed


def test_a_sealed_segment_that_went_missing_is_noticed(tmp_path: Path) -> None:
    _closed(tmp_path, _several_segments)
    min((tmp_path / "t-0").glob("*.log")).unlink()
    log = _load(open_dirs(tmp_path))[T0]
    assert not log.recovery_report.was_resumed
    assert log.start_offset > 0


def test_one_log_that_was_changed_leaves_the_others_known(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    for key in (T0, T1):
        fill(dirs.create_log(key, TOPIC_ID, CONFIG), 3)
    dirs.close()
    _append(tmp_path / "t-0", ".log")
    logs = _load(open_dirs(tmp_path))
    assert not logs[T0].recovery_report.was_resumed
    assert logs[T1].recovery_report.was_resumed
    assert logs[T0].end_offset == logs[T1].end_offset == 30


def test_after_a_kill_nothing_is_taken_from_the_stop_before(tmp_path: Path) -> None:
    _closed(tmp_path, _one_batch)
    noted = (tmp_path / ROWS).read_bytes()
    killed = open_dirs(tmp_path)
    assert not (tmp_path / ROWS).exists()
    _load(killed)
    kill(killed)
    # Not even if the file were still there: it is the mark that says what it is worth.
    (tmp_path / ROWS).write_bytes(noted)
    report = _load(open_dirs(tmp_path))[T0].recovery_report
    assert not report.clean_shutdown
    assert not report.was_resumed
    assert report.segments_checked == 1


def test_rows_of_an_earlier_stop_than_the_last_are_worth_nothing(tmp_path: Path) -> None:
    """As when a broker that knows of no rows, Kafka for one, has run in between."""
    _closed(tmp_path, _one_batch)
    noted = (tmp_path / ROWS).read_bytes()
    dirs = open_dirs(tmp_path)
    fill(_load(dirs)[T0], 1)
    dirs.close()
    (tmp_path / ROWS).write_bytes(noted)
    log = _load(open_dirs(tmp_path))[T0]
    assert not log.recovery_report.was_resumed
    assert log.end_offset == 20


@pytest.mark.parametrize(
    "damaged",
    [
        lambda content: b"",
        lambda content: b"garbage",
        lambda content: content[:-7],
        lambda content: content.replace(b'"t-0"', b'"t-1"'),
        lambda content: content.replace(b'"version": 1', b'"version": 2'),
        lambda content: b"[]" + content,
    ],
)
def test_a_damaged_list_of_rows_costs_time_alone(
    tmp_path: Path, damaged: Callable[[bytes], bytes]
) -> None:
    _closed(tmp_path, _one_batch)
    content = (tmp_path / ROWS).read_bytes()
    (tmp_path / ROWS).write_bytes(damaged(content))
    log = _load(open_dirs(tmp_path))[T0]
    assert not log.recovery_report.was_resumed
    assert log.recovery_report.clean_shutdown
    assert log.end_offset == 10


def _a_deleted_segment(log: LocalLog) -> None:
    fill(log, 40)
    log.delete_segments(log.segments[:1])


def _an_abort(log: LocalLog) -> None:
    _an_open_transaction(log)
    append_marker(log, MarkerType.ABORT, producer_id=9)


def _a_file_of_somebody(log: LocalLog) -> None:
    (log.directory / "notes.txt").write_text("mine")


@pytest.mark.parametrize("content", [_a_deleted_segment, _an_abort, _a_file_of_somebody])
def test_a_log_that_is_not_at_rest_is_looked_at(
    tmp_path: Path, content: Callable[[LocalLog], None]
) -> None:
    _closed(tmp_path, content)
    assert not _load(open_dirs(tmp_path))[T0].recovery_report.was_resumed


def test_a_log_start_behind_the_end_empties_a_known_log_too(tmp_path: Path) -> None:
    _closed(tmp_path, _one_batch)
    dirs = open_dirs(tmp_path)
    dirs.directories[0].log_starts[T0] = 500
    log = _load(dirs)[T0]
    assert (log.start_offset, log.end_offset) == (500, 500)


def test_clean_stops_do_not_pile_up_snapshots(tmp_path: Path) -> None:
    _closed(tmp_path, _one_batch)
    for _ in range(3):
        dirs = open_dirs(tmp_path)
        fill(_load(dirs)[T0], 1)
        dirs.close()
    names = [path.name for path in (tmp_path / "t-0").glob("*.snapshot")]
    assert names == ["00000000000000000040.snapshot"]


def test_a_clean_stop_syncs_and_writes_nothing_of_a_log_that_nobody_wrote_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path)
    for key in (T0, T1):
        fill(dirs.create_log(key, TOPIC_ID, CONFIG), 40)
    dirs.close()
    dirs = open_dirs(tmp_path)
    fill(_load(dirs)[T1], 1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / str(T0)).iterdir()}
    synced: set[str] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().parent.name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    dirs.close()
    assert str(T1) in synced
    assert str(T0) not in synced
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / str(T0)).iterdir()} == before
    logs = _load(open_dirs(tmp_path))
    assert all(log.recovery_report.was_resumed for log in logs.values())
    assert [log.end_offset for log in (logs[T0], logs[T1])] == [400, 410]


@pytest.mark.parametrize("change", ["append", "truncate", "roll", "delete", "expire", "epoch"])
def test_a_clean_stop_writes_what_changed_since_the_last_one(tmp_path: Path, change: str) -> None:
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 40)
    _producers(log)
    dirs.close()
    dirs = open_dirs(tmp_path)
    log = _load(dirs)[T0]
    assert log.recovery_report.was_resumed
    end_offset = log.end_offset
    if change == "append":
        fill(log, 1)
    elif change == "truncate":
        log.truncate_to(end_offset - 1)
        append(log, batch())
    elif change == "roll":
        log.roll()
    elif change == "delete":
        log.delete_segments(log.segments[:1])
    elif change == "expire":
        log.producers.expire(1 << 60, 1)
    else:
        log.leader_epochs.assign(9, end_offset)
    state = _state(log)
    dirs.close()
    again = _state(_load(open_dirs(tmp_path))[T0])
    for what in ("epochs", "producers", "content"):
        assert again[what] == state[what]
