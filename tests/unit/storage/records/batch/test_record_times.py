"""Offsets and times without the records: those that a reader finds, in little memory."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.errors import CorruptRecords, UnsupportedCodec
from strandline.storage.model import TimestampType
from strandline.storage.records.batch.any_batch import iter_records
from strandline.storage.records.batch.batch import HEADER_BYTES, read_header
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.batch.record_times import iter_times
from strandline.storage.records.compression import BLOCK_BYTES, Codec, compress
from tests.unit.storage.records.made_records import GOOD, batch_of, records

BOMB_BYTES = 24 * 1024 * 1024


def slow_times(encoded: bytes) -> list[tuple[int, int]]:
    return [(r.offset, r.timestamp_ms) for r in iter_records(encoded, read_header(encoded))]


@given(records(), st.sampled_from(Codec), st.sampled_from(TimestampType))
def test_they_are_those_of_the_records(
    made: list[Record], codec: Codec, timestamp_type: TimestampType
) -> None:
    encoded = encode_batch(made, codec=codec, timestamp_type=timestamp_type)
    assert list(iter_times(encoded, read_header(encoded))) == slow_times(encoded)
    behind = b"." * 7 + encoded + b"." * 7
    assert list(iter_times(behind, read_header(behind, 7), 7)) == slow_times(encoded)


@pytest.mark.parametrize("codec", Codec)
def test_records_may_lie_across_blocks(codec: Codec) -> None:
    sizes = [BLOCK_BYTES - 100, 10, 70, 0, 3 * BLOCK_BYTES, 5, *range(40), BLOCK_BYTES]
    made = [
        Record(offset=offset, timestamp_ms=-offset, key=None, value=bytes(size))
        for offset, size in enumerate(sizes)
    ]
    encoded = encode_batch(made, codec=codec)
    assert list(iter_times(encoded, read_header(encoded))) == [(r.offset, -r.offset) for r in made]


def framed(payload: bytes, codec: Codec, count: int) -> bytes:
    """A batch of `count` records that are compressed already."""
    encoded = bytearray(batch_of(payload, count=count, last_delta=count)[0])
    encoded[22] = codec
    return bytes(encoded)


def test_other_framings_of_snappy_and_zstd_are_read() -> None:
    raw = framed(bytes(cramjam.snappy.compress_raw(GOOD)), Codec.SNAPPY, 1)
    parts = [bytes(cramjam.snappy.compress_raw(part)) for part in (GOOD[:3], GOOD[3:])]
    stream = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    stream += b"".join(struct.pack(">i", len(part)) + part for part in parts)
    xerial = framed(stream, Codec.SNAPPY, 1)
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    unsized = framed(compressor.compress(GOOD), Codec.ZSTD, 1)
    for encoded in (raw, xerial, unsized):
        assert list(iter_times(encoded, read_header(encoded))) == [(0, 0)] == slow_times(encoded)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_becomes_much_costs_little_memory(codec: Codec) -> None:
    made = [
        Record(offset=0, timestamp_ms=1, key=None, value=bytes(BOMB_BYTES)),
        Record(offset=1, timestamp_ms=2, key=None, value=None),
    ]
    encoded = encode_batch(made, codec=codec)
    header = read_header(encoded)
    tracemalloc.start()
    try:
        assert list(iter_times(encoded, header)) == [(0, 1), (1, 2)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * BLOCK_BYTES
    with pytest.raises(CorruptRecords, match="exceed"):
        list(iter_times(encoded, header, bytes_max=BOMB_BYTES // 2))


@pytest.mark.parametrize("codec", Codec)
def test_what_is_cut_or_claims_other_records_is_corrupt(codec: Codec) -> None:
    made = [Record(offset=n, timestamp_ms=n, key=b"k", value=bytes([n]) * 9) for n in range(50)]
    encoded = encode_batch(made, codec=codec)
    for cut in (1, len(encoded) // 4, len(encoded) - HEADER_BYTES):
        short = bytearray(encoded[: len(encoded) - cut])
        struct.pack_into(">i", short, 8, len(short) - 12)
        try:
            found = list(iter_times(short, read_header(short)))
        except CorruptRecords:
            continue
        # What a codec puts behind the last record says nothing of it.
        assert (cut, found) == (1, slow_times(encoded))
    more = bytearray(encoded)
    struct.pack_into(">i", more, 57, 51)
    with pytest.raises(CorruptRecords):
        list(iter_times(more, read_header(more)))


@given(st.binary(max_size=200), st.integers(0, 7), st.integers(1, 50))
def test_any_bytes_are_read_as_records_or_are_corrupt(data: bytes, codec: int, count: int) -> None:
    encoded = bytearray(batch_of(data, count=count, last_delta=count)[0])
    encoded[22] = codec
    header = read_header(encoded)
    try:
        expected = slow_times(bytes(encoded))
    except (CorruptRecords, UnsupportedCodec):
        with contextlib.suppress(CorruptRecords, UnsupportedCodec):
            list(iter_times(encoded, header))
        return
    assert list(iter_times(encoded, header)) == expected


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_streams_behind_each_other_are_read_as_one(codec: Codec) -> None:
    made = [Record(offset=o, timestamp_ms=o, key=None, value=bytes(9)) for o in range(40)]
    payload = encode_batch(made)[HEADER_BYTES:]
    packed = compress(codec, payload[:300]) + compress(codec, payload[300:])
    encoded = framed(packed, codec, len(made))
    assert list(iter_times(encoded, read_header(encoded))) == [(o, o) for o in range(40)]
