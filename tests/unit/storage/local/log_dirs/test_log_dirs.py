"""A log folder that fails takes its own partitions offline, and nothing else."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from strandline.storage import files
from strandline.storage.errors import DiskError
from strandline.storage.local.formats.index import TimeIndex
from strandline.storage.local.formats.producer_state import ProducerState
from strandline.storage.local.formats.txn_index import TxnIndex
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.records.batch.marker import MarkerType
from tests.unit.storage.local.builders import (
    TOPIC_ID,
    append,
    assert_dense,
    batch,
    fill,
    marker,
)
from tests.unit.storage.local.log_folders import (
    CONFIG,
    T0,
    T1,
    load_all,
    open_dirs,
    two_filled_folders,
)


def test_a_folder_that_cannot_be_made_takes_only_itself_offline(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    dirs = open_dirs(tmp_path / "file", tmp_path / "good")
    assert list(dirs.failures) == [tmp_path / "file"]
    dirs.create_log(T0, TOPIC_ID, CONFIG)
    dirs.close()
    with pytest.raises(DiskError):
        open_dirs(tmp_path / "file")


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
            assert dirs.write_checkpoints({}) == {tmp_path}
            with pytest.raises(DiskError, match="Too many open files"):
                log.flush()
    assert not dirs.has_failed
    assert caplog.text.count("checkpoints wait: the process has too many open files") == 1
    fill(log, 1)
    log.flush()
    assert log.recovery_point == log.end_offset == 60
    assert dirs.write_checkpoints({}) == frozenset()


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
    assert log.failure is None
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


def no_room(*_: object) -> None:
    cause = OSError(errno.ENOSPC, "No space left on device")
    raise DiskError("No space left on device") from cause


def test_a_segment_that_a_full_disk_has_no_room_to_begin_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the next start the segment before would end where it begins."""
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    fill(log, 1)

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


@pytest.mark.parametrize("origin", [AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION])
def test_a_marker_that_the_disk_has_no_room_to_index_is_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: AppendOrigin
) -> None:
    """It is in the file: what comes next lies behind it, and its transaction is aborted."""
    dirs = open_dirs(tmp_path)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    append(log, batch(10, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))

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
