"""A log folder that fails takes its own partitions offline, and nothing else."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from strandline.storage import files
from strandline.storage.clock import ManualClock
from strandline.storage.errors import DiskError
from strandline.storage.local.formats.index import TimeIndex
from strandline.storage.local.formats.producer_state import MarkerType, ProducerState
from strandline.storage.local.formats.txn_index import TxnIndex
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.local.log_dirs.move import LogMove
from strandline.storage.local.segment.segment import LogSegment
from tests.unit.storage.local.builders import (
    NOW_MS,
    TOPIC_ID,
    append,
    assert_dense,
    batch,
    fill,
    marker,
)
from tests.unit.storage.local.log_folders import CONFIG, T0, T1, T2, kill, load_all, open_dirs


def two_filled_folders(parent: Path) -> LogDirs:
    """Folders `a` and `b` below `parent`: T0 is in the one, T1 in the other, 50 records each."""
    dirs = open_dirs(parent / "a", parent / "b")
    for key in (T0, T1):
        fill(dirs.create_log(key, TOPIC_ID, CONFIG), 5)
    return dirs


def test_a_folder_that_cannot_be_made_takes_only_itself_offline(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    dirs = open_dirs(tmp_path / "file", tmp_path / "good")
    assert list(dirs.failures) == [tmp_path / "file"]
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.close()
    with pytest.raises(DiskError):
        open_dirs(tmp_path / "file")


def test_a_folder_that_fails_while_loading_takes_only_its_partitions_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.create_log(T1, TOPIC_ID, CONFIG)
    dirs.close()
    real_open = files.OpenFile.__init__

    def fail_in_a(
        file: files.OpenFile, path: Path | str, *, writable: bool, create: bool = False
    ) -> None:
        if Path(path).is_relative_to(tmp_path / "a"):
            file._descriptor = -1
            raise DiskError("input/output error")
        real_open(file, path, writable=writable, create=create)

    monkeypatch.setattr(files.OpenFile, "__init__", fail_in_a)
    again = open_dirs(tmp_path / "a", tmp_path / "b")
    assert list(load_all(again)) == [T1]
    assert list(again.failures) == [tmp_path / "a"]
    # New partitions avoid the failed folder, though it looks emptier.
    assert again.create_log(T2, TOPIC_ID, CONFIG).directory.parent == tmp_path / "b"
    again.close()
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("which", ["the old log", "the copy"])
def test_a_folder_in_which_a_move_cannot_be_settled_takes_only_its_partitions_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    dirs = open_dirs(a, b)
    moved = dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.create_log(T1, TOPIC_ID, CONFIG)
    assert moved.directory.parent == a
    fill(moved, 3)
    move = LogMove(moved, b / moved.directory.name, clock=ManualClock(NOW_MS))
    move.prepare()
    if which == "the old log":
        move.copy_closed([])
        move.open_copy(0)
        move.take_over(log_start_offset=0)
    kill(dirs)
    failing, left = (a, T1) if which == "the old log" else (b, T0)
    rename = files.rename

    def fail_in_one(source: Path, target: Path, *, sync: bool = True) -> None:
        if source.is_relative_to(failing):
            raise DiskError("input/output error")
        rename(source, target, sync=sync)

    monkeypatch.setattr(files, "rename", fail_in_one)
    again = open_dirs(a, b)
    logs = load_all(again)
    assert list(again.failures) == [failing]
    assert left in logs
    assert all(one.directory.parent != failing for one in logs.values())
    if which == "the old log":
        assert logs[T0].end_offset == 30
    again.close()


@pytest.mark.parametrize(
    "content",
    [
        b"garbage",
        b"",
        b"\xff\xfe",
        b"version: 0\n",
        b"version: 0\ntopic_id: x\n",
        # A letter that is none, in the place of another one; and Kafka's id of no topic.
        b"version: 0\ntopic_id: Dw4NDAsKSQi!HBgUEAwIBAA\n",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n",
    ],
)
def test_a_topic_id_that_cannot_be_read_takes_its_folder_offline_until_the_next_start(
    tmp_path: Path, content: bytes
) -> None:
    """LogManager does the same: whose log it is is not guessed, and the other folders serve."""
    dirs = two_filled_folders(tmp_path)
    dirs.close()
    file = tmp_path / "a" / "t-0" / "partition.metadata"
    whole = file.read_bytes()
    file.write_bytes(content)
    again = open_dirs(tmp_path / "a", tmp_path / "b")
    assert list(load_all(again)) == [T1]
    assert str(file.parent) in str(again.failures[tmp_path / "a"])
    # The folder can be written, but what lies in it is not known: it must not be marked as clean.
    assert again.revive() == []
    assert again.has_failed
    again.close()
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    file.write_bytes(whole)
    repaired = load_all(open_dirs(tmp_path / "a", tmp_path / "b"))
    assert repaired[T0].recovery_report.segments_checked == 1
    assert repaired[T0].end_offset == 50


def test_a_start_without_any_folder_that_can_be_loaded_is_refused(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.close()
    (tmp_path / "t-0" / "partition.metadata").write_text("garbage")
    with pytest.raises(DiskError, match=r"t-0/partition.metadata has no version 0 and topic_id"):
        load_all(open_dirs(tmp_path))


def test_a_log_that_could_not_be_closed_leaves_no_clean_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path)
    dirs.create_log(T0, TOPIC_ID, CONFIG)

    def fail(_log: LocalLog) -> None:
        raise DiskError("input/output error")

    monkeypatch.setattr(LocalLog, "flush", fail)
    dirs.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_folder_without_room_for_its_clean_mark_keeps_the_others_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = two_filled_folders(tmp_path)
    real_write = files.write_atomically

    def write(path: Path, content: bytes, *, sync: bool = True) -> None:
        if path == tmp_path / "a" / ".kafka_cleanshutdown":
            raise DiskError("no space left on device")
        real_write(path, content, sync=sync)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", write)
        dirs.close()
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()
    again = load_all(open_dirs(tmp_path / "a", tmp_path / "b"))
    assert [opened.end_offset for opened in again.values()] == [50, 50]


def test_clients_that_hold_every_descriptor_take_no_folder_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was written, and nothing is wrong with the disk: it is tried again and served."""
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 5)

    def refuse(path: Path, *_: object, **__: object) -> None:
        cause = OSError(errno.EMFILE, "Too many open files")
        raise DiskError(f"cannot open {path}: Too many open files") from cause

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", refuse)
        patch.setattr(files, "sync_directory", refuse)
        for _ in range(2):
            assert dirs.write_checkpoints({}, {}) == {tmp_path}
            with pytest.raises(DiskError, match="Too many open files"):
                log.flush()
    assert not dirs.has_failed
    assert caplog.text.count("checkpoints wait: the process has too many open files") == 1
    fill(log, 1)
    log.flush()
    assert log.recovery_point == log.end_offset == 60
    assert dirs.write_checkpoints({}, {}) == frozenset()


def test_a_batch_of_which_a_full_disk_took_a_half_is_taken_back_and_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 2)
    write, took = os.write, 0

    def fills_up(descriptor: int, data: memoryview) -> int:
        nonlocal took
        if took:
            raise OSError(errno.ENOSPC, "No space left on device")
        took = write(descriptor, data[: len(data) // 2])
        return took

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fills_up)
        with pytest.raises(DiskError, match="No space left"):
            fill(log, 1)
    assert took > 0
    assert not log.is_stopped
    fill(log, 1)
    assert_dense(log)
    assert log.end_offset == 30
    dirs.close()


@pytest.mark.parametrize("step", ["record_batch", "note_batch"])
def test_a_batch_that_memory_is_too_short_to_account_for_is_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It is in the file; its producer is not told, sends it again, and learns where it lies."""
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    append(log, batch(10, producer_id=7, producer_epoch=0, base_sequence=0))

    def no_memory(*_: object) -> None:
        raise MemoryError

    owner = ProducerState if step == "record_batch" else LogSegment
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, no_memory)
        with pytest.raises(DiskError, match="no memory"):
            append(log, batch(10, producer_id=7, producer_epoch=0, base_sequence=10))
    # What is sent meanwhile is refused, and may be sent again.
    with pytest.raises(DiskError):
        fill(log, 1)
    (revived,) = dirs.revive()
    again = append(revived.new, batch(10, producer_id=7, producer_epoch=0, base_sequence=10))
    assert (again.base_offset, again.duplicate) == (10, True)
    fill(revived.new, 1)
    assert_dense(revived.new)
    assert revived.new.end_offset == 30


def test_a_segment_that_a_full_disk_has_no_room_to_begin_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the next start the segment before would end where it begins."""
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 1)

    def no_room(*_: object) -> None:
        cause = OSError(errno.ENOSPC, "No space left on device")
        raise DiskError("No space left on device") from cause

    with monkeypatch.context() as patch:
        patch.setattr(TimeIndex, "create_file", no_room)
        with pytest.raises(DiskError, match="No space left"):
            log.roll()
    fill(log, 1)
    dirs.close()
    reopened = load_all(open_dirs(tmp_path))[T0]
    assert_dense(reopened)
    assert (len(reopened.segments), reopened.end_offset) == (1, 20)


def test_a_segment_that_memory_is_too_short_to_begin_hides_nothing_that_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is there: for the next start the segment before ends where it begins."""
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 1)

    def no_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(LogSegment, "seal", no_memory)
        with pytest.raises((DiskError, MemoryError)):
            log.roll()
    with suppress(DiskError):
        fill(log, 1)
    for revived in dirs.revive():
        log = revived.new
        fill(log, 1)
    log.flush()
    end_offset = log.end_offset
    dirs.close()
    reopened = load_all(open_dirs(tmp_path))[T0]
    assert_dense(reopened)
    assert reopened.end_offset == end_offset


def test_what_was_not_synced_is_read_from_the_device_when_a_folder_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory there may be what the sync that failed could not write, as if it were written."""
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 10)
    log.flush()
    synced = [segment.log_path for segment in log.segments[:-1]]
    fill(log, 10)
    unsynced = [segment.log_path for segment in log.segments[len(synced) :]]
    assert len(synced) > 0
    assert len(unsynced) > 1

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(DiskError):
            log.flush()
    events: list[Path] = []
    opens = LocalLog.open

    def forget(descriptor: int, _start: int, _length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    def open_log(directory: Path, **how: Any) -> LocalLog:
        events.append(directory)
        return opens(directory, **how)

    monkeypatch.setattr(os, "posix_fadvise", forget)
    monkeypatch.setattr(LocalLog, "open", open_log)
    (revived,) = dirs.revive()
    assert events == [*unsynced, log.leader_epochs.path, log.directory]
    assert revived.new.end_offset == 200
    dirs.close()


@pytest.mark.parametrize("origin", [AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION])
def test_a_marker_that_the_disk_has_no_room_to_index_is_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: AppendOrigin
) -> None:
    """It is in the file: what comes next lies behind it, and its transaction is aborted."""
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    append(log, batch(10, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))

    def no_room(*_: object) -> None:
        cause = OSError(errno.ENOSPC, "No space left on device")
        raise DiskError("No space left on device") from cause

    content = marker(MarkerType.ABORT, producer_id=7)
    struct.pack_into(">q", content, 0, log.end_offset)
    with monkeypatch.context() as patch:
        patch.setattr(TxnIndex, "append", no_room)
        with pytest.raises(DiskError, match="No space left"):
            log.append(content, leader_epoch=0, origin=origin)
    with pytest.raises(DiskError):
        fill(log, 1)
    (revived,) = dirs.revive()
    assert revived.new.end_offset == 11
    assert [one.producer_id for one in revived.new.aborted_transactions(0, 11)] == [7]
    fill(revived.new, 1)
    assert_dense(revived.new)


@pytest.mark.parametrize("name", ["meta.properties", "recovery-point-offset-checkpoint"])
def test_a_folder_whose_own_files_cannot_be_read_takes_only_itself_offline(
    tmp_path: Path, name: str
) -> None:
    """LogManager does the same. Where there is no other folder, the start ends with the reason."""
    dirs = two_filled_folders(tmp_path)
    dirs.close()
    file = tmp_path / "a" / name
    whole = file.read_bytes()
    # The kernel's own EIO, of a page that nothing is mapped to.
    file.unlink()
    file.symlink_to("/proc/self/mem")
    again = open_dirs(tmp_path / "a", tmp_path / "b")
    assert list(load_all(again)) == [T1]
    assert f"{file}: Input/output error" in str(again.failures[tmp_path / "a"])
    again.close()
    with pytest.raises(DiskError, match="Input/output error"):
        open_dirs(tmp_path / "a")
    file.unlink()
    file.write_bytes(whole)
    mended = load_all(open_dirs(tmp_path / "a", tmp_path / "b"))
    assert [opened.end_offset for opened in mended.values()] == [50, 50]


def test_a_folder_that_can_be_written_and_not_read_comes_back_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One bad sector and one consumer: each return recovers all logs, and is two lines of log."""
    clock = ManualClock(NOW_MS)
    dirs = open_dirs(tmp_path, clock=clock)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 5)

    def read_at(file: files.OpenFile, _position: int, _length: int) -> bytes:
        cause = OSError(errno.EIO, "Input/output error")
        raise DiskError(f"cannot read {file.path}: Input/output error") from cause

    def seconds_offline() -> int:
        """Reads, which fails; then counts until the log is there again."""
        nonlocal log
        with monkeypatch.context() as patch:
            patch.setattr(files.OpenFile, "read_at", read_at)
            with pytest.raises(DiskError):
                log.read(45, bytes_max=100)
        for seconds in range(1, 100):
            clock.advance_ms(1000)
            revived = dirs.revive()
            if revived:
                log = revived[0].new
                return seconds
        raise AssertionError("never")

    assert [seconds_offline() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    # It was well for a while: the next failure is the first one.
    clock.advance_ms(60_000)
    assert seconds_offline() == 1
    assert caplog.text.count("log folder offline") == 9
    assert_dense(log)


def test_a_folder_that_cannot_come_back_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    dirs = open_dirs(a, b)
    load_all(dirs)
    logs = [dirs.create_log(key, TOPIC_ID, CONFIG) for key in (T0, T1)]
    for log in logs:
        fill(log, 3)
        assert log.on_failure is not None
        log.on_failure(DiskError("input/output error"))
    reopen = LocalLog.open.__func__  # type: ignore[attr-defined]

    def short_of_memory(cls: type[LocalLog], directory: Path, **given: Any) -> LocalLog:
        if directory.parent == b:
            raise MemoryError
        return reopen(cls, directory, **given)  # type: ignore[no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(LocalLog, "open", classmethod(short_of_memory))
        [revived] = dirs.revive()
    assert revived.new is dirs.logs[T0]
    assert dirs.has_failed
    [revived] = dirs.revive()
    assert revived.new is dirs.logs[T1]
    assert not dirs.has_failed
    dirs.close()
