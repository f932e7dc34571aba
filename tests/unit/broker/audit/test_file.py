"""The file of the record: no client waits for it, and what is lost is counted."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.broker.audit import file as file_module
from strandline.broker.audit import waiting
from strandline.broker.audit.file import RecordFile
from strandline.broker.audit.waiting import WaitingLines
from tests.support.manual_clock import ManualClock

LINE = "x" * 99


@contextmanager
def opened(path: Path) -> Iterator[tuple[WaitingLines, RecordFile]]:
    with ThreadPoolExecutor(1) as worker:
        lines = WaitingLines(lambda count: json.dumps({"lines": count}))
        yield lines, RecordFile(str(path), lines, ManualClock(), worker)


def closed(file: RecordFile) -> None:
    asyncio.run(file.close())


def test_lines_are_appended_and_written_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    for text in ("one", "two"):
        with opened(path) as (lines, file):
            lines.add(text)
            closed(file)
    assert path.read_text() == "one\ntwo\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_lines_are_written_while_the_broker_runs(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"

    async def use(lines: WaitingLines, file: RecordFile) -> None:
        running = asyncio.create_task(file.run())
        for number in range(3):
            lines.add(str(number))
            while path.read_text() != "".join(f"{one}\n" for one in range(number + 1)):
                await asyncio.sleep(0.001)
        running.cancel()

    with opened(path) as (lines, file):
        asyncio.run(use(lines, file))


def test_a_line_that_a_killed_broker_did_not_end_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    path.write_text('{"whole":1}\n{"torn":')
    for text in ("one", "two"):
        with opened(path) as (lines, file):
            lines.add(text)
            closed(file)
    assert path.read_text() == '{"whole":1}\n{"torn":\none\ntwo\n'


@pytest.mark.parametrize("moved", [True, False])
def test_a_file_that_was_moved_or_removed_is_made_again(tmp_path: Path, moved: bool) -> None:
    path = tmp_path / "audit.json"
    with opened(path) as (lines, file):
        lines.add("one")
        assert file.write()
        if moved:
            path.rename(tmp_path / "audit.json.1")
        else:
            path.unlink()
        lines.add("two")
        assert file.write()
        closed(file)
    assert path.read_text() == "two\n"


def test_a_file_may_be_truncated_by_logrotate(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    with opened(path) as (lines, file):
        lines.add("one")
        assert file.write()
        os.truncate(path, 0)
        lines.add("two")
        closed(file)
    assert path.read_bytes() == b"two\n"


def test_without_its_folder_lines_wait_and_no_client_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "logs" / "audit.json"
    path.parent.mkdir()
    with opened(path) as (lines, file):
        lines.add("one")
        assert file.write()
        path.unlink()
        path.parent.rmdir()
        with caplog.at_level(logging.ERROR):
            for number in range(5):
                lines.add(str(number))
                assert not file.write()
        assert [one.message for one in caplog.records] == ["the record cannot be written"]
        path.parent.mkdir()
        assert file.write()
        closed(file)
    assert path.read_text() == "0\n1\n2\n3\n4\n"


def full_disk(monkeypatch: pytest.MonkeyPatch, room_bytes: int) -> Callable[[], None]:
    """Lets so many bytes be written, and no more until the returned function is called."""
    write, left = os.write, [room_bytes]

    def limited(descriptor: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(file_module.os, "write", limited)
    return lambda: monkeypatch.setattr(file_module.os, "write", write)


def test_a_full_disk_loses_no_line_and_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.json"
    make_room = full_disk(monkeypatch, 250)
    with opened(path) as (lines, file):
        for number in range(10):
            lines.add(f"{number}{LINE}")
        assert not file.write()
        # In the middle of a line.
        assert path.stat().st_size == 250
        lines.add("last")
        make_room()
        closed(file)
    assert path.read_text() == "".join(f"{number}{LINE}\n" for number in range(10)) + "last\n"


def test_what_does_not_fit_into_memory_is_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WAITING_BYTES_MAX", 1000)
    path = tmp_path / "audit.json"
    make_room = full_disk(monkeypatch, 0)
    with opened(path) as (lines, file):
        for _ in range(25):
            lines.add(LINE)
            file.write()
        assert lines.lost_count == 15
        make_room()
        assert file.write()
        lines.add("last")
        closed(file)
    *kept, told, last = path.read_text().splitlines()
    assert (kept, json.loads(told), last) == ([LINE] * 10, {"lines": 15}, "last")


def test_nobody_waits_for_a_fifo_that_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(OSError, match="No such device"), opened(path):
        pass
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with opened(path) as (lines, file):
        for _ in range(5000):
            lines.add(LINE)
        # The pipe is full: the rest waits.
        assert not file.write()
        read = bytearray()
        while not file.write():
            read += os.read(reader, 1024 * 1024)
        read += os.read(reader, 1024 * 1024)
        assert read.count(b"\n") == 5000
        os.close(reader)
        lines.add("nobody reads")
        assert not file.write()
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        assert file.write()
        assert os.read(reader, 1024) == b"nobody reads\n"
        closed(file)
    os.close(reader)


def test_a_stop_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_module, "CLOSE_S", 0.05)
    hangs = threading.Event()
    with opened(tmp_path / "audit.json") as (lines, file):
        monkeypatch.setattr(file_module.os, "write", lambda *_: hangs.wait() and 1)
        lines.add("")
        closed(file)
        assert [one.message for one in caplog.records] == ["the record cannot be written"]
        hangs.set()
