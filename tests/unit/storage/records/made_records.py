"""Records by hypothesis, and record bytes that no reader may take."""

from __future__ import annotations

from hypothesis import strategies as st

from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import BatchHeader, read_header
from strandline.storage.records.batch.record import (
    Header,
    Record,
    encode_batch,
)
from strandline.storage.records.columns.key_filter import KeyFilterBuilder
from strandline.storage.records.columns.survey import SurveyedRecords, survey
from strandline.storage.records.compression import decompress

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


def bounds_of(encoded: bytes) -> tuple[int, int] | None:
    """What the compiled loop says of the records of one batch."""
    header = read_header(encoded)
    payload = decompress(header.codec, encoded[batch_format.HEADER_BYTES :])
    records = SurveyedRecords(0, len(payload), header.base_timestamp_ms, header.record_count)
    (bounds,) = survey(b"xx" + bytes(payload), [shifted(records, 2)], KeyFilterBuilder())
    return bounds


def shifted(records: SurveyedRecords, by: int) -> SurveyedRecords:
    return records._replace(start=records.start + by, end=records.end + by)


def encoded(count: int = 3, base_offset: int = 40) -> bytes:
    return encode_batch(
        [
            Record(offset=base_offset + n, timestamp_ms=1000 + n, key=b"k", value=b"v" * n)
            for n in range(count)
        ],
        producer_id=9,
        producer_epoch=2,
        base_sequence=7,
        leader_epoch=5,
        transactional=True,
    )
