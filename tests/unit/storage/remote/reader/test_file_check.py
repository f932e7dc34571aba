"""A range of a file is checked before it is sent, whatever the window."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from strandline.storage.errors import CorruptRecords
from strandline.storage.remote.reader import file_check
from strandline.storage.remote.reader.file_check import check_file
from strandline.storage.remote.segment.batch_index import index_batches
from tests.support.archived_segments import (
    make_log,
)


@pytest.mark.parametrize("window_bytes", [61, 100, 700, 100_000])
def test_a_range_of_a_file_is_checked_whatever_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(file_check, "WINDOW_BYTES", window_bytes)
    log = make_log(batch_count=20)
    path = tmp_path / "a"
    path.write_bytes(b"before" + log + b"behind")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        expected = index_batches(memoryview(log), 0)
        assert check_file(descriptor, 6, len(log), base_offset=0) == expected
        with pytest.raises(CorruptRecords):
            check_file(descriptor, 6, len(log) + 6, base_offset=0)
        with pytest.raises(CorruptRecords, match="too early"):
            check_file(descriptor, 6, len(log) + 100, base_offset=0)
        with pytest.raises(CorruptRecords, match="begins with"):
            check_file(descriptor, 6, len(log), base_offset=1)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("window_bytes", [100, 100_000])
def test_no_flipped_bit_of_a_file_is_let_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(file_check, "WINDOW_BYTES", window_bytes)
    log = make_log(batch_count=4)
    path = tmp_path / "a"
    path.write_bytes(log)
    good = index_batches(memoryview(log), 0)
    with open(path, "r+b") as file:
        for place in range(len(log)):
            file.seek(place)
            file.write(bytes([log[place] ^ 1]))
            file.flush()
            try:
                found = check_file(file.fileno(), 0, len(log), base_offset=0)
            except CorruptRecords:
                pass
            else:
                # The CRC covers neither the base offset nor the leader epoch before it.
                assert 12 <= (place - _start_of(good, place)) < 16 or found != good
            file.seek(place)
            file.write(log[place : place + 1])
            file.flush()


def _start_of(index: Any, place: int) -> int:
    return max(start for start in index.positions if start <= place)
