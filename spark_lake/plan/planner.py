"""Planner of a query from manifests: segments to read, and reasons to skip the others. Pure.

    partition   [log start ........................................ archive end)
    bounds              [start offset ................ end offset)                options
    limits                  offset and timestamp ranges                           pushed filters
    segments    |----|----|----|----|----|----|----|----|----|----|               manifest
    selected              |####|####|....|####|####|                  `.`: no time in range
    pruned                |  ##|####|    |    |##  |                  statistics, key filter
    splits                [ split 0 ]         [ 1  ]                  see `splits`

Selection uses manifests only. If few segments are left, `pruning` reads their `.meta` before they
are cut; else each task prunes its own.

Planning is deterministic: the same manifests and options give the same splits, in offset order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from strandline.spark_lake.options.bound_options import AtOffset, Bound, Edge
from strandline.spark_lake.options.options import SPLIT_BYTES_MIN
from strandline.spark_lake.plan.splits import (
    WINDOW_BYTES,
    SegmentSlice,
    Split,
    SplitSizes,
    cut,
    suited_bytes,
)
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import Offset, TopicPartition
from strandline.storage.plurals import counted, human_bytes
from strandline.storage.records.columns.columns import RowLimits
from strandline.storage.remote.manifest.entries import PageRef, SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest

# Chunk size of STATISTICS; estimates the chunks of segments whose statistics were not read.
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """[start_offset, end_offset) of one partition; empty if they are equal."""

    start_offset: Offset
    end_offset: Offset

    @property
    def offset_count(self) -> int:
        return self.end_offset - self.start_offset

    def overlaps(self, part: PageRef | SegmentEntry) -> bool:
        return self.start_offset < part.end_offset and part.base_offset < self.end_offset


class Skip(Enum):
    """The reason why bytes of the selected topics are skipped; the values are shown to users."""

    PARTITION = "a filter on topic or partition"
    BOUNDS = "outside the starting and ending offsets"
    OFFSETS = "a filter on offset"
    TIMES = "a filter on timestamp"
    KEYS = "a filter on key: the segment does not have it"
    CHUNKS = "chunks without a wanted offset or timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Segments left out and their bytes; of segments that are read, only chunks and bytes."""

    segment_count: int = 0
    size_bytes: int = 0
    # Chunks skipped by statistics, without those of segments whose `.meta` was not read.
    chunk_count: int = 0

    def plus(self, other: Skipped) -> Skipped:
        return Skipped(
            segment_count=self.segment_count + other.segment_count,
            size_bytes=self.size_bytes + other.size_bytes,
            chunk_count=self.chunk_count + other.chunk_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedSegments:
    """The selected segments of one partition, and the skipped ones by reason."""

    manifest: Manifest
    limits: RowLimits
    segments: tuple[SegmentSlice, ...]
    skipped: Mapping[Skip, Skipped]

    @property
    def topic_partition(self) -> TopicPartition:
        return self.manifest.topic_id_partition.topic_partition

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """The part of a partition that is read: segments, chunks and bytes, of how many."""

    topic_partition: TopicPartition
    segments_planned: int
    segments_total: int
    chunks_planned: int
    chunks_total: int
    bytes_planned: int
    bytes_total: int
    # Number of GETs to read all its segments.
    windows_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """The splits of a query, and how much of the selected topics they read."""

    splits: tuple[Split, ...]
    partitions: tuple[PartitionPlan, ...]
    skipped: Mapping[Skip, Skipped]
    partition_count: int
    # Selected partitions without archived segments.
    empty: tuple[TopicPartition, ...] = ()

    @property
    def pieces_planned(self) -> int:
        """Pieces of open segments among the segments."""
        pieces = (piece for split in self.splits for piece in split.slices)
        return len({piece.entry.log_key for piece in pieces if piece.is_open})

    @property
    def segments_planned(self) -> int:
        return sum(one.segments_planned for one in self.partitions)

    @property
    def segments_total(self) -> int:
        return sum(one.segments_total for one in self.partitions)

    @property
    def chunks_planned(self) -> int:
        return sum(one.chunks_planned for one in self.partitions)

    @property
    def chunks_total(self) -> int:
        return sum(one.chunks_total for one in self.partitions)

    @property
    def bytes_planned(self) -> int:
        return sum(one.bytes_planned for one in self.partitions)

    @property
    def bytes_total(self) -> int:
        return sum(one.bytes_total for one in self.partitions)

    def __str__(self) -> str:
        return (
            f"{self.segments_planned:,} of {counted(self.segments_total, 'segment')},"
            f" {self.chunks_planned:,} of {counted(self.chunks_total, 'chunk')},"
            f" {human_bytes(self.bytes_planned)} of {human_bytes(self.bytes_total)},"
            f" in {counted(len(self.splits), 'split')}"
            f" over {counted(self.partition_count, 'partition')}"
        )


def assemble(
    selections: Sequence[SelectedSegments],
    *,
    totals: Iterable[Manifest],
    sizes: SplitSizes,
    splits_min: int = 1,
) -> ScanPlan:
    """Cuts the selected segments into splits. `totals` are all manifests of the selected topics."""
    bytes_planned = sum(one.size_bytes for one in selections)
    if splits_min > 1:
        split_bytes = max(SPLIT_BYTES_MIN, min(sizes.split_bytes, bytes_planned // splits_min))
        sizes = replace(sizes, split_bytes=split_bytes)
    if sizes.task_slots is not None:
        wanted = [one.size_bytes for one in selections if one.segments]
        sizes = replace(sizes, split_bytes=suited_bytes(wanted, sizes.task_slots))
    splits = _cut_all(selections, sizes)
    if len(splits) < splits_min:
        # Too few bytes for so many tasks, but perhaps enough records.
        records_max = max(1, sum(_offset_count(one) for one in selections) // splits_min)
        if sizes.records_max is None or records_max < sizes.records_max:
            splits = _cut_all(selections, replace(sizes, records_max=records_max))
    by_partition = {one.topic_partition: one for one in selections}
    plans: list[PartitionPlan] = []
    skipped: dict[Skip, Skipped] = {}
    for manifest in totals:
        selection = by_partition.get(manifest.topic_id_partition.topic_partition)
        plans.append(_partition_plan(manifest, selection))
        if selection is not None:
            why: Mapping[Skip, Skipped] = selection.skipped
        else:
            why = {
                Skip.PARTITION: Skipped(
                    segment_count=manifest.segment_count, size_bytes=manifest.size_bytes
                )
            }
        for reason, left_out in why.items():
            skipped[reason] = skipped.get(reason, Skipped()).plus(left_out)
    return ScanPlan(
        splits=tuple(splits),
        partitions=tuple(plans),
        skipped=skipped,
        partition_count=len(selections),
    )


def _cut_all(selections: Sequence[SelectedSegments], sizes: SplitSizes) -> list[Split]:
    splits: list[Split] = []
    for one in selections:
        splits += cut(one.segments, one.topic_partition, one.limits, sizes, first_index=len(splits))
    return splits


def _offset_count(selection: SelectedSegments) -> int:
    limits = selection.limits
    return sum(
        min(one.entry.end_offset, limits.end_offset)
        - max(one.entry.base_offset, limits.start_offset)
        for one in selection.segments
    )


def _partition_plan(manifest: Manifest, selection: SelectedSegments | None) -> PartitionPlan:
    segments = selection.segments if selection is not None else ()
    chunks_planned = sum(
        _estimated_chunks(one.size_bytes) if one.ranges is None else len(one.ranges)
        for one in segments
    )
    chunks_total = sum(
        max(page.segment_count, _estimated_chunks(page.size_bytes)) for page in manifest.pages
    ) + sum(_estimated_chunks(entry.size_bytes) for entry in manifest.segments)
    return PartitionPlan(
        topic_partition=manifest.topic_id_partition.topic_partition,
        segments_planned=len(segments),
        segments_total=manifest.segment_count,
        chunks_planned=chunks_planned,
        # The estimate by size is too low if the statistics have smaller chunks.
        chunks_total=max(chunks_total, chunks_planned),
        bytes_planned=sum(one.size_bytes for one in segments),
        bytes_total=manifest.size_bytes,
        windows_total=sum(
            page.segment_count + page.size_bytes // WINDOW_BYTES for page in manifest.pages
        )
        + sum(-(-entry.size_bytes // WINDOW_BYTES) for entry in manifest.segments),
    )


def _estimated_chunks(size_bytes: int) -> int:
    return -(-size_bytes // CHUNK_BYTES)


# --- bounds -----------------------------------------------------------------------------------


def archived_range(manifest: Manifest | None) -> OffsetRange:
    """The readable offsets: from the log start to the archive's end; [0, 0) without a manifest."""
    if manifest is None:
        return OffsetRange(start_offset=0, end_offset=0)
    start = max(manifest.log_start_offset, manifest.first_offset)
    return OffsetRange(start_offset=start, end_offset=max(start, manifest.end_offset))


def explicit_offset(
    bound: Bound, manifest: Manifest | None, *, option: str, partition: TopicPartition, strict: bool
) -> Offset | None:
    """Returns the offset of a bound; None for a timestamp.

    With `strict` (failOnDataLoss) an offset outside the archive is refused, because requested rows
    would be missing. Else it is moved.
    """
    available = archived_range(manifest)
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


# --- selecting --------------------------------------------------------------------------------


def wanted_pages(manifest: Manifest, offsets: OffsetRange, limits: RowLimits) -> list[PageRef]:
    """Returns the sealed pages that may hold wanted entries; the others are never fetched."""
    return [page for page in manifest.pages if _reason(page, offsets, limits) is None]


def select(
    manifest: Manifest,
    offsets: OffsetRange,
    limits: RowLimits,
    pages: Mapping[str, Sequence[SegmentEntry]],
) -> SelectedSegments:
    """Returns the segments that may hold wanted rows, by the manifest.

    `pages` holds the entries of those sealed pages that `wanted_pages` named.
    """
    segments: list[SegmentSlice] = []
    segment_counts: Counter[Skip] = Counter()
    sizes_bytes: Counter[Skip] = Counter()
    entries: list[SegmentEntry] = []
    for page in manifest.pages:
        reason = _reason(page, offsets, limits)
        if reason is None:
            entries += pages[page.key]
        else:
            segment_counts[reason] += page.segment_count
            sizes_bytes[reason] += page.size_bytes
    for entry in (*entries, *manifest.segments):
        reason = _reason(entry, offsets, limits)
        if reason is None:
            segments.append(SegmentSlice.whole(entry))
        else:
            segment_counts[reason] += 1
            sizes_bytes[reason] += entry.size_bytes
    return SelectedSegments(
        manifest=manifest,
        limits=replace(
            limits,
            start_offset=max(offsets.start_offset, limits.start_offset),
            end_offset=min(offsets.end_offset, limits.end_offset),
        ),
        segments=tuple(segments),
        skipped={
            reason: Skipped(segment_count=count, size_bytes=sizes_bytes[reason])
            for reason, count in segment_counts.items()
        },
    )


def _reason(part: PageRef | SegmentEntry, offsets: OffsetRange, limits: RowLimits) -> Skip | None:
    """Returns the reason to skip the segment; None if it may hold wanted rows."""
    start_offset = max(offsets.start_offset, part.base_offset)
    end_offset = min(offsets.end_offset, part.end_offset)
    if start_offset >= end_offset:
        return Skip.BOUNDS
    if max(start_offset, limits.start_offset) >= min(end_offset, limits.end_offset):
        return Skip.OFFSETS
    start_ms = max(limits.start_timestamp_ms, part.min_timestamp_ms)
    if start_ms > limits.last_timestamp_ms or start_ms > part.max_timestamp_ms:
        return Skip.TIMES
    return None
