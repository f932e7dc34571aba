"""Records inside a batch: the round trip, and every way of being malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import TimestampType
from strandline.storage.records import batch as batch_format
from strandline.storage.records.batch import BatchHeader, read_header
from strandline.storage.records.compression import Codec
from strandline.storage.records.record import Header, Record, encode_batch, iter_records

HEADERS = st.builds(Header, st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=8)))
RECORD_PARTS = st.tuples(
    st.integers(1, 5),  # step to the next offset: compaction leaves gaps
    st.integers(-(2**40), 2**50),
    st.one_of(st.none(), st.binary(max_size=40)),
    st.one_of(st.none(), st.binary(max_size=200)),
    st.lists(HEADERS, max_size=3).map(tuple),
)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    offset = draw(st.integers(0, 2**40))
    made = []
    for step, timestamp_ms, key, value, headers in draw(
        st.lists(RECORD_PARTS, min_size=1, max_size=12)
    ):
        offset += step
        made.append(
            Record(offset=offset, timestamp_ms=timestamp_ms, key=key, value=value, headers=headers)
        )
    return made


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


def batch_of(payload: bytes, *, count: int = 1, last_delta: int = 0) -> tuple[bytes, BatchHeader]:
    """A batch whose records are these very bytes; its CRC is not looked at here."""
    head = batch_format.HEADER.pack(
        0,
        batch_format.BATCH_LENGTH_MIN + len(payload),
        0,
        2,
        0,
        0,
        last_delta,
        0,
        0,
        -1,
        -1,
        -1,
        count,
    )
    return head + payload, read_header(head + payload)


def varint(number: int) -> bytes:
    encoded = bytearray()
    zigzag = (number << 1) ^ (number >> 63) if -(2**63) <= number < 2**63 else number
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def record_bytes(*parts: bytes | int) -> bytes:
    body = b"".join(varint(part) if isinstance(part, int) else part for part in parts)
    return varint(len(body)) + body


GOOD = record_bytes(b"\x00", 0, 0, 1, b"k", 1, b"v", 0)

MALFORMED = {
    "no bytes at all": b"",
    "record longer than the batch": varint(50) + GOOD[1:],
    "negative record length": varint(-1) + GOOD[1:],
    "empty record": varint(0) + GOOD[1:],
    "record shorter than its fields": varint(3) + GOOD[1:],
    "spare byte inside the record": record_bytes(b"\x00", 0, 0, 1, b"k", 1, b"v", 0, b"!"),
    "spare byte behind the last record": GOOD + b"\x00",
    "key longer than the record": record_bytes(b"\x00", 0, 0, 90, b"k", 1, b"v", 0),
    "key length below -1": record_bytes(b"\x00", 0, 0, -2, 1, b"v", 0),
    "huge value length": record_bytes(b"\x00", 0, 0, -1, 2**62, b"v", 0),
    "most negative value length": record_bytes(b"\x00", 0, 0, -1, -(2**63), b"v", 0),
    "negative header count": record_bytes(b"\x00", 0, 0, -1, -1, -1),
    "impossible header count": record_bytes(b"\x00", 0, 0, -1, -1, 2**40),
    "null header key": record_bytes(b"\x00", 0, 0, -1, -1, 1, -1, -1),
    "header longer than the record": record_bytes(b"\x00", 0, 0, -1, -1, 1, 30, b"a", -1),
    "varint of eleven bytes": b"\xff" * 10 + b"\x01" + GOOD[1:],
    "varint of 65 bits": record_bytes(b"\x00", b"\xff" * 9 + b"\x02", 0, -1, -1, 0),
    "varint without an end": b"\x80",
    "offset delta behind the batch": record_bytes(b"\x00", 0, 1, -1, -1, 0),
    "negative offset delta": record_bytes(b"\x00", 0, -1, -1, -1, 0),
    "huge offset delta": record_bytes(b"\x00", 0, 2**62, -1, -1, 0),
}


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
