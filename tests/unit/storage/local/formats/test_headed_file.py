"""Reading whole files of every size, small ones with one read, and what files say of themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strandline.storage import files
from strandline.storage.errors import CorruptFile, DiskError, UnsupportedFormat
from strandline.storage.local.formats import headed_file

FIRST, MORE = files.SMALL_FILE_BYTES, files.LARGE_READ_BYTES


@pytest.mark.parametrize(
    "size_bytes",
    [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + MORE - 1, FIRST + MORE, FIRST + MORE + 1],
)
def test_a_file_is_read_to_its_end(tmp_path: Path, size_bytes: int) -> None:
    content = bytes(range(251)) * (size_bytes // 251 + 1)
    path = tmp_path / "file"
    path.write_bytes(content[:size_bytes])
    assert files.read_whole(path) == content[:size_bytes]
    assert files.read_if_there(str(path)) == content[:size_bytes]


def test_a_file_that_is_not_there_is_nothing_or_an_error(tmp_path: Path) -> None:
    assert files.read_if_there(tmp_path / "none") is None
    with pytest.raises(DiskError, match="No such file"):
        files.read_whole(tmp_path / "none")
    with pytest.raises(DiskError):
        files.read_if_there(tmp_path)


def test_a_pipe_a_device_and_a_file_of_holes_are_an_error_and_not_waited_for(
    tmp_path: Path,
) -> None:
    pipe, device, holes = tmp_path / "pipe", tmp_path / "device", tmp_path / "holes"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    holes.touch()
    os.truncate(holes, files.WHOLE_FILE_BYTES_MAX + 1)
    for strange in (device, holes):
        with pytest.raises(DiskError, match=r"device|bytes"):
            files.read_whole(strange)
    assert files.read_whole(pipe) == b""
    for writable in (False, True):
        for strange in (device, pipe, tmp_path):
            with pytest.raises(DiskError, match="cannot open"):
                files.OpenFile(strange, writable=writable)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_file_that_says_what_it_is_keeps_its_bytes(tmp_path: Path, end: bytes) -> None:
    """Those of a note of records set aside, which ends with a line's end, and one without."""
    path = tmp_path / "note"
    body = b'{"start_offset": 10, "end_offset": 20, "leader_epoch": 3, "target_offset": -1}'
    head = b'{"magic": "strandline-set-aside", "version": 1, "crc32c": 2437753895}\n'
    headed_file.write(path, body, magic="strandline-set-aside", version=1, end=end)
    assert path.read_bytes() == head + body + end
    assert headed_file.read(path, magic="strandline-set-aside", version=1, end=end) == body
    with pytest.raises(UnsupportedFormat):
        headed_file.read(path, magic="strandline-set-aside", version=2, end=end)
    for damaged in (
        head + body + end + b" ",
        head.replace(b"1,", b'"1",') + body + end,
        (head + body + end)[:-1],
        b"[]\n",
        b"{\n" + body,
    ):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFile):
            headed_file.read(path, magic="strandline-set-aside", version=1, end=end)


def test_a_file_of_a_later_release_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    """Whatever its checksum is by then: who is told of damage would remove it."""
    path = tmp_path / "note"
    path.write_bytes(b'{"magic": "strandline-set-aside", "version": 2, "sha256": ""}\n{}')
    with pytest.raises(
        UnsupportedFormat, match=r"version 2, this release reads 1: a later release"
    ):
        headed_file.read(path, magic="strandline-set-aside", version=1)
