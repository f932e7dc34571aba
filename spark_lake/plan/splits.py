"""Cutting of selected segments into splits, one per Spark task. Pure and deterministic.

    segments  |--------|--------|--|--|--|-----------------------------|     selected, in order
    splits    [ 0 ][ 1 ][ 2 ][ 3 ][  4   ][ 5 ][ 6 ][ 7 ][ 8 ][ 9 ][ 10]     by bytes
    splits    [      0     ][    1        ][      2      ][     3      ]       evenly, for 2 slots
    splits    [   0  ][   1  ][   2  ][   3  ][   4  ][   5  ][   6  ]       by records

By bytes: slices of consecutive segments are gathered up to `split_bytes`; a larger segment is cut
by position, and a slice owns the chunks (of the segment's statistics) that begin inside it. So
slices meet exactly whatever the cut. A segment that the planner has pruned is cut between chunks.
Pieces of the open segment are never cut.

Evenly, if the number of task slots is known and the options set no size: each task costs a core
some 25 ms besides its rows, and other cores are idle while the last tasks run. So splits are few,
and those of a partition have nearly the same size (`suited_bytes`).

By records (`maxRecordsPerPartition`): each split gets that many *offsets*, and so at most that many
records, through its limits. A chunk on the border is then read by both its splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from strandline.storage.model import AbortedTransaction, Offset, Position, TopicPartition
from strandline.storage.records.columns.columns import RowLimits
from strandline.storage.remote.manifest.entries import SegmentEntry

# One GET. Large enough that S3's first-byte latency is small beside it, and two of them (one read,
# one decoded) are what a task holds of compressed bytes.
WINDOW_BYTES = 8 * 1024 * 1024


# Limits of `suited_bytes`. Repeating a task costs a second or so; a task of fewer bytes than the
# minimum costs as much as its rows.
SUITED_BYTES_MAX = 256 * 1024 * 1024
SUITED_BYTES_MIN = 32 * 1024 * 1024
# Tasks per slot at least. A single partition is cut exactly, and a second round evens out slower
# cores; several partitions are each cut by themselves.
_ROUNDS_OF_ONE = 2
_ROUNDS_OF_MANY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPiece(SegmentEntry):
    """A piece of the open segment, or the start of one, as an entry of a plan.

    It has no `.meta`; see `open_segment`.
    """

    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkChecksum:
    """The CRC-32C of a chunk's bytes, which end at this position of the log."""

    end_position: Position
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRange:
    """Consecutive wanted chunks: positions, offsets, and the number of records they must hold."""

    start_position: Position
    end_position: Position
    base_offset: Offset
    end_offset: Offset
    record_count: int
    # Of its chunks, in order; empty for a whole segment, or if the `.meta` has none.
    checksums: tuple[ChunkChecksum, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSlice:
    """The chunks of a segment that begin in [start_position, end_position).

    `ranges` are the wanted chunks, if the planner has read the statistics.
    """

    entry: SegmentEntry
    start_position: Position
    end_position: Position
    ranges: tuple[ChunkRange, ...] | None = None

    @classmethod
    def whole(
        cls, entry: SegmentEntry, ranges: tuple[ChunkRange, ...] | None = None
    ) -> SegmentSlice:
        """Returns the whole segment, or its wanted chunks if they are known."""
        end_position = entry.size_bytes
        return cls(entry=entry, start_position=0, end_position=end_position, ranges=ranges)

    @property
    def is_open(self) -> bool:
        """Whether this is a piece of the open segment."""
        return isinstance(self.entry, OpenPiece)

    @property
    def is_whole(self) -> bool:
        return self.start_position == 0 and self.end_position == self.entry.size_bytes

    @property
    def size_bytes(self) -> int:
        if self.ranges is not None:
            return sum(part.size_bytes for part in self.ranges)
        return self.end_position - self.start_position


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The part of a plan that one task reads; the task drops rows outside `limits`."""

    index: int
    topic_partition: TopicPartition
    slices: tuple[SegmentSlice, ...]
    limits: RowLimits

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSizes:
    """Size limits of splits."""

    split_bytes: int
    records_max: int | None = None
    # Number of concurrent tasks, if splits are to suit them.
    task_slots: int | None = None


def suited_bytes(sizes_bytes: Sequence[int], task_slots: int) -> int:
    """The split size for partitions of these sizes with which all slots end at about one time."""
    total_bytes = sum(sizes_bytes)
    rounds = _ROUNDS_OF_ONE if len(sizes_bytes) < 2 else _ROUNDS_OF_MANY
    rounds = max(rounds, -(-total_bytes // (task_slots * SUITED_BYTES_MAX)))
    return max(SUITED_BYTES_MIN, -(-total_bytes // (task_slots * rounds)))


def cut(
    segments: Sequence[SegmentSlice],
    partition: TopicPartition,
    limits: RowLimits,
    sizes: SplitSizes,
    *,
    first_index: int,
) -> Iterator[Split]:
    """Cuts the whole `segments` of one partition into splits, numbered from `first_index`."""
    cuts: Iterator[tuple[tuple[SegmentSlice, ...], RowLimits]]
    if sizes.records_max is None and sizes.task_slots is not None:
        cuts = ((slices, limits) for slices in _evenly(segments, sizes.split_bytes))
    elif sizes.records_max is None:
        cuts = ((slices, limits) for slices in _by_bytes(segments, sizes.split_bytes))
    else:
        cuts = _by_records(segments, limits, sizes.records_max, sizes.split_bytes)
    for index, (slices, own_limits) in enumerate(cuts, first_index):
        yield Split(index=index, topic_partition=partition, slices=slices, limits=own_limits)


# --- by bytes ---------------------------------------------------------------------------------


def _by_bytes(
    segments: Sequence[SegmentSlice], split_bytes: int
) -> Iterator[tuple[SegmentSlice, ...]]:
    """Slices gathered up to `split_bytes`; a single slice is larger only if one chunk is."""
    gathered: list[SegmentSlice] = []
    gathered_bytes = 0
    for segment in segments:
        for piece in _slices(segment, split_bytes):
            if gathered and gathered_bytes + piece.size_bytes > split_bytes:
                yield tuple(gathered)
                gathered, gathered_bytes = [], 0
            gathered.append(piece)
            gathered_bytes += piece.size_bytes
    if gathered:
        yield tuple(gathered)


def _evenly(
    segments: Sequence[SegmentSlice], split_bytes: int
) -> Iterator[tuple[SegmentSlice, ...]]:
    """Splits of about `split_bytes`, with an eighth to a quarter more or less at most."""
    fine_bytes = max(1, split_bytes // 8)
    slices: list[SegmentSlice] = []
    for one in segments:
        # A task that reads a part needs the statistics.
        is_small = one.size_bytes <= 2 * fine_bytes
        slices += (one,) if is_small else _slices(one, fine_bytes)
    total_bytes = sum(piece.size_bytes for piece in slices)
    count = max(1, -(-total_bytes // split_bytes))
    gathered: list[SegmentSlice] = []
    number = position = 0
    for piece in slices:
        # The split that gets most of the slice.
        belongs = (2 * position + piece.size_bytes) * count // max(1, 2 * total_bytes)
        if gathered and belongs > number:
            yield tuple(gathered)
            gathered = []
        if gathered and gathered[-1].entry is piece.entry:
            gathered[-1] = _joined(gathered[-1], piece)
        else:
            gathered.append(piece)
        number = belongs
        position += piece.size_bytes
    if gathered:
        yield tuple(gathered)


def _joined(left: SegmentSlice, right: SegmentSlice) -> SegmentSlice:
    """Two adjacent slices of one segment as one."""
    ranges = None
    if left.ranges is not None and right.ranges is not None:
        ranges = left.ranges + right.ranges
    return replace(left, end_position=right.end_position, ranges=ranges)


def _slices(segment: SegmentSlice, split_bytes: int) -> Iterator[SegmentSlice]:
    if segment.ranges is not None:
        return _between_chunks(segment.entry, segment.ranges, split_bytes)
    # A piece has no statistics to cut it by.
    if segment.size_bytes <= split_bytes or segment.is_open:
        return iter((segment,))
    return _by_position(segment.entry, split_bytes)


def _by_position(entry: SegmentEntry, split_bytes: int) -> Iterator[SegmentSlice]:
    """Equal slices, so that no split is a small remainder."""
    count = -(-entry.size_bytes // split_bytes)
    for number in range(count):
        yield SegmentSlice(
            entry=entry,
            start_position=entry.size_bytes * number // count,
            end_position=entry.size_bytes * (number + 1) // count,
        )


def _between_chunks(
    entry: SegmentEntry, ranges: Sequence[ChunkRange], split_bytes: int
) -> Iterator[SegmentSlice]:
    gathered: list[ChunkRange] = []
    for part in ranges:
        size_bytes = sum(one.size_bytes for one in gathered)
        if gathered and size_bytes + part.size_bytes > split_bytes:
            yield _slice_of(entry, gathered)
            gathered = []
        gathered.append(part)
    if gathered:
        yield _slice_of(entry, gathered)


def _slice_of(entry: SegmentEntry, ranges: Sequence[ChunkRange]) -> SegmentSlice:
    return SegmentSlice(
        entry=entry,
        start_position=ranges[0].start_position,
        end_position=ranges[-1].end_position,
        ranges=tuple(ranges),
    )


# --- by records -------------------------------------------------------------------------------


def _by_records(
    segments: Sequence[SegmentSlice], limits: RowLimits, records_max: int, split_bytes: int
) -> Iterator[tuple[tuple[SegmentSlice, ...], RowLimits]]:
    gathered: list[SegmentSlice] = []
    offsets_left, bytes_left = records_max, float(split_bytes)
    start = end = limits.start_offset
    for segment in segments:
        entry = segment.entry
        at = max(entry.base_offset, limits.start_offset)
        last = min(entry.end_offset, limits.end_offset)
        bytes_per_offset = segment.size_bytes / max(1, last - at)
        while at < last:
            if gathered and (offsets_left < 1 or bytes_left < bytes_per_offset):
                yield tuple(gathered), replace(limits, start_offset=start, end_offset=end)
                gathered = []
                offsets_left, bytes_left = records_max, float(split_bytes)
            start = start if gathered else at
            step = min(offsets_left, last - at, max(1, int(bytes_left / max(bytes_per_offset, 1))))
            gathered.append(segment)
            at += step
            end = at
            offsets_left -= step
            bytes_left -= step * bytes_per_offset
    if gathered:
        yield tuple(gathered), replace(limits, start_offset=start, end_offset=end)
