"""The max timestamp of a batch is that of its newest record, whatever its header says."""

from __future__ import annotations

import random

import pytest

from strandline.storage.errors import CorruptRecords, DecompressedTooLarge
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import (
    HEADER,
    HEADER_BYTES,
    check_crc,
    read_header,
)
from strandline.storage.records.batch.max_timestamp import newest_in, says_newest, set_newest
from strandline.storage.records.batch.record import (
    Header,
    Record,
    encode_batch,
    encode_records,
    iter_records,
    with_crc,
)
from strandline.storage.records.compression import Codec, compress


def batch_saying(max_ms: int, times_ms: list[int], codec: Codec = Codec.NONE) -> bytearray:
    records = [
        Record(offset=i, timestamp_ms=ms, key=b"k", value=b"v" * 70, headers=(Header("h", b"v"),))
        for i, ms in enumerate(times_ms)
    ]
    encoded = bytearray(encode_batch(records, codec=codec))
    batch_format.OFFSET_FIELD.pack_into(encoded, batch_format.MAX_TIMESTAMP_POSITION, max_ms)
    return with_crc(encoded)


@pytest.mark.parametrize("codec", Codec)
def test_the_max_timestamp_becomes_that_of_the_newest_record(codec: Codec) -> None:
    """Sarama sent -1, kafka-go sends the last one's; others may be any lie."""
    source = random.Random(codec)
    for count in (1, 2, 40):
        times_ms = [1_700_000_000_000 + source.randrange(-(10**6), 10**6) for _ in range(count)]
        for said_ms in (-1, min(times_ms) - 1, max(times_ms) - 1, max(times_ms) + 1, 2**62):
            encoded = batch_saying(said_ms, times_ms, codec)
            before = list(iter_records(encoded, read_header(encoded)))
            assert not says_newest(memoryview(encoded))
            assert newest_in(memoryview(encoded), read_header(encoded)) == max(times_ms)
            set_newest(memoryview(encoded), read_header(encoded))
            header = read_header(encoded)
            check_crc(encoded, header)
            assert header.max_timestamp_ms == max(times_ms)
            assert list(iter_records(encoded, header)) == before
            assert says_newest(memoryview(encoded))


@pytest.mark.parametrize("codec", Codec)
def test_a_right_batch_stays_as_it_is(codec: Codec) -> None:
    for times_ms in ([7], [7, 9], [9, 7], [-1, -1], [0], [-5, 3]):
        encoded = memoryview(batch_saying(max(times_ms), times_ms, codec))
        before = bytes(encoded)
        assert says_newest(encoded)
        set_newest(encoded, read_header(encoded))
        assert bytes(encoded) == before


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_that_takes_long_is_left_to_a_worker(codec: Codec) -> None:
    for count, value in ((10_001, b""), (20, random.Random(1).randbytes(15_000))):
        made = [Record(offset=n, timestamp_ms=5, key=None, value=value) for n in range(count)]
        encoded = memoryview(bytearray(encode_batch(made, codec=codec)))
        # An uncompressed one takes time by its records alone.
        assert says_newest(encoded) == (codec is Codec.NONE and count < 100)
        set_newest(encoded, read_header(encoded))


@pytest.mark.parametrize("codec", Codec)
def test_what_kafka_reads_is_taken(codec: Codec) -> None:
    """A stream in two parts where a codec has these, and offset deltas that are all zero."""
    record = bytes(
        encode_records(
            [Record(offset=0, timestamp_ms=1, key=None, value=b"v")],
            base_offset=0,
            base_timestamp_ms=0,
        )
    )
    parts = (record, record) if codec is not Codec.LZ4 else (record * 2,)
    payload = b"".join(compress(codec, part) for part in parts)
    encoded = bytearray(batch_saying(1, [1, 1])[: batch_format.HEADER_BYTES] + payload)
    fields = list(HEADER.unpack_from(encoded))
    fields[1], fields[5], fields[7] = len(encoded) - 12, int(codec), 0
    HEADER.pack_into(encoded, 0, *fields)
    assert says_newest(memoryview(with_crc(encoded)))
    set_newest(memoryview(encoded), read_header(encoded))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
@pytest.mark.parametrize(("pieces", "is_small"), [(50, True), (100, False)])
def test_a_batch_of_very_many_compressed_pieces_is_left_to_a_worker(
    codec: Codec, pieces: int, is_small: bool
) -> None:
    """Some tens of thousands of empty ones fit into a small batch, and each takes microseconds."""
    plain = batch_saying(2, [1, 2])
    payload = bytes(plain[HEADER_BYTES:])
    packed = compress(codec, payload) + compress(codec, b"") * (pieces - 1)
    encoded = plain[:HEADER_BYTES] + packed
    batch_format.LOG_OVERHEAD.pack_into(encoded, 0, 0, len(encoded) - 12)
    batch_format.ATTRIBUTES_FIELD.pack_into(encoded, batch_format.CRC_START, codec)
    view = memoryview(with_crc(encoded))
    assert says_newest(view) == is_small
    set_newest(view, read_header(view))
    check_crc(view, read_header(view))


def test_bytes_that_are_no_batch_are_not_right() -> None:
    good = bytes(batch_saying(9, [7, 9]))
    for wrong in (b"", good[:50], good[:-1], good + b"x", bytes(100)):
        assert not says_newest(memoryview(wrong))


def test_a_stored_batch_that_cannot_be_read_keeps_its_headers_time() -> None:
    wrong = batch_saying(9, [7, 8])
    wrong[batch_format.HEADER_BYTES] = 0xFF
    assert newest_in(memoryview(wrong), read_header(wrong)) == 9


def test_records_before_the_epoch_have_no_max_timestamp() -> None:
    """As in Kafka, where the search for the newest begins at -1."""
    encoded = batch_saying(-5000, [-1000])
    set_newest(memoryview(encoded), read_header(encoded))
    assert read_header(encoded).max_timestamp_ms == -1


def test_records_that_are_not_as_the_header_says_are_corrupt() -> None:
    good = batch_saying(-1, [1000, 1001])
    for count in (1, 3):
        fields = [*HEADER.unpack_from(good)[:-1], count]
        wrong = bytearray(HEADER.pack(*fields) + good[batch_format.HEADER_BYTES :])
        with pytest.raises(CorruptRecords):
            set_newest(memoryview(wrong), read_header(wrong))
    fields = list(HEADER.unpack_from(good))
    fields[7] = 2**63 - 1
    wrong = bytearray(HEADER.pack(*fields) + good[batch_format.HEADER_BYTES :])
    with pytest.raises(CorruptRecords):
        set_newest(memoryview(wrong), read_header(wrong))


def test_what_the_records_may_become_is_bounded() -> None:
    encoded = batch_saying(-1, [1000] * 50, Codec.ZSTD)
    with pytest.raises(DecompressedTooLarge):
        set_newest(memoryview(encoded), read_header(encoded), bytes_max=1000)
