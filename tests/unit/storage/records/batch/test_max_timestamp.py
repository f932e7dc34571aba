"""The max timestamp of a batch whose header has one that cannot be."""

from __future__ import annotations

import random

import pytest

from strandline.storage.errors import CorruptRecords, DecompressedTooLarge
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch import max_timestamp
from strandline.storage.records.batch.batch import HEADER, check_crc, read_header
from strandline.storage.records.batch.record import (
    Header,
    Record,
    encode_batch,
    iter_records,
    with_crc,
)
from strandline.storage.records.compression import Codec

BYTES_MAX = 1024 * 1024


def batch_saying(max_ms: int, times_ms: list[int], codec: Codec = Codec.NONE) -> bytearray:
    records = [
        Record(offset=i, timestamp_ms=ms, key=b"k", value=b"v" * 70, headers=(Header("h", b"v"),))
        for i, ms in enumerate(times_ms)
    ]
    encoded = bytearray(encode_batch(records, codec=codec))
    batch_format.OFFSET_FIELD.pack_into(encoded, batch_format.MAX_TIMESTAMP_POSITION, max_ms)
    return with_crc(encoded)


@pytest.mark.parametrize("codec", Codec)
def test_a_max_timestamp_below_the_first_record_becomes_that_of_the_newest(codec: Codec) -> None:
    source = random.Random(codec)
    for count in (1, 2, 40):
        times_ms = [1_700_000_000_000 + source.randrange(-(10**6), 10**6) for _ in range(count)]
        encoded = batch_saying(-1, times_ms, codec)
        before = list(iter_records(encoded, read_header(encoded)))
        assert max_timestamp.says_too_early(memoryview(encoded))
        max_timestamp.set_newest(memoryview(encoded), read_header(encoded), bytes_max=BYTES_MAX)
        header = read_header(encoded)
        check_crc(encoded, header)
        assert header.max_timestamp_ms == max(times_ms)
        assert list(iter_records(encoded, header)) == before
        assert not max_timestamp.says_too_early(memoryview(encoded))


def test_what_may_be_true_is_left_alone() -> None:
    for max_ms, times_ms in ((7, [7]), (9, [7, 9]), (9, [7]), (-1, [-1, -1])):
        assert not max_timestamp.says_too_early(memoryview(batch_saying(max_ms, times_ms)))


def test_records_before_the_epoch_have_no_max_timestamp() -> None:
    """As in Kafka, where the search for the newest begins at -1."""
    encoded = batch_saying(-5000, [-1000])
    max_timestamp.set_newest(memoryview(encoded), read_header(encoded), bytes_max=BYTES_MAX)
    assert read_header(encoded).max_timestamp_ms == -1


def test_records_that_are_not_as_the_header_says_are_corrupt() -> None:
    good = batch_saying(-1, [1000, 1001])
    for count in (1, 3):
        fields = [*HEADER.unpack_from(good)[:-1], count]
        wrong = bytearray(HEADER.pack(*fields) + good[batch_format.HEADER_BYTES :])
        with pytest.raises(CorruptRecords):
            max_timestamp.set_newest(memoryview(wrong), read_header(wrong), bytes_max=BYTES_MAX)
    fields = list(HEADER.unpack_from(good))
    fields[7] = 2**63 - 1
    wrong = bytearray(HEADER.pack(*fields) + good[batch_format.HEADER_BYTES :])
    with pytest.raises(CorruptRecords):
        max_timestamp.set_newest(memoryview(wrong), read_header(wrong), bytes_max=BYTES_MAX)


def test_what_the_records_may_become_is_bounded() -> None:
    encoded = batch_saying(-1, [1000] * 50, Codec.ZSTD)
    with pytest.raises(DecompressedTooLarge):
        max_timestamp.set_newest(memoryview(encoded), read_header(encoded), bytes_max=1000)
