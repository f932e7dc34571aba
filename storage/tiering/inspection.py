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

Compaction leaves batches without records, and gaps, at the end of a segment too. Such a segment is
held to its size by who knows it, and has no time of its own where it has no records.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from strandline.storage import crc32c
from strandline.storage.errors import CorruptRecords, DiskError, UnsupportedCodec
from strandline.storage.model import (
    NO_TIMESTAMP,
    Buffer,
    EpochStart,
    Offset,
    TimestampMs,
    TimestampType,
)
from strandline.storage.records import batch as batch_format
from strandline.storage.records import vectorised
from strandline.storage.records.any_batch import check_crc, iter_batches, iter_records
from strandline.storage.records.batch import MAGIC, BatchHeader
from strandline.storage.records.compression import decompress
from strandline.storage.records.key_filter import KeyFilter, KeyFilterBuilder
from strandline.storage.records.survey import survey
from strandline.storage.values import dataclass

# The lake skips a chunk whose timestamps do not fit: small enough to skip well, large enough that
# the statistics of a 1 GiB segment stay around 100 KB.
CHUNK_BYTES = 1024 * 1024
# A segment of less than 256 MiB has as many chunks as one of that size: a small one, or one that
# was merged from small ones, holds as much time as a large one, and little of it is asked for.
CHUNKS_WANTED = 256
CHUNK_BYTES_MIN = 64 * 1024
# Kafka's default of index.interval.bytes.
INDEX_INTERVAL_BYTES = 4096
OFFSET_INDEX_ENTRY = struct.Struct(">II")  # relative last offset of a batch, its position
TIME_INDEX_ENTRY = struct.Struct(">qI")  # highest timestamp so far, relative last offset
# A 64-bit zigzag number has at most ten groups of seven bits.
VARINT_BYTES_MAX = 10
# The compiled kernel walks ten times as fast as Python, but loading numba takes 0.4 s and 100 MB
# (seconds, when nothing of it is in its cache yet). After so many records, which take as long to
# walk plainly, it pays.
PLAIN_RECORDS_MAX = 200_000


class Offsets(Enum):
    """Which offsets of its range a segment holds."""

    EVERY = "every one, up to the end"
    SOME = "what compaction left"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFacts:
    """A run of whole batches of about `chunk_bytes`; `position` is that of its first batch."""

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
    # Bytes of the segment that these are the rewritten batches of; None: nothing was rewritten.
    recompressed_from_bytes: int | None = None


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
    for batch in iter_batches(view, position):
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


def inspect_segment(
    path: Path,
    *,
    base_offset: Offset,
    end_offset: Offset,
    walk: Walk = plain_walk,
    offsets: Offsets = Offsets.EVERY,
) -> SegmentFacts:
    """Reads the segment file once, from its first byte to its last.

    Raises CorruptRecords if a batch fails its CRC or the offsets are not [base_offset, end_offset)
    (with SOME: not in there), DiskError if the file cannot be read.
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
        walk=walk,
        offsets=offsets,
    )


def chunk_bytes(segment_bytes: int) -> int:
    """Of how many bytes the chunks of a segment are, about."""
    return min(max(segment_bytes // CHUNKS_WANTED, CHUNK_BYTES_MIN), CHUNK_BYTES)


def inspect_records(
    view: memoryview,
    *,
    base_offset: Offset,
    end_offset: Offset,
    walk: Walk,
    offsets: Offsets = Offsets.EVERY,
) -> SegmentFacts:
    """The same for records in memory. Raises CorruptRecords."""
    found = _Survey(
        next_offset=base_offset,
        offsets=offsets,
        indexes=_Indexes(base_offset=base_offset),
        chunk_bytes=chunk_bytes(len(view)),
    )
    position = 0
    for batch in walk(view, found.keys):
        found.add(batch)
        position = batch.end_position
    if position != len(view):
        raise CorruptRecords(f"{len(view) - position} bytes after the last whole batch")
    is_complete = found.next_offset == end_offset or (
        offsets is Offsets.SOME and found.next_offset < end_offset
    )
    if not is_complete or not found.batch_count:
        raise CorruptRecords(f"records end at {found.next_offset}, not at {end_offset}")
    found.close_chunk()
    found.indexes.close()
    return SegmentFacts(
        base_offset=base_offset,
        end_offset=end_offset,
        size_bytes=len(view),
        crc32c=crc32c.crc32c(view),
        record_count=found.record_count,
        batch_count=found.batch_count,
        control_batch_count=found.control_batch_count,
        transactional_batch_count=found.transactional_batch_count,
        unreadable_batch_count=found.unreadable_batch_count,
        bounds=found.bounds or NO_BOUNDS,
        leader_epochs=tuple(found.leader_epochs),
        chunks=tuple(found.chunks),
        offset_index=bytes(found.indexes.offset_index),
        time_index=bytes(found.indexes.time_index),
        key_filter=found.keys.finish(),
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

    def add(self, position: int, header: BatchHeader, bounds: TimestampBounds | None) -> None:
        relative_offset = header.last_offset - self.base_offset
        if relative_offset >= 2**32:
            raise CorruptRecords(f"offset {header.last_offset} is too far from the segment's base")
        if bounds is not None and bounds.max_ms > self.highest_ms:
            self.highest_ms, self.highest_relative_offset = bounds.max_ms, relative_offset
        if self.unindexed_bytes > INDEX_INTERVAL_BYTES:
            self.offset_index += OFFSET_INDEX_ENTRY.pack(relative_offset, position)
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
    offsets: Offsets
    indexes: _Indexes
    keys: KeyFilterBuilder = field(default_factory=KeyFilterBuilder)
    record_count: int = 0
    batch_count: int = 0
    control_batch_count: int = 0
    transactional_batch_count: int = 0
    unreadable_batch_count: int = 0
    bounds: TimestampBounds | None = None
    leader_epochs: list[EpochStart] = field(default_factory=list)
    chunks: list[ChunkFacts] = field(default_factory=list)
    chunk_bytes: int
    chunk_position: int = 0
    chunk_base_offset: Offset = -1
    chunk_is_open: bool = False
    chunk_record_count: int = 0
    chunk_bounds: TimestampBounds | None = None

    def add(self, batch: WalkedBatch) -> None:
        header, position = batch.header, batch.position
        self._check(header)
        if position - self.chunk_position >= self.chunk_bytes:
            self.close_chunk()
        if not self.chunk_is_open:
            self.chunk_is_open = True
            self.chunk_position, self.chunk_base_offset = position, header.base_offset
        bounds = batch.bounds if header.record_count else None
        if bounds is None and header.record_count:
            self.unreadable_batch_count += 1
            times = (header.base_timestamp_ms, header.max_timestamp_ms)
            bounds = TimestampBounds(min(times), max(times))
        if bounds is not None:
            self.chunk_bounds = bounds.union(self.chunk_bounds)
            self.bounds = bounds.union(self.bounds)
        self.indexes.add(position, header, bounds)
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

    def _check(self, header: BatchHeader) -> None:
        if header.base_offset < self.next_offset:
            raise CorruptRecords(
                f"batch at offset {header.base_offset} follows offset {self.next_offset - 1}"
            )
        fewest = 1 if self.offsets is Offsets.EVERY else 0
        if header.record_count < fewest or header.last_offset_delta < header.record_count - 1:
            raise CorruptRecords(
                f"batch at offset {header.base_offset} has {header.record_count} records over "
                f"{header.last_offset_delta + 1} offsets"
            )

    def close_chunk(self) -> None:
        if not self.chunk_is_open:
            return
        self.chunk_is_open = False
        self.chunks.append(
            ChunkFacts(
                position=self.chunk_position,
                base_offset=self.chunk_base_offset,
                record_count=self.chunk_record_count,
                bounds=self.chunk_bounds or NO_BOUNDS,
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
    for _ in range(record_count):
        # Nearly all numbers here have one or two bytes: those are read without a call.
        if position + 1 < end and data[position] < 0x80:
            byte, position = data[position], position + 1
            length = (byte >> 1) ^ -(byte & 1)
        else:
            length, position = _varint(data, position, end)
        record_end = position + length
        if length < 0 or record_end > end:
            raise CorruptRecords(f"record of {length} bytes exceeds its batch")
        after = position + 2
        if after <= record_end and data[position + 1] < 0x80:
            byte = data[position + 1]
            delta = (byte >> 1) ^ -(byte & 1)
        else:
            delta, after = _varint(data, position + 1, record_end)
        smallest = min(smallest, delta)
        largest = max(largest, delta)
        if keys is not None and keys.is_complete:
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
