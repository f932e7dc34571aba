"""Which batches are looked into: the first small ones of a connection, and no more."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from strandline.broker.handlers.produce.first_batch_checks import (
    BATCHES_CHECKED,
    CHECKED_BYTES_MAX,
    PEERS_MAX,
    RECORDS_PER_LOOK,
    RECORDS_PER_S,
    RECORDS_SAVED_MAX,
    FirstBatchChecks,
    look_inside,
)
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import InvalidRecords
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.record import Header, Record, encode_batch, with_crc
from strandline.storage.records.compression import Codec, compress
from tests.support.manual_clock import ManualClock

CONFIG = LogConfig()


def untrue(value_bytes: int, codec: Codec = Codec.NONE) -> memoryview:
    """Two records in a batch that says three, with a true CRC."""
    records = [
        Record(offset=offset, timestamp_ms=1, key=None, value=b"v" * value_bytes)
        for offset in range(2)
    ]
    encoded = bytearray(encode_batch(records, codec=codec))
    batch_format.HEADER.pack_into(
        encoded, 0, *batch_format.HEADER.unpack_from(encoded)[:6], 2, 1, 1, -1, -1, -1, 3
    )
    return memoryview(with_crc(encoded))


@pytest.mark.parametrize("codec", Codec)
def test_small_batches_are_looked_into_and_large_ones_taken_on_trust(codec: Codec) -> None:
    with pytest.raises(InvalidRecords):
        look_inside(untrue(1000, codec))
    look_inside(untrue(CHECKED_BYTES_MAX, codec))


@pytest.mark.parametrize("codec", Codec)
def test_good_batches_and_offsets_that_are_counted_otherwise_are_taken(codec: Codec) -> None:
    """Null keys and values, headers of all kinds; and offset deltas of zero, which Kafka takes."""
    headers = (Header(key="", value=None), Header(key="h", value=b""), Header(key="k", value=b"v"))
    records = [
        Record(offset=0, timestamp_ms=5, key=None, value=None),
        Record(offset=1, timestamp_ms=2**41, key=b"", value=b"v" * 300, headers=headers),
        Record(offset=2, timestamp_ms=-1, key=b"k" * 100, value=b""),
    ]
    look_inside(memoryview(encode_batch(records, codec=codec)))
    alike = encode_batch([replace(record, offset=0) for record in records], codec=codec)
    fields = list(batch_format.HEADER.unpack_from(alike))
    fields[6] = 2
    look_inside(memoryview(with_crc(bytearray(batch_format.HEADER.pack(*fields) + alike[61:]))))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_what_kafka_reads_is_taken(codec: Codec) -> None:
    """A stream in two parts, and a null whose length is not -1."""
    # Length, attributes, time, offset, key of -2, value of -3, no headers; as zigzag.
    record = bytes([12, 0, 0, 0, 3, 5, 0])
    whole = encode_batch([Record(offset=0, timestamp_ms=1, key=None, value=None)])
    fields = list(batch_format.HEADER.unpack_from(whole))
    fields[5], fields[6], fields[-1] = int(codec), 1, 2
    payload = compress(codec, record) + compress(codec, record)
    fields[1] = batch_format.HEADER_BYTES + len(payload) - 12
    content = bytearray(batch_format.HEADER.pack(*fields) + payload)
    look_inside(memoryview(with_crc(content)))
    fields[-1] = 3
    content = bytearray(batch_format.HEADER.pack(*fields) + payload)
    with pytest.raises(InvalidRecords):
        look_inside(memoryview(with_crc(content)))


def test_connections_without_number_are_looked_into_for_a_bounded_time_alone() -> None:
    """As where each batch comes over a connection of its own."""
    clock = ManualClock()
    first = FirstBatchChecks(clock.monotonic_s)
    each = RECORDS_PER_LOOK + 3
    assert refused(first, 5000) == RECORDS_SAVED_MAX // each
    clock.advance_ms(1000)
    assert refused(first, 5000) == pytest.approx(RECORDS_PER_S / each, abs=1)
    clock.advance_ms(10**9)
    assert refused(first, 5000) == RECORDS_SAVED_MAX // each


def refused(first: FirstBatchChecks, connection_count: int) -> int:
    """How many of so many new connections are told that their first batch is wrong."""
    count = 0
    for _ in range(connection_count):
        try:
            first.look(f"a:{secrets.token_hex(8)}", untrue(10), CONFIG)
        except InvalidRecords:
            count += 1
    return count


def test_what_else_is_wrong_with_a_batch_is_left_to_the_append() -> None:
    good = bytes(untrue(10))
    for wrong in (b"", good[:50], good[:-1], good + b"x", good[:-1] + b"!", bytes(100)):
        look_inside(memoryview(wrong))


def test_a_connection_that_is_known_is_not_looked_into() -> None:
    first = FirstBatchChecks(ManualClock().monotonic_s)
    for _ in range(BATCHES_CHECKED):
        assert first.is_new("a:1")
        with pytest.raises(InvalidRecords):
            first.look("a:1", untrue(10), CONFIG)
    assert not first.is_new("a:1")
    first.look("a:1", untrue(10), CONFIG)
    assert first.is_new("b:1")


def test_however_many_connections_come_a_bounded_number_is_remembered() -> None:
    first = FirstBatchChecks(ManualClock().monotonic_s)
    for number in range(2 * PEERS_MAX + 5):
        first.look(f"a:{number}", memoryview(b""), CONFIG)
    assert sum(not first.is_new(f"a:{number}") for number in range(10)) == 0
    assert len(first) <= PEERS_MAX


def test_topics_that_have_all_records_read_and_batches_too_large_are_left_to_that() -> None:
    first = FirstBatchChecks(ManualClock().monotonic_s)
    first.look("a:1", untrue(10), LogConfig(cleanup_policy=("compact",)))
    first.look("a:1", untrue(1000), LogConfig(max_message_bytes=500))
