"""What a client must not append: each kind is refused by its own error and changes nothing."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import (
    DiskError,
)
from strandline.storage.files import OpenFile
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.segment import segment as segment_module
from strandline.storage.model import Buffer
from tests.unit.storage.local.builders import (
    append,
    assert_dense,
    batch,
    fill,
    open_log,
)

# --- the disk fails ------------------------------------------------------------------------------


class TearingFile(OpenFile):
    """A file on a disk that is full: half of a write gets through, then there is an error."""

    __slots__ = ("full", "truncatable")

    def __init__(self, path: Path) -> None:
        super().__init__(path, writable=True)
        self.full = True
        self.truncatable = True

    def append(self, data: Buffer) -> None:
        if not self.full:
            super().append(data)
            return
        super().append(memoryview(data)[: len(data) // 2])
        raise DiskError("no space left on device")

    def truncate(self, size_bytes: int) -> None:
        if not self.truncatable:
            raise DiskError("read-only file system")
        super().truncate(size_bytes)


def tear_writes(log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> TearingFile:
    """The file that the active segment writes to from now on."""
    tearing = TearingFile(log.active_segment.log_path)
    monkeypatch.setattr(segment_module, "OpenFile", lambda path, writable: tearing)
    log.active_segment.give_up_file()
    return tearing


def test_half_a_write_on_a_full_disk_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    fill(log, 2)
    tearing = tear_writes(log, monkeypatch)
    with pytest.raises(DiskError):
        append(log, batch(10, producer_id=1, producer_epoch=0, base_sequence=0))
    assert log.end_offset == 20
    assert not log.producers.entries
    tearing.full = False
    fill(log, 2)
    assert_dense(log)
    assert log.size_bytes == log.active_segment.log_path.stat().st_size


def test_a_log_that_cannot_be_put_right_refuses_everything_until_it_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    fill(log, 2)
    tearing = tear_writes(log, monkeypatch)
    tearing.truncatable = False
    with pytest.raises(DiskError):
        append(log, batch(10))
    tearing.full = False
    with pytest.raises(DiskError, match="stopped"):
        append(log, batch(10))
    with pytest.raises(DiskError):
        log.roll()
    with pytest.raises(DiskError):
        log.close()
    monkeypatch.undo()
    assert_dense(log_after := open_log(tmp_path, clean_shutdown=False))
    assert log_after.end_offset == 20


def test_an_index_that_cannot_be_written_does_not_fail_appends_and_is_whole_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=0))
    real_append = OpenFile.append

    def refuse_indexes(file: OpenFile, data: Buffer) -> None:
        if file.path.suffix != ".log":
            raise DiskError("no space left on device")
        real_append(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(OpenFile, "append", refuse_indexes)
        fill(log, 600, record_count=1)
    log.roll()
    sealed = log.segments[0]
    assert sealed.index_path.stat().st_size == 8 * 599
    assert_dense(log)


def test_a_roll_that_fails_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    fill(log, 3)

    def refuse(*_: object, **__: object) -> None:
        raise DiskError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", refuse)
        with pytest.raises(DiskError):
            log.roll()
    fill(log, 3)
    log.roll()
    fill(log, 3)
    assert [segment.base_offset for segment in log.segments] == [0, 60]
    assert_dense(log)


@contextmanager
def one_descriptor_left() -> Iterator[None]:
    """This process may open one file more. None is closed meanwhile: what other tests left to the
    collector would be room for a second one.
    """
    gc.collect()
    gc.disable()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        gc.enable()


def test_a_roll_that_fails_half_way_is_no_end_of_the_segment_for_the_next_start(
    tmp_path: Path,
) -> None:
    """A descriptor for the new log is left and none for its index; a smaller batch still fits."""
    config = LogConfig(segment_bytes=4000)
    log = open_log(tmp_path, config=config)
    fill(log, 5)
    with one_descriptor_left(), pytest.raises(DiskError, match=r"\.index: Too many open files"):
        append(log, batch(20, value_bytes=100))
    fill(log, 1, record_count=3)
    fill(log, 5)
    assert [segment.base_offset for segment in log.segments] == [0, 53]
    again = open_log(tmp_path, config=config, clean_shutdown=False)
    assert again.recovery_report.problems == []
    assert again.end_offset == 103
    assert_dense(again)
