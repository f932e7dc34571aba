"""A folder that failed comes back when it can be used, and is asked ever more seldom."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from strandline.storage import files
from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import LocalLog
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import (
    NOW_MS,
    TOPIC_ID,
    assert_dense,
    fill,
)
from tests.unit.storage.local.log_folders import CONFIG, T0, T1, load_all, open_dirs


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
