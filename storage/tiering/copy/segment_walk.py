"""The walk over the batches of a segment: each is checked, and the times of its records are found.

    plain_walk      in Python                          a tenth of the speed, and ready at once
    AdaptiveWalk    in Python, then compiled loops     once so many records came that these pay

Keys go to a filter on the way. Both give the same; a test holds them together. Batches of old
formats, and whatever the compiled loops leave alone, are walked in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from strandline.storage.errors import CorruptRecords, UnsupportedCodec
from strandline.storage.model import NO_TIMESTAMP, Buffer, TimestampMs, TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.any_batch import check_crc, iter_records, walk
from strandline.storage.records.batch.batch import MAGIC, BatchHeader
from strandline.storage.records.batch.key_walk import read_varint
from strandline.storage.records.columns import vectorised
from strandline.storage.records.columns.key_filter import KeyFilterBuilder
from strandline.storage.records.columns.survey import survey
from strandline.storage.records.compression import decompress

# The compiled kernel walks ten times as fast as Python, but loading numba takes 0.4 s and 100 MB
# (seconds, when nothing of it is in its cache yet). After so many records, which take as long to
# walk plainly, it pays.
PLAIN_RECORDS_MAX = 200_000


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


# Of records that are not there: as Kafka has it for what has no time.
NO_BOUNDS = TimestampBounds(NO_TIMESTAMP, NO_TIMESTAMP)


class WalkedBatch(NamedTuple):
    """A batch with a true CRC; `bounds` is None if its records cannot be read."""

    position: int
    header: BatchHeader
    bounds: TimestampBounds | None

    @property
    def end_position(self) -> int:
        return self.position + self.header.size_bytes


# (a segment, what its keys are added to) -> its batches. Raises CorruptRecords at one that is not
# what its header says.
Walk = Callable[[memoryview, KeyFilterBuilder], Iterator[WalkedBatch]]


def plain_walk(
    view: memoryview, keys: KeyFilterBuilder, position: int = 0
) -> Iterator[WalkedBatch]:
    """The walk in plain Python."""
    for batch in walk(view, position):
        encoded = view[batch.position : batch.end_position]
        check_crc(encoded, batch.header)
        if not keys.is_plain and batch.header.record_count:
            # Compiled loops began the filter, and only they could go on with it.
            keys.give_up()
        bounds = _read(walk_bounds, encoded, batch.header, keys)
        yield WalkedBatch(batch.position, batch.header, bounds)


class AdaptiveWalk:
    """Walks plainly until so many records came that the kernel pays; then uses the kernel."""

    def __init__(self, *, plain_records_max: int = PLAIN_RECORDS_MAX) -> None:
        self._plain_records_left = plain_records_max

    def __call__(self, view: memoryview, keys: KeyFilterBuilder) -> Iterator[WalkedBatch]:
        position = 0
        can_compile = vectorised.available()
        while True:
            if can_compile and self._plain_records_left <= 0:
                for walked in _compiled_walk(view, keys, position):
                    yield walked
                    position = walked.end_position
            # One batch that the kernel leaves alone; or all, as long as plain walking is cheaper.
            for walked in plain_walk(view, keys, position):
                yield walked
                position = walked.end_position
                self._plain_records_left -= walked.header.record_count
                if can_compile and self._plain_records_left <= 0:
                    break
            else:
                return


def _compiled_walk(
    view: memoryview, keys: KeyFilterBuilder, position: int
) -> Iterator[WalkedBatch]:
    """The walk up to the first batch that the kernel leaves alone."""
    for batch in survey(view, position, keys):
        header = batch.header
        encoded = view[batch.position : batch.position + header.size_bytes]
        check_crc(encoded, header)
        bounds = TimestampBounds(batch.min_ms, batch.max_ms) if batch.is_read else None
        if batch.is_compressed:
            bounds = _read(_compiled_bounds, encoded, header, keys)
        yield WalkedBatch(batch.position, header, bounds)


def _compiled_bounds(
    encoded: memoryview, header: BatchHeader, keys: KeyFilterBuilder
) -> TimestampBounds:
    bounds = vectorised.record_bounds(encoded, header, keys=keys)
    return TimestampBounds(bounds.min_timestamp_ms, bounds.max_timestamp_ms)


def _read(
    bounds_of: Callable[[memoryview, BatchHeader, KeyFilterBuilder], TimestampBounds],
    encoded: memoryview,
    header: BatchHeader,
    keys: KeyFilterBuilder,
) -> TimestampBounds | None:
    """Bounds of the records; None, and no filter, if they cannot be read.

    An append reads no record, so a producer can have such a batch stored. It is archived as it
    is: one client's nonsense must not keep the whole partition on the local disk.
    """
    try:
        # The keys of a control batch are those of its markers, which nobody asks for; that they
        # are in the filter does no harm.
        return bounds_of(encoded, header, keys)
    except (CorruptRecords, UnsupportedCodec):
        keys.give_up()
        return None


def walk_bounds(
    encoded: memoryview, header: BatchHeader, keys: KeyFilterBuilder | None = None
) -> TimestampBounds:
    """Timestamp bounds of the batch that fills `encoded`, in plain Python; its keys go to `keys`.

    Raises CorruptRecords or UnsupportedCodec.
    """
    if header.magic < MAGIC:
        return _walk_old_bounds(encoded, header, keys)
    payload = decompress(header.codec, encoded[batch_format.HEADER_BYTES :])
    deltas = walk_deltas(payload, header.record_count, keys)
    if not header.record_count:
        return NO_BOUNDS
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return TimestampBounds(header.max_timestamp_ms, header.max_timestamp_ms)
    base_ms = header.base_timestamp_ms
    bounds = TimestampBounds(base_ms + deltas.min_ms, base_ms + deltas.max_ms)
    if bounds.min_ms < vectorised.INT64_MIN or bounds.max_ms > vectorised.INT64_MAX:
        raise CorruptRecords(f"times of records are beyond 64 bits: {bounds}")
    return bounds


def _walk_old_bounds(
    encoded: memoryview, header: BatchHeader, keys: KeyFilterBuilder | None
) -> TimestampBounds:
    times: list[TimestampMs] = []
    for record in iter_records(encoded, header):
        times.append(record.timestamp_ms)
        if keys is not None and keys.is_complete and record.key is not None:
            keys.add(bytes(record.key))
    return TimestampBounds(min(times), max(times))


def walk_deltas(
    payload: Buffer, record_count: int, keys: KeyFilterBuilder | None = None
) -> TimestampBounds:
    """Smallest and largest timestamp delta of `record_count` records, stepping over the rest.

    Raises CorruptRecords if the records do not fill `payload` exactly.
    """
    # Indexing bytes is a quarter faster than indexing a memoryview, and this loop is all indexing.
    records = payload if isinstance(payload, bytes) else bytes(payload)
    position, end = 0, len(records)
    smallest, largest = 2**63, -(2**63)
    for _ in range(record_count):
        # Nearly all numbers here have one or two bytes: those are read without a call.
        if position + 1 < end and records[position] < 0x80:
            byte, position = records[position], position + 1
            length = (byte >> 1) ^ -(byte & 1)
        else:
            length, position = read_varint(records, position, end)
        record_end = position + length
        if length < 0 or record_end > end:
            raise CorruptRecords(f"record of {length} bytes exceeds its batch")
        after = position + 2
        if after <= record_end and records[position + 1] < 0x80:
            byte = records[position + 1]
            delta = (byte >> 1) ^ -(byte & 1)
        else:
            delta, after = read_varint(records, position + 1, record_end)
        smallest = min(smallest, delta)
        largest = max(largest, delta)
        if keys is not None and keys.is_complete:
            _add_key(records, after, record_end, keys)
        position = record_end
    if position != end:
        raise CorruptRecords(f"{end - position} bytes after the last record of a batch")
    return TimestampBounds(smallest, largest)


def _add_key(records: bytes, position: int, end: int, keys: KeyFilterBuilder) -> None:
    """The key of the record whose offset delta lies at `position`; no filter if there is none."""
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
            keys.give_up()
            return
    if length < -1 or length > end - position:
        keys.give_up()
    elif length >= 0:
        keys.add(records[position : position + length])
