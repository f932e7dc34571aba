"""Pruning of segments by their `.meta`: chunks by statistics, whole segments by the key filter.

    nothing to gain             the whole segment, and no request
    keys wanted, none in it     nothing
    limits inside the segment   the chunks whose offsets and times overlap them

For a query of few segments the planner prunes, so that the plan knows its chunks and tasks get the
right size; for many segments, each task prunes its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from strandline.spark_lake.archive.objects import ObjectReader, in_parallel
from strandline.spark_lake.archive.segments import SegmentMeta, chunk_ranges, whole_segment
from strandline.spark_lake.plan.planner import SelectedSegments, Skip, Skipped
from strandline.spark_lake.plan.splits import ChunkRange, OpenPiece, SegmentSlice
from strandline.storage.records.columns.columns import RowLimits
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.segment.meta import ChunkStatistics

# Below this, reading the statistics costs about as much as the bytes they could save.
PRUNED_SEGMENT_BYTES_MIN = 1024 * 1024
# One request each, sixteen at a time: a plan takes at most half a second longer for them.
PLANNED_METAS_MAX = 256

# The keys that a row may have; None if any will do.
Keys: TypeAlias = Collection[bytes] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The wanted ranges of a segment or slice; `skip` is the reason if there are none."""

    ranges: tuple[ChunkRange, ...]
    chunks_skipped: int = 0
    skip: Skip | None = None


def covers(limits: RowLimits, entry: SegmentEntry) -> bool:
    """Returns whether every row of the segment is wanted."""
    return (
        limits.start_offset <= entry.base_offset
        and limits.end_offset >= entry.end_offset
        and limits.start_timestamp_ms <= entry.min_timestamp_ms
        and limits.last_timestamp_ms >= entry.max_timestamp_ms
    )


def is_worth_it(entry: SegmentEntry, limits: RowLimits, keys: Keys) -> bool:
    """Returns whether reading the `.meta` may save more than it costs."""
    if isinstance(entry, OpenPiece):
        return False
    return entry.size_bytes > PRUNED_SEGMENT_BYTES_MIN and (
        keys is not None or not covers(limits, entry)
    )


def prune(meta: SegmentMeta, piece: SegmentSlice, limits: RowLimits, keys: Keys = None) -> Pruned:
    """Returns the wanted chunks of a slice. Raises ObjectCorrupt, or another TierError."""
    entry = piece.entry
    if piece.ranges is not None:
        wanted = tuple(part for part in piece.ranges if _has_offset(part, limits))
        return Pruned(ranges=wanted, chunks_skipped=len(piece.ranges) - len(wanted))
    if piece.is_whole and not is_worth_it(entry, limits, keys):
        return Pruned(ranges=(whole_segment(entry),))
    if keys is not None and _lacks(meta, keys):
        return Pruned(ranges=(), skip=Skip.KEYS)
    if piece.is_whole and covers(limits, entry):
        return Pruned(ranges=(whole_segment(entry),))
    owned = owned_chunks(meta, piece)
    wanted = tuple(part for part, chunk in owned if may_have(part, chunk, limits))
    return Pruned(
        ranges=wanted,
        chunks_skipped=len(owned) - len(wanted),
        skip=None if wanted else Skip.CHUNKS,
    )


def owned_chunks(
    meta: SegmentMeta, piece: SegmentSlice
) -> list[tuple[ChunkRange, ChunkStatistics]]:
    """Returns the chunks of a slice with their statistics, in order. Raises what `prune` raises."""
    statistics = meta.statistics()
    return [
        (part, chunk)
        for part, chunk in zip(
            chunk_ranges(piece.entry, statistics), statistics.chunks, strict=True
        )
        if piece.start_position <= chunk.position < piece.end_position
    ]


def may_have(part: ChunkRange, chunk: ChunkStatistics, limits: RowLimits) -> bool:
    """Returns whether a chunk may have rows within the limits."""
    return (
        _has_offset(part, limits)
        and chunk.max_timestamp_ms >= limits.start_timestamp_ms
        and chunk.min_timestamp_ms <= limits.last_timestamp_ms
    )


def _lacks(meta: SegmentMeta, keys: Collection[bytes]) -> bool:
    """Returns whether the key filter proves that the segment has none of the keys."""
    known = meta.key_filter()
    return known is not None and not any(known.may_have(key) for key in keys)


def prune_selections(
    selections: Sequence[SelectedSegments], reader: ObjectReader, keys: Keys = None
) -> tuple[SelectedSegments, ...]:
    """The selections with chunks where those are worth a request; unchanged if that is too many.

    Raises what `prune` raises.
    """
    asked = [
        (segment, one.limits)
        for one in selections
        for segment in one.segments
        if is_worth_it(segment.entry, one.limits, keys)
    ]
    if not 0 < len(asked) <= PLANNED_METAS_MAX:
        return tuple(selections)

    def pruned(wanted: tuple[SegmentSlice, RowLimits]) -> Pruned:
        segment, limits = wanted
        return prune(SegmentMeta(reader, segment.entry), segment, limits, keys)

    names = [segment.entry.log_key for segment, _ in asked]
    found = dict(zip(names, in_parallel(pruned, asked), strict=True))
    return tuple(_with_pruned(one, found) for one in selections)


def _with_pruned(selection: SelectedSegments, found: dict[str, Pruned]) -> SelectedSegments:
    skipped = dict(selection.skipped)
    left: list[SegmentSlice] = []
    for segment in selection.segments:
        known = found.get(segment.entry.log_key)
        if known is None:
            left.append(segment)
            continue
        after = replace(segment, ranges=known.ranges)
        if known.ranges:
            left.append(after)
        reason = known.skip or Skip.CHUNKS
        if after.size_bytes < segment.size_bytes:
            skipped[reason] = skipped.get(reason, Skipped()).plus(
                Skipped(
                    segment_count=0 if known.ranges else 1,
                    size_bytes=segment.size_bytes - after.size_bytes,
                    chunk_count=known.chunks_skipped,
                )
            )
    return replace(selection, segments=tuple(left), skipped=skipped)


def _has_offset(part: ChunkRange, limits: RowLimits) -> bool:
    return part.end_offset > limits.start_offset and part.base_offset < limits.end_offset
