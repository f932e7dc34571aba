"""From manifests to splits: which bytes of which segments a query has to read. Pure.

    partition   [log start ........................................ archive end)
    bounds              [start offset ................ end offset)                options
    limits                  offset and timestamp ranges                           pushed filters
    segments    |----|----|----|----|----|----|----|----|----|----|               manifest
    planned               |####|####|....|####|####|                  `.`: no time in range
    splits                [ split 0 ][split 1 ][ split 2 ]            at most split_bytes each

A split is what one Spark task reads: slices of consecutive segments of one partition. A segment
larger than a split is cut by position; a slice owns the chunks (of the segment's statistics) that
begin inside it, so that slices meet exactly whatever the cut.

Planning is deterministic: the same manifests and options give the same splits, in offset order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strandline.spark_lake.options import SPLIT_BYTES_MIN, AtOffset, Bound, Edge
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import Offset, Position, TopicPartition
from strandline.storage.records.columns import RowLimits
from strandline.storage.remote.manifest import Manifest, PageRef, SegmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """[start_offset, end_offset) of one partition; empty if they are equal."""

    start_offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSlice:
    """The chunks of a segment that begin in [start_position, end_position)."""

    entry: SegmentEntry
    start_position: Position
    end_position: Position

    @property
    def is_whole(self) -> bool:
        return self.start_position == 0 and self.end_position == self.entry.size_bytes

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What one task reads; rows outside `limits` are left out by the task."""

    index: int
    topic_partition: TopicPartition
    slices: tuple[SegmentSlice, ...]
    limits: RowLimits

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionScan:
    """One selected partition, ready to be planned.

    `pages` holds the entries of those sealed pages that `wanted_pages` named.
    """

    manifest: Manifest
    offsets: OffsetRange
    limits: RowLimits
    pages: Mapping[str, Sequence[SegmentEntry]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """The splits, and how much of the selected topics they are."""

    splits: tuple[Split, ...]
    partition_count: int
    segments_planned: int
    segments_total: int
    bytes_planned: int
    bytes_total: int

    def __str__(self) -> str:
        return (
            f"{self.segments_planned} of {self.segments_total} segments,"
            f" {readable_size(self.bytes_planned)} of {readable_size(self.bytes_total)},"
            f" in {len(self.splits)} splits over {self.partition_count} partitions"
        )


def plan(
    scans: Iterable[PartitionScan],
    *,
    partition_count: int,
    totals: Iterable[Manifest],
    split_bytes: int,
    splits_min: int = 1,
) -> ScanPlan:
    """Prunes and cuts. `totals` are the manifests that "of how many" refers to."""
    selected = [(scan, tuple(_selected_entries(scan))) for scan in scans]
    bytes_planned = sum(entry.size_bytes for _, entries in selected for entry in entries)
    if splits_min > 1:
        split_bytes = max(SPLIT_BYTES_MIN, min(split_bytes, bytes_planned // splits_min))
    splits: list[Split] = []
    for scan, entries in selected:
        for slices in _pack(entries, split_bytes):
            splits.append(
                Split(
                    index=len(splits),
                    topic_partition=scan.manifest.topic_id_partition.topic_partition,
                    slices=slices,
                    limits=_limits_within(scan),
                )
            )
    manifests = list(totals)
    return ScanPlan(
        splits=tuple(splits),
        partition_count=partition_count,
        segments_planned=sum(len(entries) for _, entries in selected),
        segments_total=sum(manifest.segment_count for manifest in manifests),
        bytes_planned=bytes_planned,
        bytes_total=sum(manifest.size_bytes for manifest in manifests),
    )


# --- bounds -----------------------------------------------------------------------------------


def archived_range(manifest: Manifest) -> OffsetRange:
    """What can be read: from the log start to where the archive ends."""
    start = max(manifest.log_start_offset, manifest.first_offset)
    return OffsetRange(start_offset=start, end_offset=max(start, manifest.end_offset))


def explicit_offset(
    bound: Bound, manifest: Manifest | None, *, option: str, partition: TopicPartition, strict: bool
) -> Offset | None:
    """The offset that a bound without a timestamp means; None for one with.

    A partition without a manifest has the range [0, 0). With `strict` (failOnDataLoss) an offset
    outside the archive is refused: rows that were asked for would be missing. Else it is moved.
    """
    available = archived_range(manifest) if manifest else OffsetRange(start_offset=0, end_offset=0)
    if bound is Edge.EARLIEST:
        return available.start_offset
    if bound is Edge.LATEST:
        return available.end_offset
    if not isinstance(bound, AtOffset):
        return None
    if strict and not available.start_offset <= bound.offset <= available.end_offset:
        raise InvalidConfig(
            f"option {option} asks for offset {bound.offset} of {partition.topic} partition"
            f" {partition.partition}, the archive has {available.start_offset} to"
            f" {available.end_offset}; what is newer is still with the broker, what is older was"
            " deleted; failOnDataLoss=false reads what there is"
        )
    return min(max(bound.offset, available.start_offset), available.end_offset)


# --- pruning ----------------------------------------------------------------------------------


def wanted_pages(manifest: Manifest, offsets: OffsetRange, limits: RowLimits) -> list[PageRef]:
    """The sealed pages that may hold wanted entries; the others are never fetched."""
    return [page for page in manifest.pages if _is_wanted(page, offsets, limits)]


def _selected_entries(scan: PartitionScan) -> Iterator[SegmentEntry]:
    for page in wanted_pages(scan.manifest, scan.offsets, scan.limits):
        for entry in scan.pages[page.key]:
            if _is_wanted(entry, scan.offsets, scan.limits):
                yield entry
    for entry in scan.manifest.segments:
        if _is_wanted(entry, scan.offsets, scan.limits):
            yield entry


def _is_wanted(part: PageRef | SegmentEntry, offsets: OffsetRange, limits: RowLimits) -> bool:
    start_offset = max(offsets.start_offset, limits.start_offset, part.base_offset)
    start_ms = max(limits.start_timestamp_ms, part.min_timestamp_ms)
    return (
        start_offset < min(offsets.end_offset, limits.end_offset, part.end_offset)
        and start_ms < limits.end_timestamp_ms
        and start_ms <= part.max_timestamp_ms
    )


def _limits_within(scan: PartitionScan) -> RowLimits:
    return RowLimits(
        start_offset=max(scan.offsets.start_offset, scan.limits.start_offset),
        end_offset=min(scan.offsets.end_offset, scan.limits.end_offset),
        start_timestamp_ms=scan.limits.start_timestamp_ms,
        end_timestamp_ms=scan.limits.end_timestamp_ms,
    )


# --- cutting ----------------------------------------------------------------------------------


def _pack(entries: Sequence[SegmentEntry], split_bytes: int) -> Iterator[tuple[SegmentSlice, ...]]:
    """Slices gathered up to `split_bytes`; a single slice is never larger than that."""
    gathered: list[SegmentSlice] = []
    gathered_bytes = 0
    for entry in entries:
        for piece in _cut(entry, split_bytes):
            if gathered and gathered_bytes + piece.size_bytes > split_bytes:
                yield tuple(gathered)
                gathered, gathered_bytes = [], 0
            gathered.append(piece)
            gathered_bytes += piece.size_bytes
    if gathered:
        yield tuple(gathered)


def _cut(entry: SegmentEntry, split_bytes: int) -> Iterator[SegmentSlice]:
    """Equal slices, so that no split is a small rest."""
    count = -(-entry.size_bytes // split_bytes)
    for number in range(count):
        yield SegmentSlice(
            entry=entry,
            start_position=entry.size_bytes * number // count,
            end_position=entry.size_bytes * (number + 1) // count,
        )


def readable_size(size_bytes: int) -> str:
    """`1536` is `1.5 KiB`."""
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
