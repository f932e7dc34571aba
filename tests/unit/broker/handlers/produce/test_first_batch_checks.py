"""Which batches are looked into: the first small ones of a connection, and no more."""

from __future__ import annotations

import secrets

import pytest

from strandline.broker.handlers.produce.first_batch_checks import (
    BATCHES_CHECKED,
    CHECKED_BYTES_MAX,
    PEERS_MAX,
    RECORDS_PER_LOOK,
    RECORDS_PER_S,
    RECORDS_SAVED_MAX,
    FirstBatchChecks,
    check_records,
)
from strandline.storage.errors import InvalidRecords
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.record import Header, Record, encode_batch, with_crc
from strandline.storage.records.compression import Codec, compress
from tests.support.manual_clock import ManualClock
from tests.unit.storage.records.made_records import GOOD, MALFORMED

# Kafka takes these from producers; the others are faults of lengths, which every append finds.
TAKEN = ("key length below -1", "offset delta behind", "negative offset", "huge offset")
FIELDS = {
    fault: payload
    for fault, payload in MALFORMED.items()
    if any(word in fault for word in ("key", "value", "header", "inside"))
    and not any(fault.startswith(taken) for taken in TAKEN)
}


def batch_around(payload: bytes, codec: Codec = Codec.NONE, *, count: int = 1) -> memoryview:
    """A batch that says so many records, with a true CRC."""
    fields = list(
        batch_format.HEADER.unpack_from(
            encode_batch([Record(offset=0, timestamp_ms=1, key=None, value=None)])
        )
    )
    packed = compress(codec, payload) if codec else payload
    fields[1] = batch_format.HEADER_BYTES + len(packed) - 12
    fields[5], fields[-1] = int(codec), count
    return memoryview(with_crc(bytearray(batch_format.HEADER.pack(*fields) + packed)))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("fault", FIELDS)
def test_a_record_whose_fields_do_not_fit_is_refused(fault: str, codec: Codec) -> None:
    with pytest.raises(InvalidRecords):
        check_records(batch_around(FIELDS[fault], codec))


@pytest.mark.parametrize("codec", Codec)
def test_large_batches_are_taken_on_trust(codec: Codec) -> None:
    (fault, *_) = FIELDS.values()
    check_records(batch_around(fault + bytes(CHECKED_BYTES_MAX), codec))


@pytest.mark.parametrize("codec", Codec)
def test_good_records_of_all_kinds_are_taken(codec: Codec) -> None:
    headers = (Header(key="", value=None), Header(key="h", value=b""), Header(key="k", value=b"v"))
    for record in (
        Record(offset=0, timestamp_ms=5, key=None, value=None),
        Record(offset=0, timestamp_ms=2**41, key=b"", value=b"v" * 300, headers=headers),
        Record(offset=0, timestamp_ms=-1, key=b"k" * 100, value=b""),
    ):
        check_records(memoryview(encode_batch([record], codec=codec)))
    check_records(batch_around(GOOD, codec))


@pytest.mark.parametrize("fault", [fault for fault in MALFORMED if fault.startswith(TAKEN)])
def test_what_kafka_takes_is_taken(fault: str) -> None:
    check_records(batch_around(MALFORMED[fault]))


def test_what_else_is_wrong_with_a_batch_is_left_to_the_append() -> None:
    good = bytes(batch_around(next(iter(FIELDS.values()))))
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    for wrong in (b"", good[:50], good[:-1], good + b"x", damaged, bytes(100)):
        check_records(memoryview(wrong))


def test_the_records_behind_a_good_one_are_read_too() -> None:
    for fault in FIELDS.values():
        with pytest.raises(InvalidRecords):
            check_records(batch_around(GOOD + fault, count=2))


def test_connections_without_number_are_looked_into_for_a_bounded_time_alone() -> None:
    """As where each batch comes over a connection of its own."""
    clock = ManualClock()
    first, wrong = FirstBatchChecks(clock.monotonic_s), batch_around(next(iter(FIELDS.values())))
    each = RECORDS_PER_LOOK + 1

    def refused_of(connection_count: int) -> int:
        count = 0
        for _ in range(connection_count):
            try:
                first.check(f"a:{secrets.token_hex(8)}", wrong)
            except InvalidRecords:
                count += 1
        return count

    assert refused_of(5000) == RECORDS_SAVED_MAX // each
    clock.advance_ms(1000)
    assert refused_of(5000) == pytest.approx(RECORDS_PER_S / each, abs=1)
    clock.advance_ms(10**9)
    assert refused_of(5000) == RECORDS_SAVED_MAX // each


def test_a_connection_that_is_known_is_not_looked_into() -> None:
    first, wrong = (
        FirstBatchChecks(ManualClock().monotonic_s),
        batch_around(next(iter(FIELDS.values()))),
    )
    for _ in range(BATCHES_CHECKED):
        assert first.is_new("a:1")
        with pytest.raises(InvalidRecords):
            first.check("a:1", wrong)
    assert not first.is_new("a:1")
    first.check("a:1", wrong)
    assert first.is_new("b:1")


def test_however_many_connections_come_a_bounded_number_is_remembered() -> None:
    first = FirstBatchChecks(ManualClock().monotonic_s)
    for number in range(2 * PEERS_MAX + 5):
        first.check(f"a:{number}", memoryview(b""))
    assert sum(not first.is_new(f"a:{number}") for number in range(10)) == 0
    assert len(first) <= PEERS_MAX
