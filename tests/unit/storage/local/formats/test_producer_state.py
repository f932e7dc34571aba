"""Snapshots of producers: Kafka's layout, and no damaged one is believed."""

from __future__ import annotations

import struct

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.local.formats.producer_state import ProducerState, iter_snapshot
from strandline.storage.records.batch.marker import MarkerType, TransactionMarker

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
