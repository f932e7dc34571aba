"""Walks over the batches of a segment, checks each, and finds the timestamp bounds of its records.

    in Python          a tenth of the speed, and ready at once
    compiled loops     after enough records to make these pay

Both add the keys to a filter; a test checks that they have the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from strandline.storage.errors import CorruptRecords, UnsupportedCodec
from strandline.storage.model import NO_TIMESTAMP, Buffer, TimestampMs, TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.any_batch import payload_of, walk
from strandline.storage.records.batch.batch import Batch, BatchHeader
from strandline.storage.records.batch.stepper import read_varint, step_records
from strandline.storage.records.columns import vectorised
from strandline.storage.records.columns.key_filter import KeyFilterBuilder
from strandline.storage.records.columns.survey import SurveyedRecords, survey

# The compiled kernel walks ten times as fast as Python, but loading numba takes 0.4 s and 100 MB
# (seconds, when nothing of it is in its cache yet). After so many records, which take as long to
# walk plainly, it pays.
PLAIN_RECORDS_MAX = 200_000
# Batches per compiled call; the filter's fill is checked between calls.
RUN_BATCHES_MAX = 1024


class TimestampBounds(NamedTuple):
    """Smallest and largest record timestamp."""

    min_ms: TimestampMs
    max_ms: TimestampMs

    def union(self, other: TimestampBounds | None) -> TimestampBounds:
        if other is None or (other.min_ms >= self.min_ms and other.max_ms <= self.max_ms):
            return self
        if self.min_ms >= other.min_ms and self.max_ms <= other.max_ms:
            return other
        return TimestampBounds(min(self.min_ms, other.min_ms), max(self.max_ms, other.max_ms))


# Bounds of no records: Kafka's value for a missing timestamp.
NO_BOUNDS = TimestampBounds(NO_TIMESTAMP, NO_TIMESTAMP)


# (a segment, the filter for its keys) -> its batches, with correct CRCs, and the bounds of their
# records; None if these cannot be read. Raises CorruptRecords if a header is wrong.
BoundedBatch = tuple[Batch, TimestampBounds | None]
Walk = Callable[[memoryview, KeyFilterBuilder], Iterator[BoundedBatch]]


class AdaptiveWalk:
    """A walk in Python that switches to the compiled kernel after enough records."""

    def __init__(self, *, plain_records_max: int = PLAIN_RECORDS_MAX) -> None:
        self._plain_records_left = plain_records_max

    def __call__(self, view: memoryview, keys: KeyFilterBuilder) -> Iterator[BoundedBatch]:
        can_compile = vectorised.available()
        run: list[Batch] = []
        for batch in walk(view, verify_crc=True):
            if not can_compile or self._plain_records_left > 0:
                self._plain_records_left -= batch.header.record_count
                yield batch, _read(walk_bounds, batch.encoded(view), batch.header, keys)
                continue
            run.append(batch)
            if len(run) >= RUN_BATCHES_MAX:
                yield from _compiled_run(view, run, keys)
                run.clear()
        yield from _compiled_run(view, run, keys)


def _compiled_run(
    view: memoryview, run: Sequence[Batch], keys: KeyFilterBuilder
) -> Iterator[BoundedBatch]:
    """Walks a run; one kernel call takes all uncompressed batches."""
    found = iter(
        survey(
            view,
            [
                SurveyedRecords(
                    batch.position + batch_format.HEADER_BYTES,
                    batch.end_position,
                    batch.header.base_timestamp_ms,
                    batch.header.record_count,
                )
                for batch in run
                if batch.header.is_plain
            ],
            keys,
        )
    )
    for batch in run:
        header = batch.header
        if not header.is_plain:
            yield batch, _read(_compiled_bounds, batch.encoded(view), header, keys)
            continue
        bounds = next(found)
        yield batch, None if bounds is None else _of_header(TimestampBounds(*bounds), header)


def _compiled_bounds(
    encoded: memoryview, header: BatchHeader, keys: KeyFilterBuilder
) -> TimestampBounds:
    payload = payload_of(encoded, header)
    records = SurveyedRecords(0, len(payload), header.base_timestamp_ms, header.record_count)
    (bounds,) = survey(payload, [records], keys)
    if bounds is None:
        raise CorruptRecords(f"records of the batch at offset {header.base_offset} are not whole")
    return _of_header(TimestampBounds(*bounds), header)


def _of_header(bounds: TimestampBounds, header: BatchHeader) -> TimestampBounds:
    """Returns the records' own bounds, unless the broker set their timestamps (LogAppendTime)."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return TimestampBounds(header.max_timestamp_ms, header.max_timestamp_ms)
    return bounds


def _read(
    bounds_of: Callable[[memoryview, BatchHeader, KeyFilterBuilder], TimestampBounds],
    encoded: memoryview,
    header: BatchHeader,
    keys: KeyFilterBuilder,
) -> TimestampBounds | None:
    """Bounds of the records; None, and no filter, if they cannot be read.

    Earlier releases stored such batches, and so does Kafka. They are archived unchanged: one
    client's broken batch must not keep the whole partition on the local disk.
    """
    try:
        # The keys of control records (markers) get into the filter too, which does no harm.
        return bounds_of(encoded, header, keys)
    except (CorruptRecords, UnsupportedCodec):
        keys.abandon()
        return None


def walk_bounds(
    encoded: memoryview, header: BatchHeader, keys: KeyFilterBuilder | None = None
) -> TimestampBounds:
    """Timestamp bounds of the batch that fills `encoded`, in plain Python; its keys go to `keys`.

    Raises CorruptRecords or UnsupportedCodec.
    """
    payload = payload_of(encoded, header)
    deltas = walk_deltas(payload, header.record_count, keys)
    if not header.record_count:
        return NO_BOUNDS
    base_ms = header.base_timestamp_ms
    bounds = TimestampBounds(base_ms + deltas.min_ms, base_ms + deltas.max_ms)
    if bounds.min_ms < vectorised.INT64_MIN or bounds.max_ms > vectorised.INT64_MAX:
        raise CorruptRecords(f"times of records are beyond 64 bits: {bounds}")
    return _of_header(bounds, header)


def walk_deltas(
    payload: Buffer, record_count: int, keys: KeyFilterBuilder | None = None
) -> TimestampBounds:
    """Smallest and largest timestamp delta of `record_count` records, stepping over the rest.

    Raises CorruptRecords if the records do not fill `payload` exactly.
    """
    records = payload if isinstance(payload, bytes) else bytes(payload)
    smallest, largest = 2**63, -(2**63)
    for _, end, after, delta in step_records(records, record_count):
        smallest = min(smallest, delta)
        largest = max(largest, delta)
        if keys is not None and keys.is_complete:
            _add_key(records, after, end, keys)
    return TimestampBounds(smallest, largest)


def _add_key(records: bytes, position: int, end: int, keys: KeyFilterBuilder) -> None:
    """Adds the key of the record whose offset delta is at `position`; unreadable: gives up."""
    # Nearly always a length below 64: one byte, read without a call.
    while position < end and records[position] >= 0x80:
        position += 1
    position += 1
    if position < end and records[position] < 0x80:
        byte = records[position]
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        try:
            length, position = read_varint(records, position, end)
        except CorruptRecords:
            keys.abandon()
            return
    if length < -1 or length > end - position:
        keys.abandon()
    elif length >= 0:
        keys.add(records[position : position + length])
