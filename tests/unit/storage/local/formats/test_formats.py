"""Kafka's file formats: golden bytes, round trips, damage; and the caches over them."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.errors import CorruptFile, DiskError, UnsupportedFormat
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.formats.epoch_cache import LeaderEpochCache
from strandline.storage.local.formats.index import LoadedIndexes, OffsetIndex, TimeEntry, TimeIndex
from strandline.storage.local.formats.producer_state import (
    MarkerType,
    ProducerState,
    TransactionMarker,
    iter_snapshot,
)
from strandline.storage.local.formats.txn_index import TxnIndex, decode_entries
from strandline.storage.model import AbortedTransaction, EpochStart, TopicPartition
from tests.unit.storage.local.builders import TOPIC_ID

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


def half_then_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes half of the next write, and nothing more."""
    write, took = os.write, 0

    def fills_up(descriptor: int, data: bytes) -> int:
        nonlocal took
        if took:
            raise OSError(errno.ENOSPC, "No space left on device")
        took = write(descriptor, data[: len(data) // 2 - 1])
        return took

    monkeypatch.setattr(os, "write", fills_up)


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


def test_a_transaction_index_of_which_a_full_disk_took_a_half_is_whole_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = TxnIndex(tmp_path / "x.txnindex")
    with monkeypatch.context() as patch:
        half_then_full(patch)
        with pytest.raises(DiskError, match="No space left"):
            index.append(AbortedTransaction(5, 10, 20, 21))
    index.append(AbortedTransaction(6, 15, 30, 31))
    assert list(TxnIndex.open(index.path).entries) == list(index.entries)
    assert len(index) == 2


# --- transaction index ---------------------------------------------------------------------------


def test_a_transaction_index_has_34_bytes_per_abort(tmp_path: Path) -> None:
    index = TxnIndex(tmp_path / "x.txnindex")
    index.append(AbortedTransaction(5, 10, 20, 21))
    index.append(AbortedTransaction(6, 15, 30, 31))
    content = index.path.read_bytes()
    assert content == struct.pack(">hqqqqhqqqq", 0, 5, 10, 20, 21, 0, 6, 15, 30, 31)
    assert list(TxnIndex.open(index.path).entries) == list(index.entries)
    index.truncate(30)
    assert decode_entries(index.path.read_bytes()) == [AbortedTransaction(5, 10, 20, 21)]
    index.truncate(20)
    assert not index.path.exists()


@pytest.mark.parametrize("content", [b"x", bytes(33), bytes(35), b"\x00\x01" + bytes(32)])
def test_a_damaged_transaction_index_is_an_error(content: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode_entries(content)


# --- producer snapshots --------------------------------------------------------------------------


def test_a_snapshot_has_kafkas_layout() -> None:
    producers = ProducerState()
    producers.record_batch(77, 3, 10, 104, 4, 1234, is_transactional=True)
    producers.record_marker(
        78, 1, TransactionMarker(MarkerType.COMMIT, coordinator_epoch=6), 105, 1235
    )
    body = struct.pack(
        ">iqhiqiqiqqhiqiqiq",
        2,
        *(77, 3, 14, 104, 4, 1234, -1, 100),
        *(78, 1, -1, -1, 0, 1235, 6, -1),
    )
    expected = struct.pack(">hI", 1, crc32c.crc32c(body)) + body
    assert producers.encode_snapshot() == expected


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**63 - 1),
            st.integers(0, 2**15 - 1),
            st.integers(0, 2**31 - 1),
            st.integers(0, 1000),
            st.booleans(),
        ),
        max_size=20,
        unique_by=lambda row: row[0],
    )
)
def test_snapshots_round_trip(rows: list[tuple[int, int, int, int, bool]]) -> None:
    producers = ProducerState()
    offset = 0
    for producer_id, epoch, sequence, delta, transactional in rows:
        offset += delta + 1
        producers.record_batch(
            producer_id, epoch, sequence, offset - 1, delta, 5, is_transactional=transactional
        )
    snapshot = producers.encode_snapshot()
    restored = ProducerState()
    restored.load_snapshot(snapshot)
    assert restored.encode_snapshot() == snapshot
    assert restored.first_open_offset == producers.first_open_offset
    assert [
        (entry.producer_id, entry.next_sequence, list(entry.batches))
        for entry in restored.entries.values()
    ] == [
        (entry.producer_id, entry.next_sequence, list(entry.batches))
        for entry in producers.entries.values()
    ]


def test_no_damaged_snapshot_is_believed() -> None:
    producers = ProducerState()
    producers.record_batch(77, 3, 10, 104, 4, 1234, is_transactional=False)
    snapshot = producers.encode_snapshot()
    for size_bytes in range(len(snapshot)):
        with pytest.raises((CorruptFile, UnsupportedFormat)):
            list(iter_snapshot(snapshot[:size_bytes]))
    for position in range(len(snapshot)):
        damaged = bytearray(snapshot)
        damaged[position] ^= 1
        with pytest.raises((CorruptFile, UnsupportedFormat)):
            ProducerState().load_snapshot(damaged)


# --- leader epochs -------------------------------------------------------------------------------


def lineage(path: Path) -> LeaderEpochCache:
    cache = LeaderEpochCache(path / "leader-epoch-checkpoint")
    for epoch, start in ((0, 0), (3, 120), (4, 200)):
        cache.assign(epoch, start)
    cache.write(sync=False)
    return cache


def test_epochs_are_kept_in_kafkas_text_form(tmp_path: Path) -> None:
    cache = lineage(tmp_path)
    assert cache.path.read_text() == "0\n3\n0 0\n3 120\n4 200\n"
    assert LeaderEpochCache.open(cache.path).starts == cache.starts


def test_epochs_end_where_the_next_one_begins(tmp_path: Path) -> None:
    cache = lineage(tmp_path)
    answers = {epoch: tuple(cache.end_offset_for(epoch, 260)) for epoch in range(-1, 6)}
    assert answers == {
        -1: (-1, -1),
        0: (0, 120),
        1: (0, 120),
        2: (0, 120),
        3: (3, 200),
        4: (4, 260),
        5: (-1, -1),
    }


def test_an_offset_has_the_epoch_that_wrote_it(tmp_path: Path) -> None:
    cache = lineage(tmp_path)
    assert [cache.epoch_for(offset) for offset in (0, 119, 120, 199, 200, 999)] == [
        0,
        0,
        3,
        3,
        4,
        4,
    ]


def test_an_older_or_equal_epoch_changes_nothing(tmp_path: Path) -> None:
    cache = lineage(tmp_path)
    cache.assign(4, 300)
    cache.assign(2, 300)
    assert cache.latest_epoch == 4
    assert len(cache.starts) == 3


def test_epochs_that_wrote_nothing_are_dropped(tmp_path: Path) -> None:
    cache = lineage(tmp_path)
    cache.assign(7, 200)
    assert cache.starts == (EpochStart(0, 0), EpochStart(3, 120), EpochStart(7, 200))


@pytest.mark.parametrize(
    ("end_offset", "epochs"), [(0, []), (1, [0]), (120, [0]), (121, [0, 3]), (201, [0, 3, 4])]
)
def test_truncating_the_end_forgets_epochs_that_begin_there(
    tmp_path: Path, end_offset: int, epochs: list[int]
) -> None:
    cache = lineage(tmp_path)
    cache.truncate_from_end(end_offset)
    assert [start.epoch for start in LeaderEpochCache.open(cache.path).starts] == epochs
    assert cache.latest_epoch == (epochs[-1] if epochs else -1)


@pytest.mark.parametrize(
    ("start_offset", "starts"),
    [
        (0, [(0, 0), (3, 120), (4, 200)]),
        (119, [(0, 119), (3, 120), (4, 200)]),
        (120, [(3, 120), (4, 200)]),
        (150, [(3, 150), (4, 200)]),
        (999, [(4, 999)]),
    ],
)
def test_truncating_the_start_forgets_epochs_that_end_there(
    tmp_path: Path, start_offset: int, starts: list[tuple[int, int]]
) -> None:
    cache = lineage(tmp_path)
    cache.truncate_from_start(start_offset)
    assert list(map(tuple, cache.starts)) == starts
    cache.write(sync=False)
    assert LeaderEpochCache.open(cache.path).starts == cache.starts
    # What ended before it is told to have ended there: nobody has read on wrongly until then.
    assert cache.end_offset_for(0, 999).start_offset == (
        starts[1][1] if start_offset < 120 else starts[0][1]
    )


def test_a_lineage_that_goes_back_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n3 100\n2 200\n")
    with pytest.raises(CorruptFile):
        LeaderEpochCache.open(path)


# --- checkpoints ---------------------------------------------------------------------------------


def test_offset_checkpoints_have_kafkas_text_form(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    offsets = {TopicPartition("a.b_c-d", 10): 2**62, TopicPartition("a", 0): 0}
    checkpoint.write_offsets(path, offsets)
    assert path.read_text() == f"0\n2\na 0 0\na.b_c-d 10 {2**62}\n"
    assert checkpoint.read_offsets(path) == offsets


def test_an_absent_checkpoint_has_no_entries(tmp_path: Path) -> None:
    assert checkpoint.read_offsets(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("1\n0\n", UnsupportedFormat),
        ("0\n", CorruptFile),
        ("x\n1\n", CorruptFile),
        ("0\n2\na 0 1\n", CorruptFile),
        ("0\n1\na 0\n", CorruptFile),
        ("0\n1\na b c\n", CorruptFile),
        ("0\n1\na 0 1 2\n", CorruptFile),
        (b"\xff\xfe\x00", CorruptFile),
    ],
)
def test_damaged_checkpoints_are_errors(
    tmp_path: Path, content: str | bytes, error: type[Exception]
) -> None:
    path = tmp_path / "c"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(error):
        checkpoint.read_offsets(path)


def test_ids_have_kafkas_22_characters(tmp_path: Path) -> None:
    assert checkpoint.encode_id(TOPIC_ID) == "Dw4NDAsKSQiHBgUEAwIBAA"
    assert checkpoint.decode_id("Dw4NDAsKSQiHBgUEAwIBAA") == TOPIC_ID
    assert all(len(checkpoint.random_id()) == 22 for _ in range(20))
    for bad in ("", "abc", "Dw4NDAsKSQiHBgUEAwIBAAAA", "é" * 22):
        with pytest.raises(CorruptFile):
            checkpoint.decode_id(bad)


def test_a_partition_folder_names_its_topic_id(tmp_path: Path) -> None:
    assert checkpoint.read_topic_id(tmp_path) is None
    checkpoint.write_topic_id(tmp_path, TOPIC_ID)
    content = (tmp_path / "partition.metadata").read_text()
    assert content == "version: 0\ntopic_id: Dw4NDAsKSQiHBgUEAwIBAA\n"
    assert checkpoint.read_topic_id(tmp_path) == TOPIC_ID
    (tmp_path / "partition.metadata").write_text("version: 0\n")
    with pytest.raises(CorruptFile):
        checkpoint.read_topic_id(tmp_path)


def test_properties_are_read_as_java_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_text("#\n#Mon Jan 01 00:00:00 UTC 2024\nnode.id=1\nversion=1\nx=a\\:b\n\n")
    assert checkpoint.read_properties(path) == {"node.id": "1", "version": "1", "x": "a:b"}
    path.write_text("nonsense\n")
    with pytest.raises(CorruptFile):
        checkpoint.read_properties(path)
