"""Where batches lie in a chunk."""

from __future__ import annotations

import struct

import pytest

from strandline.storage.errors import CorruptRecords
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.remote.segment.batch_index import index_batches
from tests.support.old_formats import message_set
from tests.unit.storage.records.old_shapes import SHAPES, some_records

# --- the check itself ------------------------------------------------------------------------


def test_old_messages_are_found_among_batches() -> None:
    parts = []
    for number, (magic, codec) in enumerate(SHAPES):
        records = some_records(magic, first=5 * number)
        parts.append(message_set(records, magic=magic, codec=codec))
    parts.append(encode_batch(some_records(1, first=5 * len(SHAPES))))
    # An old message may be shorter than a batch's header, at the end too.
    parts.append(message_set(some_records(0, first=5 * len(SHAPES) + 5, count=1), magic=0))
    log = b"".join(parts)
    index = index_batches(memoryview(log), 0)
    assert index.positions[-1] == len(log)
    assert index.positions[-2] == len(log) - len(parts[-1])
    assert list(index.next_offsets[-2:]) == [5 * len(SHAPES) + 5, 5 * len(SHAPES) + 6]
    with pytest.raises(CorruptRecords):
        index_batches(memoryview(log)[:-1], 0)


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
