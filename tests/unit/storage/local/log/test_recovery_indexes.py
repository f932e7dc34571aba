"""Starting again with damaged indexes: they are rebuilt, or slow, and never wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from strandline.storage.config.log_config import LogConfig
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    assert_dense,
    batch,
    open_log,
    read_bytes,
)
from tests.unit.storage.local.restarts import filled, goes_on, killed, reopen


def _truncate(path: Path, size_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:size_bytes])


INDEX_DAMAGE: dict[str, Callable[[Path], None]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b"") and None,
    "torn": lambda path: _truncate(path, path.stat().st_size - 3),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\xff\xff\xff\xff") and None,
    "noise": lambda path: path.write_bytes(bytes(range(240))) and None,
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_damaged_indexes_are_rebuilt(tmp_path: Path, suffix: str, damage: str, clean: bool) -> None:
    log = filled(tmp_path / "log")
    content = read_bytes(log)
    log.close()
    directory = killed(log, tmp_path / "damaged")
    originals = {path.name: path.read_bytes() for path in directory.glob(f"*{suffix}")}
    for path in directory.glob(f"*{suffix}"):
        INDEX_DAMAGE[damage](path)
    again = reopen(directory, clean=clean)
    assert again.end_offset == 400
    assert again.recovery_report.bytes_cut == 0
    for offset in range(0, 400, 7):
        found = again.read(offset, bytes_max=200)
        assert found.next_offset == offset // 10 * 10 + 10
    assert read_bytes(again) == content
    for wanted in range(0, 400, 9):
        time = again.find_timestamp(NOW_MS + wanted)
        assert time is not None
        assert time.offset == wanted
    for segment in again.segments[:-1]:
        path = segment.log_path.with_suffix(suffix)
        assert path.read_bytes() == originals[path.name]
    goes_on(again)


def test_an_index_that_lost_entries_is_slow_and_right(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    log.close()
    for path in tmp_path.glob("log/*.index"):
        _truncate(path, 16)
    again = reopen(log.directory, clean=True)
    assert_dense(again)


def test_indexes_that_were_written_with_other_settings_are_believed(tmp_path: Path) -> None:
    """Few entries, and large batches behind the last one, are no damage."""
    roomy = LogConfig(segment_bytes=100_000, index_interval_bytes=50_000)
    log = open_log(tmp_path, config=roomy)
    for _ in range(3):
        for _ in range(3):
            append(log, batch(value_bytes=20_000))
        log.roll()
    log.flush()
    log.close()
    lowered = LogConfig(index_interval_bytes=0, max_message_bytes=1)
    end_offset = log.end_offset
    again = open_log(tmp_path, config=lowered, recovery_point=end_offset, clean_shutdown=True)
    assert_dense(again)
    assert again.recovery_report.problems == []
    assert again.recovery_report.indexes_rebuilt == 0


def test_an_entry_that_names_no_batch_border_is_not_believed(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    content = read_bytes(log)
    log.close()
    for path in tmp_path.glob("log/*.index"):
        entries = list(struct.iter_unpack(">II", path.read_bytes()))
        moved = [(offset, position + 5) for offset, position in entries[:-1]] + entries[-1:]
        path.write_bytes(b"".join(struct.pack(">II", *entry) for entry in moved))
    again = reopen(log.directory, clean=True)
    for offset in range(0, 400, 3):
        found = again.read(offset, bytes_max=700)
        assert found.range is not None
        position = content.index(found.range.read())
        assert content[position : position + 8] == struct.pack(">q", offset // 10 * 10)


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_in_the_middle_of_an_index_gives_wrong_data(tmp_path: Path, seed: int) -> None:
    """The last entries are looked at when a log is opened, all others when they are used."""
    log = filled(tmp_path / "log")
    content = read_bytes(log)
    log.close()
    random = Random(seed)
    for pattern, entry_bytes in (("*.index", 8), ("*.timeindex", 12)):
        for path in log.directory.glob(pattern):
            damaged = bytearray(path.read_bytes())
            for _ in range(4):
                damaged[random.randrange(len(damaged) - entry_bytes)] ^= 1 << random.randrange(8)
            path.write_bytes(damaged)
    again = reopen(log.directory, clean=True)
    assert read_bytes(again, bytes_max=random.choice([100, 700, 1500, 1 << 20])) == content
    for offset in range(0, 400, 3):
        found = again.read(offset, bytes_max=random.randrange(2000))
        assert found.range is not None
        position = content.index(found.range.read())
        assert content[position : position + 8] == struct.pack(">q", offset // 10 * 10)
        assert again.find_timestamp(NOW_MS + offset) == (NOW_MS + offset, offset, 0)


def test_a_deleted_index_of_a_running_log_is_survived(tmp_path: Path) -> None:
    log = filled(tmp_path)
    for segment in log.segments[:-1]:
        segment.offset_index.unload()
        segment.index_path.unlink()
    assert_dense(log)


def test_damage_in_a_safe_segment_is_an_error_and_never_wrong_data(tmp_path: Path) -> None:
    """Below the recovery point nothing is cut: it was whole once, and the rest is still good."""
    log = filled(tmp_path / "log")
    log.close()
    damaged = log.segments[1]
    path = damaged.log_path
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    path.write_bytes(content)
    damaged.index_path.unlink()
    again = reopen(log.directory, clean=True)
    assert again.end_offset == 400
    assert path.read_bytes() == content
    assert any("is damaged" in problem for problem in again.recovery_report.problems)
    assert again.read(0, bytes_max=1).next_offset == 10
    assert again.read(damaged.end_offset, bytes_max=1).range is not None
