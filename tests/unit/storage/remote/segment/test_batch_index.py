"""Where batches lie in a range of a file, found through windows of any size."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.storage.errors import CorruptRecords
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.remote.segment.batch_index import BatchWalk, index_batches
from tests.support.archived_segments import (
    make_log,
)
from tests.support.old_formats import message_set
from tests.unit.storage.records.old_shapes import SHAPES, some_records

# --- the check itself ------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 4000), min_size=1, max_size=30),
    records_per_batch=st.integers(1, 6),
)
def test_windows_of_any_size_find_the_same_batches(cuts: list[int], records_per_batch: int) -> None:
    log = make_log(batch_count=12, records_per_batch=records_per_batch)
    walk = BatchWalk(len(log), 0)
    sizes = iter(cuts * 1000)
    while not walk.is_done:
        size = max(next(sizes), walk.missing_bytes)
        walk.add(memoryview(log)[walk.position : walk.position + size])
    assert walk.index == index_batches(memoryview(log), 0)


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(1, 600), min_size=1, max_size=30))
def test_windows_cut_old_messages_as_well(cuts: list[int]) -> None:
    parts = []
    for number, (magic, codec) in enumerate(SHAPES):
        records = some_records(magic, first=5 * number)
        parts.append(message_set(records, magic=magic, codec=codec))
    parts.append(encode_batch(some_records(1, first=5 * len(SHAPES))))
    # An old message may be shorter than a batch's header, at the end too.
    parts.append(message_set(some_records(0, first=5 * len(SHAPES) + 5, count=1), magic=0))
    log = b"".join(parts)
    expected = index_batches(memoryview(log), 0)
    assert expected.positions[-1] == len(log)
    walk, sizes = BatchWalk(len(log), 0), iter(cuts * 1000)
    while not walk.is_done:
        size = max(next(sizes), walk.missing_bytes)
        walk.add(memoryview(log)[walk.position : walk.position + size])
    assert walk.index == expected


def test_an_offset_that_no_log_has_is_damage() -> None:
    """It lies outside the checksum of its batch."""
    records = [Record(offset=n, timestamp_ms=1, key=None, value=b"v") for n in range(2)]
    batches = [encode_batch([record], base_offset=record.offset) for record in records]
    whole = b"".join(batches)
    assert len(index_batches(memoryview(whole), 0).base_offsets) == 2
    for wrong in (2**63 - 1, -1):
        damaged = bytearray(whole)
        struct.pack_into(">q", damaged, len(batches[0]), wrong)
        with pytest.raises(CorruptRecords, match=str(wrong)):
            index_batches(memoryview(damaged), 0)
