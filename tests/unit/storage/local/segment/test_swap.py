"""A compaction that a kill left half done: what is swapped in, and what goes."""

from __future__ import annotations

from pathlib import Path

from tests.unit.storage.local.builders import (
    log_files,
    read_bytes,
)
from tests.unit.storage.local.restarts import filled, reopen


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
