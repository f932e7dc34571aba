"""Message formats v0 and v1, as kafka-python builds them."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.storage.errors import CorruptRecords, DecompressedTooLarge
from strandline.storage.records.batch import any_batch, old_messages
from strandline.storage.records.batch.record import encode_batch
from strandline.storage.records.columns.columns import RowLimits, RunBuilder, WantedColumns, decode
from strandline.storage.records.compression import Codec, compress
from tests.support.old_formats import message_set, with_old_crc
from tests.unit.storage.records.old_shapes import SHAPES, read_back, some_records


@pytest.mark.parametrize(("magic", "codec"), SHAPES)
def test_every_record_comes_back_with_its_offset_and_time(magic: int, codec: int) -> None:
    records = some_records(magic)
    content = message_set(records, magic=magic, codec=codec)
    assert read_back(content) == records
    headers = [batch.header for batch in any_batch.walk(content)]
    assert headers[0].base_offset == 40
    assert headers[-1].last_offset == 44
    assert sum(header.record_count for header in headers) == 5
    assert max(header.max_timestamp_ms for header in headers) == max(
        record.timestamp_ms for record in records
    )
    assert len(headers) == (1 if codec else 5)


@pytest.mark.parametrize("codec", [1, 2, 3])
def test_the_time_of_a_wrapper_of_the_broker_is_that_of_all_it_wraps(codec: int) -> None:
    content = bytearray(message_set(some_records(1), magic=1, codec=codec))
    content[17] |= 0x08
    struct.pack_into(">q", content, 18, 77)
    assert {record.timestamp_ms for record in read_back(bytes(with_old_crc(content)))} == {77}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_is_corrupt_records_or_nothing(data: st.DataObject) -> None:
    magic, codec = data.draw(st.sampled_from(SHAPES))
    content = bytearray(message_set(some_records(magic), magic=magic, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    with contextlib.suppress(CorruptRecords):
        read_back(bytes(content))


@pytest.mark.parametrize("codec", [Codec.ZSTD, 5, 7])
def test_a_wrapper_of_a_codec_that_these_formats_do_not_have_is_damage(codec: int) -> None:
    """Recovery cuts what is damaged; it would stop at anything else."""
    content = bytearray(message_set(some_records(1), magic=1, codec=Codec.GZIP))
    content[17] = codec
    with pytest.raises(CorruptRecords, match=f"codec {int(codec)}"):
        read_back(bytes(content))


def test_a_wrapper_that_would_become_too_large_is_refused() -> None:
    bomb = compress(Codec.GZIP, bytes(64 * 1024 * 1024))
    message = bytearray(struct.pack(">qiIbb", 0, 0, 0, 1, 1) + bytes(8) + b"\xff" * 4)
    message += struct.pack(">i", len(bomb)) + bomb
    struct.pack_into(">i", message, 8, len(message) - 12)
    with_old_crc(message)
    with pytest.raises(DecompressedTooLarge):
        list(old_messages.iter_records(message, bytes_max=1024 * 1024))


@pytest.mark.slow
@pytest.mark.parametrize(("magic", "codec"), SHAPES)
def test_the_lakes_columns_hold_them_among_batches(magic: int, codec: int) -> None:
    before, after = some_records(1, first=0), some_records(1, first=10)
    records = some_records(magic, first=5)
    content = (
        encode_batch(before)
        + message_set(records, magic=magic, codec=codec)
        + encode_batch(after, codec=Codec.LZ4)
        + message_set(some_records(0, first=15, count=1), magic=0)
    )
    builder = RunBuilder(content)
    runs = []
    for batch in any_batch.walk(content, verify_crc=True):
        runs += builder.add(batch)
    runs += builder.finish()
    found = [
        (offset, time)
        for run in runs
        for part in decode(run, limits=RowLimits(), wanted=WantedColumns())
        for offset, time in zip(part.offsets.tolist(), part.timestamps_ms.tolist(), strict=True)
    ]
    expected = [*before, *records, *after, *some_records(0, first=15, count=1)]
    assert found == [(record.offset, record.timestamp_ms) for record in expected]
