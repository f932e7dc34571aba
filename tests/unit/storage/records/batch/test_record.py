"""Records inside a batch: the round trip, and every way of being malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import TimestampType
from strandline.storage.records.batch.batch import read_header
from strandline.storage.records.batch.record import Header, Record, encode_batch, iter_records
from strandline.storage.records.compression import Codec
from tests.unit.storage.records.made_records import (
    GOOD,
    MALFORMED,
    batch_of,
    record_bytes,
    records,
)


@pytest.mark.slow
@given(records(), st.sampled_from(Codec))
def test_what_is_encoded_is_decoded(made: list[Record], codec: Codec) -> None:
    encoded = encode_batch(made, codec=codec)
    header = read_header(encoded)
    assert list(iter_records(encoded, header)) == made
    assert header.record_count == len(made)
    assert header.last_offset == made[-1].offset
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in made)


def test_records_are_found_behind_other_batches() -> None:
    made = [Record(offset=3, timestamp_ms=5, key=b"k", value=None)]
    encoded = encode_batch(made)
    run = b"\x00" * 17 + encoded + b"tail"
    assert list(iter_records(run, read_header(run, 17), 17)) == made


def test_log_append_time_gives_every_record_the_brokers_time() -> None:
    made = [Record(offset=n, timestamp_ms=100 + n, key=None, value=None) for n in range(3)]
    encoded = encode_batch(made, timestamp_type=TimestampType.LOG_APPEND_TIME)
    found = list(iter_records(encoded, read_header(encoded)))
    assert [record.timestamp_ms for record in found] == [102, 102, 102]


# --- malformed -------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_records_are_corrupt(payload: bytes) -> None:
    encoded, header = batch_of(payload)
    with pytest.raises(CorruptRecords):
        list(iter_records(encoded, header))


def test_fewer_records_than_the_header_says_are_corrupt() -> None:
    encoded, header = batch_of(GOOD, count=2, last_delta=1)
    with pytest.raises(CorruptRecords):
        list(iter_records(encoded, header))


def test_two_records_with_one_offset_are_corrupt() -> None:
    encoded, header = batch_of(GOOD + GOOD, count=2, last_delta=1)
    with pytest.raises(CorruptRecords, match="offset delta"):
        list(iter_records(encoded, header))


def test_a_timestamp_beyond_64_bits_is_corrupt() -> None:
    payload = record_bytes(b"\x00", 2**62, 0, -1, -1, 0)
    encoded = bytearray(batch_of(payload)[0])
    encoded[27:35] = (2**62 + 2**61).to_bytes(8, "big")
    with pytest.raises(CorruptRecords, match="timestamp"):
        list(iter_records(encoded, read_header(encoded)))


def test_header_keys_that_are_no_text_are_shown_with_replacements() -> None:
    payload = record_bytes(b"\x00", 0, 0, -1, -1, 1, 2, b"\xff!", -1)
    encoded, header = batch_of(payload)
    (record,) = iter_records(encoded, header)
    assert record.headers == (Header("\ufffd!", None),)
