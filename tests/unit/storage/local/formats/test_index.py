"""Indexes of a segment: Kafka's bytes, lookups, and entries that reach the file in runs."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.errors import DiskError
from strandline.storage.local.formats.index import LoadedIndexes, OffsetIndex, TimeEntry, TimeIndex
from tests.unit.storage.local.formats.half_written import half_then_full

# --- indexes -------------------------------------------------------------------------------------


def test_an_offset_index_holds_relative_offset_and_position_big_endian(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "i", active=True)
    index.append(9, 700)
    index.append(2**31 - 1, 2**31 - 1)
    index.seal()
    assert index.path.read_bytes() == bytes.fromhex("00000009000002bc7fffffff7fffffff")


def test_a_time_index_holds_time_and_relative_offset_big_endian(tmp_path: Path) -> None:
    index = TimeIndex(tmp_path / "i", active=True)
    index.append_if_later(1_700_000_000_000, 9)
    index.append_if_later(1_700_000_000_000, 12)
    index.append_if_later(1_699_999_999_999, 13)
    index.append_if_later(1_700_000_000_001, 14)
    index.seal()
    assert index.path.read_bytes() == bytes.fromhex(
        "0000018bcfe56800000000090000018bcfe568010000000e"
    )
    assert index.last_entry() == TimeEntry(1_700_000_000_001, 14)


@given(gaps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=60))
def test_a_lookup_is_the_last_entry_at_or_before(gaps: list[tuple[int, int]]) -> None:
    index = OffsetIndex(Path("/nowhere"), active=True)
    entries, offset, position = [(0, 0)], 0, 0
    for offset_gap, position_gap in gaps:
        offset, position = offset + offset_gap, position + position_gap
        entries.append((offset, position))
        index.append(offset, position)
    for wanted in range(offset + 3):
        expected = max(entry for entry in entries if entry[0] <= wanted)
        assert (index.floor(wanted) or (0, 0)) == expected
    for wanted in range(0, position + 10, 37):
        expected = max(entry for entry in entries if entry[1] <= wanted)
        assert (index.floor_by_position(wanted) or (0, 0)) == expected


def test_entries_reach_the_file_in_runs_and_all_of_them_when_sealed(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "i", active=True)
    for i in range(1, 1300):
        index.append(i, i * 100)
    assert index.path.stat().st_size == 1024 * 8
    index.seal()
    assert list(struct.iter_unpack(">II", index.path.read_bytes())) == [
        (i, i * 100) for i in range(1, 1300)
    ]
    index.unload()
    assert index.floor(700) == (700, 70_000)


def test_loaded_indexes_stay_within_their_budget(tmp_path: Path) -> None:
    loaded = LoadedIndexes(bytes_max=200)
    indexes = []
    for i in range(5):
        index = OffsetIndex(tmp_path / str(i), active=True)
        for entry in range(1, 11):
            index.append(entry, entry)
        index.seal()
        indexes.append(index)
        loaded.touch(index, 80)
    assert loaded.bytes_loaded <= 200
    loaded.touch(indexes[3], 80)
    loaded.touch(indexes[0], 80)
    loaded.forget(indexes[0])
    assert loaded.bytes_loaded == 80
    assert [index.floor(7) for index in indexes] == [(7, 7)] * 5


def test_an_index_of_which_a_full_disk_took_a_half_is_whole_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = OffsetIndex(tmp_path / "i", active=True)
    for number in range(1, 4):
        index.append(number, 100 * number)
    with monkeypatch.context() as patch:
        half_then_full(patch)
        with pytest.raises(DiskError, match="No space left"):
            index.write_out()
    index.append(4, 400)
    index.seal()
    expected = struct.pack(">8I", 1, 100, 2, 200, 3, 300, 4, 400)
    assert index.path.read_bytes() == expected
