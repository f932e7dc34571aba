"""One pass over a sealed segment: is it whole, and what does the archive have to know about it?

    for each batch   header -> CRC-32C -> decompress -> bounds of the record timestamps
    for each ~1 MiB  position, first offset, records, timestamp bounds      (a chunk: for pruning)
    for the file     CRC-32C, records, batches, leader epochs, bounds       (the manifest entry)
                     which keys it has                                      (a filter, for pruning)
    every 4 KiB      an entry of each sparse index, in Kafka's formats      (the `.meta` object)

The indexes of the archive are made here, from the records that were checked in the same breath,
and not copied from the local files: those are caches that may be stale or damaged, the archive's
must be right for years.

The smallest timestamp needs the records themselves: a batch header carries its *first* record's
timestamp and the largest one, and records of one batch need not be in order. So compressed batches
are decompressed, which is why this runs in a process of its own (`inspector`).

A segment that fails here is damaged on this disk. It must not be archived as if it were good.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import crc32c

from strandline.storage.errors import CorruptRecords, DiskError, UnsupportedCodec
from strandline.storage.model import Buffer, EpochStart, Offset, TimestampMs, TimestampType
from strandline.storage.records import batch as batch_format
from strandline.storage.records import vectorised
from strandline.storage.records.any_batch import check_crc, iter_batches, iter_records
from strandline.storage.records.batch import MAGIC, BatchHeader, PositionedBatch
from strandline.storage.records.compression import decompress
from strandline.storage.records.key_filter import KeyFilter, KeyFilterBuilder

# The lake skips a chunk whose timestamps do not fit: small enough to skip well, large enough that
# the statistics of a 1 GiB segment stay around 100 KB.
CHUNK_BYTES = 1024 * 1024
# Kafka's default of index.interval.bytes.
INDEX_INTERVAL_BYTES = 4096
OFFSET_INDEX_ENTRY = struct.Struct(">II")  # relative last offset of a batch, its position
TIME_INDEX_ENTRY = struct.Struct(">qI")  # highest timestamp so far, relative last offset
# A 64-bit zigzag number has at most ten groups of seven bits.
VARINT_BYTES_MAX = 10
# The compiled kernel walks six times as fast as Python, but loading numba takes up to seconds and
# 100 MB. After this many records (two to three seconds of plain walking) it pays.
PLAIN_RECORDS_MAX = 2_000_000


class TimestampBounds(NamedTuple):
    """Smallest and largest record timestamp."""

    min_ms: TimestampMs
    max_ms: TimestampMs

    def union(self, other: TimestampBounds | None) -> TimestampBounds:
        if other is None:
            return self
        return TimestampBounds(min(self.min_ms, other.min_ms), max(self.max_ms, other.max_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFacts:
    """A run of whole batches of about CHUNK_BYTES; `position` is that of its first batch."""

    position: int
    base_offset: Offset
    record_count: int
    bounds: TimestampBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What one pass found; the pass raises if anything is wrong."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    crc32c: int
    record_count: int
    batch_count: int
    control_batch_count: int
    transactional_batch_count: int
    # Batches with a true CRC whose records cannot be read: a producer sent them so.
    unreadable_batch_count: int
    bounds: TimestampBounds
    leader_epochs: tuple[EpochStart, ...]
    chunks: tuple[ChunkFacts, ...]
    offset_index: bytes
    time_index: bytes
    # None if some key could not be read, or there are too many for a filter that helps.
    key_filter: KeyFilter | None


# (one encoded batch, its header) -> bounds of its record timestamps; raises CorruptRecords.
# The keys of its records are added to the builder.
BoundsOfBatch = Callable[[memoryview, BatchHeader, KeyFilterBuilder], TimestampBounds]


class AdaptiveBounds:
    """Walks plainly until so many records came that the kernel pays; then uses the kernel."""

    def __init__(self, *, plain_records_max: int = PLAIN_RECORDS_MAX) -> None:
        self._plain_records_left = plain_records_max

    def __call__(
        self, encoded: memoryview, header: BatchHeader, keys: KeyFilterBuilder
    ) -> TimestampBounds:
        if header.magic < MAGIC:
            if not keys.is_plain:
                keys.give_up()
            return walk_bounds(encoded, header, keys)
        if self._plain_records_left > 0 or not vectorised.available():
            self._plain_records_left -= header.record_count
            # A filter that compiled loops began goes on with them, a whole segment at most.
            if keys.is_plain:
                return walk_bounds(encoded, header, keys)
        bounds = vectorised.record_bounds(encoded, header, keys=keys)
        return TimestampBounds(bounds.min_timestamp_ms, bounds.max_timestamp_ms)


def inspect_segment(
    path: Path,
    *,
    base_offset: Offset,
    end_offset: Offset,
    bounds_of_batch: BoundsOfBatch | None = None,
) -> SegmentFacts:
    """Reads the segment file once, from its first byte to its last.

    Raises CorruptRecords if a batch fails its CRC or the offsets are not [base_offset, end_offset),
    DiskError if the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            size_bytes = file.seek(0, 2)
            if not size_bytes:
                raise CorruptRecords(f"{path} is empty")
            mapped = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DiskError(f"cannot read {path}: {error.strerror}") from error
    # The map is released with the last view on it; closing it here would fail while a decoder
    # still holds a slice.
    return inspect_records(
        memoryview(mapped),
        base_offset=base_offset,
        end_offset=end_offset,
        bounds_of_batch=bounds_of_batch or walk_bounds,
    )


def inspect_records(
    view: memoryview,
    *,
    base_offset: Offset,
    end_offset: Offset,
    bounds_of_batch: BoundsOfBatch,
) -> SegmentFacts:
    """The same for records in memory. Raises CorruptRecords."""
    survey = _Survey(
        next_offset=base_offset,
        bounds_of_batch=bounds_of_batch,
        indexes=_Indexes(base_offset=base_offset),
    )
    position = 0
    for batch in iter_batches(view):
        survey.add(view, batch)
        position = batch.position + batch.header.size_bytes
    if position != len(view):
        raise CorruptRecords(f"{len(view) - position} bytes after the last whole batch")
    if survey.next_offset != end_offset or survey.bounds is None:
        raise CorruptRecords(f"records end at {survey.next_offset}, not at {end_offset}")
    survey.close_chunk()
    survey.indexes.close()
    return SegmentFacts(
        base_offset=base_offset,
        end_offset=end_offset,
        size_bytes=len(view),
        crc32c=survey.crc,
        record_count=survey.record_count,
        batch_count=survey.batch_count,
        control_batch_count=survey.control_batch_count,
        transactional_batch_count=survey.transactional_batch_count,
        unreadable_batch_count=survey.unreadable_batch_count,
        bounds=survey.bounds,
        leader_epochs=tuple(survey.leader_epochs),
        chunks=tuple(survey.chunks),
        offset_index=bytes(survey.indexes.offset_index),
        time_index=bytes(survey.indexes.time_index),
        key_filter=survey.keys.finish(),
    )


@dataclass(slots=True, kw_only=True)
class _Indexes:
    """Both sparse indexes while they grow; entries fall where Kafka would put them."""

    base_offset: Offset
    offset_index: bytearray = field(default_factory=bytearray)
    time_index: bytearray = field(default_factory=bytearray)
    unindexed_bytes: int = 0
    highest_ms: TimestampMs = -1
    highest_relative_offset: int = 0
    indexed_ms: TimestampMs = -1

    def add(self, batch: PositionedBatch, bounds: TimestampBounds) -> None:
        header = batch.header
        relative_offset = header.last_offset - self.base_offset
        if relative_offset >= 2**32:
            raise CorruptRecords(f"offset {header.last_offset} is too far from the segment's base")
        if bounds.max_ms > self.highest_ms:
            self.highest_ms, self.highest_relative_offset = bounds.max_ms, relative_offset
        if self.unindexed_bytes > INDEX_INTERVAL_BYTES:
            self.offset_index += OFFSET_INDEX_ENTRY.pack(relative_offset, batch.position)
            self.add_time_entry()
            self.unindexed_bytes = 0
        self.unindexed_bytes += header.size_bytes

    def add_time_entry(self) -> None:
        if self.highest_ms > self.indexed_ms:
            self.time_index += TIME_INDEX_ENTRY.pack(self.highest_ms, self.highest_relative_offset)
            self.indexed_ms = self.highest_ms

    def close(self) -> None:
        """The last time entry tells the segment's highest timestamp."""
        self.add_time_entry()


@dataclass(slots=True, kw_only=True)
class _Survey:
    """What the pass knows so far."""

    next_offset: Offset
    bounds_of_batch: BoundsOfBatch
    indexes: _Indexes
    keys: KeyFilterBuilder = field(default_factory=KeyFilterBuilder)
    crc: int = 0
    record_count: int = 0
    batch_count: int = 0
    control_batch_count: int = 0
    transactional_batch_count: int = 0
    unreadable_batch_count: int = 0
    bounds: TimestampBounds | None = None
    leader_epochs: list[EpochStart] = field(default_factory=list)
    chunks: list[ChunkFacts] = field(default_factory=list)
    chunk_position: int = 0
    chunk_base_offset: Offset = -1
    chunk_record_count: int = 0
    chunk_bounds: TimestampBounds | None = None

    def add(self, view: memoryview, batch: PositionedBatch) -> None:
        header, position = batch.header, batch.position
        encoded = view[position : position + header.size_bytes]
        self._check(header, encoded)
        if position - self.chunk_position >= CHUNK_BYTES:
            self.close_chunk()
        if self.chunk_bounds is None:
            self.chunk_position, self.chunk_base_offset = position, header.base_offset
        bounds = self._bounds_of(encoded, header)
        self.chunk_bounds = bounds.union(self.chunk_bounds)
        self.bounds = bounds.union(self.bounds)
        self.indexes.add(batch, bounds)
        self.chunk_record_count += header.record_count
        self.record_count += header.record_count
        self.batch_count += 1
        self.control_batch_count += header.is_control
        self.transactional_batch_count += header.is_transactional
        # Old messages know no epoch: they belong to the one before, or to the first there was.
        last_epoch = self.leader_epochs[-1].epoch if self.leader_epochs else 0
        epoch = header.leader_epoch if header.magic == MAGIC else last_epoch
        if not self.leader_epochs or last_epoch != epoch:
            self.leader_epochs.append(EpochStart(epoch, header.base_offset))
        self.next_offset = header.next_offset
        self.crc = crc32c.crc32c(encoded, self.crc)

    def _bounds_of(self, encoded: memoryview, header: BatchHeader) -> TimestampBounds:
        """Bounds of the records; of the header alone if the records cannot be read.

        An append reads no record, so a producer can have such a batch stored. It is archived as it
        is: one client's nonsense must not keep the whole partition on the local disk.
        """
        try:
            # The keys of a control batch are those of its markers, which nobody asks for; that
            # they are in the filter does no harm.
            return self.bounds_of_batch(encoded, header, self.keys)
        except (CorruptRecords, UnsupportedCodec):
            self.keys.give_up()
            self.unreadable_batch_count += 1
            times = (header.base_timestamp_ms, header.max_timestamp_ms)
            return TimestampBounds(min(times), max(times))

    def _check(self, header: BatchHeader, encoded: memoryview) -> None:
        check_crc(encoded, header)
        if header.base_offset < self.next_offset:
            raise CorruptRecords(
                f"batch at offset {header.base_offset} follows offset {self.next_offset - 1}"
            )
        if header.record_count < 1 or header.last_offset_delta < header.record_count - 1:
            raise CorruptRecords(
                f"batch at offset {header.base_offset} has {header.record_count} records over "
                f"{header.last_offset_delta + 1} offsets"
            )

    def close_chunk(self) -> None:
        if self.chunk_bounds is None:
            return
        self.chunks.append(
            ChunkFacts(
                position=self.chunk_position,
                base_offset=self.chunk_base_offset,
                record_count=self.chunk_record_count,
                bounds=self.chunk_bounds,
            )
        )
        self.chunk_bounds = None
        self.chunk_record_count = 0


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
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return TimestampBounds(header.max_timestamp_ms, header.max_timestamp_ms)
    base_ms = header.base_timestamp_ms
    return TimestampBounds(base_ms + deltas.min_ms, base_ms + deltas.max_ms)


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
    data = payload if isinstance(payload, bytes) else bytes(payload)
    position, end = 0, len(data)
    smallest, largest = 2**63, -(2**63)
    wants_keys = keys is not None and keys.is_complete
    for _ in range(record_count):
        length, position = _varint(data, position, end)
        record_end = position + length
        if length < 0 or record_end > end:
            raise CorruptRecords(f"record of {length} bytes exceeds its batch")
        delta, after = _varint(data, position + 1, record_end)
        smallest = min(smallest, delta)
        largest = max(largest, delta)
        if wants_keys:
            assert keys is not None
            _add_key(data, after, record_end, keys)
        position = record_end
    if position != end:
        raise CorruptRecords(f"{end - position} bytes after the last record of a batch")
    return TimestampBounds(smallest, largest)


def _add_key(data: bytes, position: int, end: int, keys: KeyFilterBuilder) -> None:
    """The key of the record whose offset delta lies at `position`; no filter if there is none."""
    # Nearly always a length below 64: one byte, read without a call.
    while position < end and data[position] >= 0x80:
        position += 1
    position += 1
    if position < end and data[position] < 0x80:
        byte = data[position]
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        try:
            length, position = _varint(data, position, end)
        except CorruptRecords:
            keys.give_up()
            return
    if length < -1 or length > end - position:
        keys.give_up()
    elif length >= 0:
        keys.add(data[position : position + length])


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint and the position after it."""
    result = shift = 0
    for _ in range(VARINT_BYTES_MAX):
        if position >= end:
            raise CorruptRecords("records end inside a varint")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
    raise CorruptRecords(f"varint longer than {VARINT_BYTES_MAX} bytes")
