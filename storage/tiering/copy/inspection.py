"""Checks a closed segment in one pass and collects the facts that the archive stores about it.

    for each batch   header -> CRC-32C -> decompress -> bounds of the record timestamps
    for each ~1 MiB  position, first offset, records, timestamp bounds      (a chunk: for pruning)
    for the file     CRC-32C, records, batches, leader epochs, bounds       (the manifest entry)
                     its keys                                               (a filter, for pruning)

The smallest timestamp needs the records themselves: a batch header carries its *first* record's
timestamp and the largest one, and records of one batch need not be in order. So compressed batches
are decompressed, which is why this runs in a process of its own (`inspector`).

A segment that fails here is damaged on this disk and must not be archived.

Compaction leaves batches without records, and gaps, at the end of a segment too. The caller checks
the size of such a segment; without records it has no timestamps.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from strandline.storage.errors import CorruptRecords, DiskError
from strandline.storage.model import (
    EpochStart,
    Offset,
    Position,
)
from strandline.storage.records.batch.batch import Batch, BatchHeader
from strandline.storage.records.columns.key_filter import KeyFilter, KeyFilterBuilder
from strandline.storage.system import crc32c
from strandline.storage.tiering.copy.segment_walk import (
    NO_BOUNDS,
    AdaptiveWalk,
    TimestampBounds,
    Walk,
)

# The lake skips a chunk whose timestamps do not fit: small enough to skip well, large enough that
# the statistics of a 1 GiB segment stay around 100 KB.
CHUNK_BYTES = 1024 * 1024
# A segment of less than 256 MiB has as many chunks as one of that size: a small one, or one that
# was merged from small ones, holds as much time as a large one, and little of it is asked for.
CHUNKS_WANTED = 256
CHUNK_BYTES_MIN = 64 * 1024


class Offsets(Enum):
    """The offsets of a segment: all of its range, or those that compaction left."""

    EVERY = "every one, up to the end"
    SOME = "what compaction left"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFacts:
    """A run of whole batches of about `chunk_bytes`; `position` is that of its first batch."""

    position: int
    base_offset: Offset
    record_count: int
    bounds: TimestampBounds
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """Facts about a whole, undamaged segment."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    crc32c: int
    record_count: int
    batch_count: int
    control_batch_count: int
    transactional_batch_count: int
    # Batches with a correct CRC whose records cannot be read: a producer sent them so.
    unreadable_batch_count: int
    bounds: TimestampBounds
    leader_epochs: tuple[EpochStart, ...]
    chunks: tuple[ChunkFacts, ...]
    # None if a key could not be read, or there are too many for a useful filter.
    key_filter: KeyFilter | None
    # Size of the segment before recompression; None: it was not rewritten.
    recompressed_from_bytes: int | None = None


def inspect_segment(
    path: Path,
    *,
    position: Position = 0,
    base_offset: Offset,
    end_offset: Offset,
    walk: Walk | None = None,
    offsets: Offsets = Offsets.EVERY,
) -> SegmentFacts:
    """Reads the segment file once, from `position` to its end; `walk` None takes a new one.

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
        memoryview(mapped)[position:],
        base_offset=base_offset,
        end_offset=end_offset,
        walk=walk or AdaptiveWalk(),
        offsets=offsets,
    )


def chunk_bytes(segment_bytes: int) -> int:
    """Returns the approximate chunk size of a segment."""
    return min(max(segment_bytes // CHUNKS_WANTED, CHUNK_BYTES_MIN), CHUNK_BYTES)


def inspect_records(
    view: memoryview,
    *,
    base_offset: Offset,
    end_offset: Offset,
    walk: Walk,
    offsets: Offsets = Offsets.EVERY,
) -> SegmentFacts:
    """As `inspect_segment`, for records in memory. Raises CorruptRecords."""
    survey = _Survey(
        view=view,
        next_offset=base_offset,
        offsets=offsets,
        chunk_bytes=chunk_bytes(len(view)),
    )
    position = 0
    for batch, found in walk(view, survey.keys):
        survey.add(batch, found)
        position = batch.end_position
    if position != len(view):
        raise CorruptRecords(f"{len(view) - position} bytes after the last whole batch")
    is_complete = survey.next_offset == end_offset or (
        offsets is Offsets.SOME and survey.next_offset < end_offset
    )
    if not is_complete or not survey.batch_count:
        raise CorruptRecords(f"records end at {survey.next_offset}, not at {end_offset}")
    survey.close_chunk(len(view))
    return SegmentFacts(
        base_offset=base_offset,
        end_offset=end_offset,
        size_bytes=len(view),
        crc32c=crc32c.crc32c(view),
        record_count=survey.record_count,
        batch_count=survey.batch_count,
        control_batch_count=survey.control_batch_count,
        transactional_batch_count=survey.transactional_batch_count,
        unreadable_batch_count=survey.unreadable_batch_count,
        bounds=survey.bounds or NO_BOUNDS,
        leader_epochs=tuple(survey.leader_epochs),
        chunks=tuple(survey.chunks),
        key_filter=survey.keys.finish(),
    )


@dataclass(slots=True, kw_only=True)
class _Survey:
    """Running totals of one pass."""

    view: memoryview
    next_offset: Offset
    offsets: Offsets
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

    def add(self, batch: Batch, found: TimestampBounds | None) -> None:
        position, header = batch
        self._check(header)
        if position - self.chunk_position >= self.chunk_bytes:
            self.close_chunk(position)
        if not self.chunk_is_open:
            self.chunk_is_open = True
            self.chunk_position, self.chunk_base_offset = position, header.base_offset
        bounds = found if header.record_count else None
        if bounds is None and header.record_count:
            self.unreadable_batch_count += 1
            times = (header.base_timestamp_ms, header.max_timestamp_ms)
            bounds = TimestampBounds(min(times), max(times))
        if bounds is not None:
            self.chunk_bounds = bounds.union(self.chunk_bounds)
            self.bounds = bounds.union(self.bounds)
        self.chunk_record_count += header.record_count
        self.record_count += header.record_count
        self.batch_count += 1
        self.control_batch_count += header.is_control
        self.transactional_batch_count += header.is_transactional
        # Old messages have no epoch: they get the one of the batch before, or 0.
        last_epoch = self.leader_epochs[-1].epoch if self.leader_epochs else 0
        epoch = last_epoch if header.leader_epoch < 0 else header.leader_epoch
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

    def close_chunk(self, end_position: int) -> None:
        if not self.chunk_is_open:
            return
        self.chunk_is_open = False
        self.chunks.append(
            ChunkFacts(
                position=self.chunk_position,
                base_offset=self.chunk_base_offset,
                record_count=self.chunk_record_count,
                bounds=self.chunk_bounds or NO_BOUNDS,
                crc32c=crc32c.crc32c(self.view[self.chunk_position : end_position]),
            )
        )
        self.chunk_bounds = None
        self.chunk_record_count = 0
