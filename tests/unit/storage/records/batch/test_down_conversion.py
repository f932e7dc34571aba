"""What an old consumer is given of a batch of today's."""

from __future__ import annotations

import pytest

from strandline.storage.errors import DecompressedTooLarge
from strandline.storage.records.batch import any_batch, down_conversion
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.compression import Codec
from tests.unit.storage.records.old_shapes import read_back


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize(("count", "value_bytes"), [(1, 20_000), (1_000, 0)])
def test_what_an_old_consumer_would_be_given_of_one_batch_is_bounded(
    codec: Codec, count: int, value_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of nothing has five times the bytes of a record of nothing."""
    records = [
        Record(offset=offset, timestamp_ms=7, key=None, value=bytes(value_bytes))
        for offset in range(count)
    ]
    content = encode_batch(records, codec=codec)
    converted = down_conversion.down_convert(content, magic=1, start_offset=0)
    assert read_back(converted) == records
    monkeypatch.setattr(down_conversion, "CONVERTED_BYTES_MAX", 16_000)
    with pytest.raises(DecompressedTooLarge):
        down_conversion.down_convert(content, magic=1, start_offset=0)


def batch_at(offset: int, codec: Codec, *, value_bytes: int = 3_000) -> tuple[Record, bytes]:
    record = Record(offset=offset, timestamp_ms=7, key=b"k", value=bytes(value_bytes))
    return record, encode_batch([record], codec=codec, leader_epoch=3, producer_id=5)


def test_batches_of_zstd_come_uncompressed_and_others_as_they_are() -> None:
    batches = [batch_at(offset, codec, value_bytes=9) for offset, codec in enumerate(Codec)]
    content = b"".join(encoded for _, encoded in batches)
    converted = down_conversion.without_zstd(content)
    found = list(any_batch.walk(converted, verify_crc=True))
    assert [one.header.codec for one in found] == [0, 1, 2, 3, 0]
    assert converted.startswith(content[: found[4].position])
    assert [
        record
        for one in found
        for record in any_batch.iter_records(converted, one.header, one.position)
    ] == [record for record, _ in batches]
    assert found[4].header.producer_id == 5
    assert found[4].header.leader_epoch == 3


def test_batches_without_zstd_are_no_larger_than_those_with_it_but_for_one() -> None:
    """As many bytes as that were asked for; the next fetch gets the others."""
    content = b"".join(batch_at(offset, Codec.ZSTD)[1] for offset in range(100))
    found = list(any_batch.walk(down_conversion.without_zstd(content)))
    assert 1 <= len(found) < 100
    assert found[-1].end_position <= len(content)
    (alone,) = any_batch.walk(down_conversion.without_zstd(batch_at(0, Codec.ZSTD)[1]))
    assert alone.header.codec == 0


def test_a_marker_before_a_batch_that_grows_does_not_come_alone() -> None:
    """An old consumer sees nothing of a marker, and would ask for it for ever."""
    marker = encode_batch(
        [Record(offset=0, timestamp_ms=7, key=bytes(4), value=bytes(6))], control=True
    )
    content = marker + batch_at(1, Codec.ZSTD)[1]
    assert len(list(any_batch.walk(down_conversion.without_zstd(content)))) == 2


def test_what_an_old_consumer_would_be_given_of_many_batches_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = b"".join(batch_at(offset, Codec.LZ4)[1] for offset in range(10))
    assert len(read_back(down_conversion.down_convert(content, magic=1, start_offset=0))) == 10
    monkeypatch.setattr(down_conversion, "CONVERTED_BYTES_MAX", 4_000)
    converted = down_conversion.down_convert(content, magic=1, start_offset=0)
    assert 1 <= len(read_back(converted)) <= 10
