"""Batches of any format in one buffer: whole ones are given, a torn tail is left out."""

from __future__ import annotations

import pytest

from strandline.storage.errors import CorruptRecords
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import encode_batch
from tests.support.old_formats import message_set
from tests.unit.storage.records.made_records import encoded
from tests.unit.storage.records.old_shapes import SHAPES, read_back, some_records


def test_iteration_gives_whole_batches_and_leaves_a_torn_tail_out() -> None:
    run = encoded() + encoded(base_offset=43) + encoded(base_offset=46)[:-1]
    found = list(walk(run))
    assert [batch.header.base_offset for batch in found] == [40, 43]
    assert found[1].position == found[0].end_position == len(encoded())
    assert list(walk(run, found[1].position)) == found[1:]


def test_iteration_stops_at_an_impossible_batch_with_an_error() -> None:
    with pytest.raises(CorruptRecords):
        list(walk(encoded() + bytes(100)))


def test_one_buffer_may_hold_all_formats() -> None:
    parts, expected = [], []
    for magic, codec in SHAPES:
        records = some_records(magic, first=len(expected))
        parts.append(message_set(records, magic=magic, codec=codec))
        expected += records
    records = some_records(1, first=len(expected))
    parts.append(encode_batch(records))
    expected += records
    assert read_back(b"".join(parts)) == expected
