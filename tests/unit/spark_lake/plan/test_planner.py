"""Planning: what is pruned, how it is cut, what it says about itself."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from strandline.spark_lake.options.bound_options import AtOffset, AtTimestamp, Edge
from strandline.spark_lake.plan.planner import (
    OffsetRange,
    ScanPlan,
    Skip,
    Skipped,
    archived_range,
    assemble,
    explicit_offset,
    select,
    wanted_pages,
)
from strandline.spark_lake.plan.splits import ChunkRange, SegmentSlice, SplitSizes, cut
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import EpochStart, TopicPartition
from strandline.storage.records.columns.columns import RowLimits
from strandline.storage.remote.keys import partition_folder
from strandline.storage.remote.manifest.entries import PageRef, SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.page import page_ref
from tests.unit.spark_lake.archive_builder import ArchiveBuilder

MIB = 1 << 20
TOPIC_ID = uuid.UUID(int=7)


def entry(base: int, *, size_bytes: int = 10 * MIB, records: int = 100) -> SegmentEntry:
    """Offsets [base, base + records), one millisecond each."""
    return SegmentEntry(
        base_offset=base,
        end_offset=base + records,
        leader_epochs=(EpochStart(0, 0),),
        size_bytes=size_bytes,
        record_count=records,
        min_timestamp_ms=base,
        max_timestamp_ms=base + records - 1,
        log_key=f"{base}.log",
        meta_key=f"{base}.meta",
        log_crc32c=0,
        meta_size_bytes=100,
        meta_crc32c=0,
        has_transactions=False,
        uploaded_ms=0,
    )


def manifest_of(entries: Sequence[SegmentEntry], *, partition: int = 0) -> Manifest:
    return Manifest(topic="t", topic_id=TOPIC_ID, partition=partition, segments=tuple(entries))


def paged(entries: Sequence[SegmentEntry]) -> tuple[Manifest, dict[str, Sequence[SegmentEntry]]]:
    """The same with each two entries but the last two in a page."""
    pages: list[PageRef] = []
    contents: dict[str, Sequence[SegmentEntry]] = {}
    for at in range(0, len(entries) - 2, 2):
        key = f"page-{at}"
        pages.append(page_ref(key, entries[at : at + 2], crc32c=0))
        contents[key] = entries[at : at + 2]
    return replace(manifest_of(entries[-2:]), pages=tuple(pages)), contents


def planned(
    manifest: Manifest,
    *,
    offsets: OffsetRange | None = None,
    limits: RowLimits | None = None,
    pages: dict[str, Sequence[SegmentEntry]] | None = None,
    split_bytes: int = 64 * MIB,
    splits_min: int = 1,
    records_max: int | None = None,
) -> ScanPlan:
    offsets = offsets or archived_range(manifest)
    return assemble(
        [select(manifest, offsets, limits or RowLimits(), pages or {})],
        totals=[manifest],
        sizes=SplitSizes(split_bytes=split_bytes, records_max=records_max),
        splits_min=splits_min,
    )


def suited(slots: int, *manifests: Manifest) -> ScanPlan:
    """All of the partitions, in splits for so many tasks at once."""
    selected = [select(one, archived_range(one), RowLimits(), {}) for one in manifests]
    sizes = SplitSizes(split_bytes=64 * MIB, task_slots=slots)
    return assemble(selected, totals=manifests, sizes=sizes)


def bases(made: ScanPlan) -> list[list[int]]:
    return [[piece.entry.base_offset for piece in split.slices] for split in made.splits]


TEN = [entry(base) for base in range(0, 1000, 100)]


def test_small_segments_share_a_split_and_come_in_order() -> None:
    made = planned(manifest_of(TEN), split_bytes=35 * MIB)
    assert bases(made) == [[0, 100, 200], [300, 400, 500], [600, 700, 800], [900]]
    assert [split.index for split in made.splits] == [0, 1, 2, 3]
    assert all(split.size_bytes <= 35 * MIB for split in made.splits)
    assert all(piece.is_whole for split in made.splits for piece in split.slices)


def test_a_large_segment_is_cut_into_equal_slices_that_meet() -> None:
    made = planned(manifest_of([entry(0, size_bytes=100 * MIB + 1)]), split_bytes=32 * MIB)
    slices = [piece for split in made.splits for piece in split.slices]
    assert len(slices) == 4
    assert slices[0].start_position == 0
    assert slices[-1].end_position == 100 * MIB + 1
    for before, after in pairwise(slices):
        assert before.end_position == after.start_position
    assert max(piece.size_bytes for piece in slices) <= 32 * MIB
    assert not slices[0].is_whole


@pytest.mark.parametrize("segment_mib", [5, 16, 700, 1024])
@pytest.mark.parametrize("total_mib", [40, 660, 700, 5000])
@pytest.mark.parametrize("slots", [2, 3, 64])
def test_splits_that_suit_their_slots_are_few_and_even(
    segment_mib: int, total_mib: int, slots: int
) -> None:
    counts = range(-(-total_mib // segment_mib))
    entries = [entry(100 * n, size_bytes=segment_mib * MIB) for n in counts]
    made = suited(slots, manifest_of(entries))
    sizes = [split.size_bytes for split in made.splits]
    pieces = [piece for split in made.splits for piece in split.slices]
    assert sum(sizes) == sum(one.size_bytes for one in entries)
    assert [piece.entry.base_offset for piece in pieces] == sorted(
        piece.entry.base_offset for piece in pieces
    )
    # A segment is one slice of a split, and what a split leaves of it begins the next one.
    for split in made.splits:
        assert len({piece.entry.base_offset for piece in split.slices}) == len(split.slices)
    for before, after in pairwise(pieces):
        assert before.end_position == (after.start_position or before.entry.size_bytes)
    mean_bytes = sum(sizes) / len(sizes)
    assert max(sizes) <= 1.3 * mean_bytes
    assert min(sizes) >= 0.7 * mean_bytes
    rounds = len(sizes) / slots
    assert mean_bytes <= 256 * MIB
    assert mean_bytes >= 16 * MIB
    if mean_bytes > 32 * MIB:
        assert rounds == max(2, -(-sum(sizes) // (slots * 256 * MIB)))


def test_a_few_bytes_are_one_split_however_many_slots_there_are() -> None:
    few = manifest_of([entry(base, size_bytes=3 * MIB) for base in range(0, 1000, 100)])
    assert len(suited(64, few).splits) == 1


def test_each_partition_is_cut_evenly_by_itself() -> None:
    """Three of one size on two slots: not three splits, of which the last would run alone."""
    segments = [entry(base, size_bytes=20 * MIB) for base in range(0, 1100, 100)]
    made = suited(2, *(manifest_of(segments, partition=number) for number in range(3)))
    sizes = [split.size_bytes // MIB for split in made.splits]
    assert sizes == [80, 60, 80] * 3


def test_a_small_partition_beside_large_ones_is_one_split() -> None:
    large = [entry(base, size_bytes=20 * MIB) for base in range(0, 1100, 100)]
    made = suited(2, manifest_of(large), manifest_of([entry(0, size_bytes=1)], partition=1))
    assert [split.size_bytes for split in made.splits if split.topic_partition.partition] == [1]
    assert sum(split.size_bytes for split in made.splits) == 220 * MIB + 1


@pytest.mark.parametrize("split_bytes", [MIB, 7 * MIB, 40 * MIB, 1000 * MIB])
@pytest.mark.parametrize("task_slots", [None, 2])
def test_of_pruned_segments_each_wanted_chunk_is_read_once_and_in_order(
    split_bytes: int, task_slots: int | None
) -> None:
    """The chunks are known, every other one is wanted."""
    pruned = [
        SegmentSlice.whole(one, tuple(chunk_of(one, number) for number in range(0, 10, 2)))
        for one in (entry(base, size_bytes=10 * MIB) for base in range(0, 1000, 100))
    ]
    sizes = SplitSizes(split_bytes=split_bytes, task_slots=task_slots)
    made = list(cut(pruned, TopicPartition("t", 0), RowLimits(), sizes, first_index=0))
    read = [
        (piece.entry.base_offset, part.base_offset)
        for split in made
        for piece in split.slices
        for part in piece.ranges or ()
    ]
    assert read == [(base, base + at) for base in range(0, 1000, 100) for at in range(0, 100, 20)]
    assert sum(split.size_bytes for split in made) == 50 * MIB


def chunk_of(one: SegmentEntry, number: int) -> ChunkRange:
    """One of ten chunks of a segment of 10 MiB and 100 records."""
    return ChunkRange(
        start_position=number * MIB,
        end_position=(number + 1) * MIB,
        base_offset=one.base_offset + 10 * number,
        end_offset=one.base_offset + 10 * number + 10,
        record_count=10,
    )


def test_what_was_asked_for_is_more_than_what_suits_the_slots(tmp_path: Path) -> None:
    """Of the options; see `Query`."""
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    empty = archive.manifest("t")
    folder = partition_folder(empty.topic_id_partition)
    twelve = [
        replace(one, log_key=folder + one.log_key, meta_key=folder + one.meta_key)
        for base in range(0, 1200, 100)
        for one in [entry(base, size_bytes=20 * MIB)]
    ]
    archive.save(replace(empty, segments=tuple(twelve)))

    def split_count(**options: int) -> int:
        query = make_query(archive.url, "t", options=options)
        query.task_slots = 3
        return len(query.plan(query.open()).splits)

    assert split_count() == 6
    assert split_count(splitBytes=20 * MIB) == 12
    assert split_count(minPartitions=11) == 12
    assert split_count(maxRecordsPerPartition=50) == 24


def test_more_splits_are_made_when_asked_for() -> None:
    assert len(planned(manifest_of(TEN)).splits) == 2
    assert len(planned(manifest_of(TEN), splits_min=20).splits) >= 20


def test_more_splits_are_made_of_a_few_bytes_too() -> None:
    """Bytes are not what makes a task long: what is done with a record may be."""
    small = manifest_of([entry(base, size_bytes=4000) for base in (0, 100)])
    within = OffsetRange(start_offset=10, end_offset=190)
    made = planned(small, splits_min=8, offsets=within)
    assert 8 <= len(made.splits) <= 10
    limits = [(split.limits.start_offset, split.limits.end_offset) for split in made.splits]
    assert (limits[0][0], limits[-1][1]) == (10, 190)
    assert all(before[1] == after[0] for before, after in pairwise(limits))
    # Not more than there are records, and no more records than are asked for in any case.
    assert len(planned(small, splits_min=1000).splits) == 200
    assert len(planned(small, splits_min=8, records_max=5).splits) == 40


def test_offsets_prune_segments() -> None:
    made = planned(manifest_of(TEN), offsets=OffsetRange(start_offset=150, end_offset=300))
    assert bases(made) == [[100, 200]]
    assert (made.splits[0].limits.start_offset, made.splits[0].limits.end_offset) == (150, 300)


def test_limits_prune_by_offset_and_time_together() -> None:
    limits = RowLimits(start_offset=250, start_timestamp_ms=410, last_timestamp_ms=599)
    assert bases(planned(manifest_of(TEN), limits=limits)) == [[400, 500]]


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "expected"),
    [(99, 100, [[0]]), (100, 101, [[100]]), (199, 201, [[100, 200]]), (1000, 2000, [])],
)
def test_time_limits_are_exact_at_segment_borders(
    start_ms: int, end_ms: int, expected: list[list[int]]
) -> None:
    limits = RowLimits(start_timestamp_ms=start_ms, last_timestamp_ms=end_ms - 1)
    assert bases(planned(manifest_of(TEN), limits=limits)) == expected


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(99, 100, [[0]]), (100, 101, [[100]]), (199, 201, [[100, 200]]), (1000, 2000, [])],
)
def test_offset_limits_are_exact_at_segment_borders(
    start: int, end: int, expected: list[list[int]]
) -> None:
    limits = RowLimits(start_offset=start, end_offset=end)
    assert bases(planned(manifest_of(TEN), limits=limits)) == expected
    between = OffsetRange(start_offset=start, end_offset=end)
    assert bases(planned(manifest_of(TEN), offsets=between)) == expected


def test_only_pages_that_may_matter_are_fetched() -> None:
    manifest, contents = paged(TEN)
    offsets = OffsetRange(start_offset=350, end_offset=450)
    wanted = wanted_pages(manifest, offsets, RowLimits())
    assert [page.key for page in wanted] == ["page-2", "page-4"]
    needed = {page.key: contents[page.key] for page in wanted}
    assert bases(planned(manifest, offsets=offsets, pages=needed)) == [[300, 400]]


def test_pages_and_root_are_read_as_one_archive() -> None:
    manifest, contents = paged(TEN)
    assert bases(planned(manifest, pages=contents)) == bases(planned(manifest_of(TEN)))


def test_nothing_wanted_is_a_plan_without_splits() -> None:
    made = planned(manifest_of(TEN), offsets=OffsetRange(start_offset=5, end_offset=5))
    assert made.splits == ()
    assert planned(manifest_of([])).splits == ()


def test_the_plan_says_how_much_of_how_much_is_read() -> None:
    made = planned(manifest_of(TEN), limits=RowLimits(end_offset=250))
    assert str(made) == (
        "3 of 10 segments, 30 of 100 chunks, 30.0 MiB of 100.0 MiB, in 1 split over 1 partition"
    )
    assert (made.segments_planned, made.segments_total) == (3, 10)


def test_the_plan_says_why_the_rest_is_not_read() -> None:
    limits = RowLimits(start_offset=250, last_timestamp_ms=599)
    offsets = OffsetRange(start_offset=100, end_offset=1000)
    made = planned(manifest_of(TEN), offsets=offsets, limits=limits)
    assert bases(made) == [[200, 300, 400, 500]]
    assert made.skipped == {
        Skip.BOUNDS: Skipped(segment_count=1, size_bytes=10 * MIB),
        Skip.OFFSETS: Skipped(segment_count=1, size_bytes=10 * MIB),
        Skip.TIMES: Skipped(segment_count=4, size_bytes=40 * MIB),
    }


@pytest.mark.parametrize("records_max", [1, 30, 100, 250, 10_000])
def test_splits_of_bounded_records_meet_without_gap_or_overlap(records_max: int) -> None:
    offsets = OffsetRange(start_offset=50, end_offset=777)
    made = planned(manifest_of(TEN), offsets=offsets, records_max=records_max)
    ranges = [(one.limits.start_offset, one.limits.end_offset) for one in made.splits]
    assert ranges[0][0] == 50
    assert ranges[-1][1] == 777
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert max(end - start for start, end in ranges) <= records_max
    for split in made.splits:
        for piece in split.slices:
            assert piece.entry.base_offset < split.limits.end_offset
            assert piece.entry.end_offset > split.limits.start_offset


def test_the_same_question_is_planned_the_same_way() -> None:
    assert planned(manifest_of(TEN), split_bytes=7 * MIB) == planned(
        manifest_of(TEN), split_bytes=7 * MIB
    )


@pytest.mark.slow
def test_a_hundred_thousand_segments_are_planned() -> None:
    many = [entry(base * 100) for base in range(100_000)]
    made = planned(manifest_of(many), limits=RowLimits(start_timestamp_ms=5_000_000))
    assert made.segments_planned == 50_000


# --- bounds ----------------------------------------------------------------------------------


def offset_of(
    bound: Edge | AtOffset | AtTimestamp, manifest: Manifest | None, *, strict: bool = True
) -> int | None:
    return explicit_offset(
        bound, manifest, option="startingOffsets", partition=TopicPartition("t", 0), strict=strict
    )


def test_edges_are_the_log_start_and_the_archives_end() -> None:
    manifest = replace(manifest_of(TEN), log_start_offset=150)
    assert offset_of(Edge.EARLIEST, manifest) == 150
    assert offset_of(Edge.LATEST, manifest) == 1000
    assert offset_of(Edge.LATEST, None) == 0
    assert offset_of(AtTimestamp(5), manifest) is None


def test_offsets_outside_the_archive_are_refused_or_moved() -> None:
    manifest = replace(manifest_of(TEN), log_start_offset=150)
    assert offset_of(AtOffset(1000), manifest) == 1000
    for offset, moved in ((149, 150), (1001, 1000)):
        with pytest.raises(InvalidConfig, match=f"offset {offset} of t partition 0"):
            offset_of(AtOffset(offset), manifest)
        assert offset_of(AtOffset(offset), manifest, strict=False) == moved


def test_a_log_start_inside_the_archive_hides_what_is_below() -> None:
    manifest = replace(manifest_of(TEN), log_start_offset=250)
    made = planned(manifest)
    assert bases(made) == [[200, 300, 400, 500, 600, 700], [800, 900]]
    assert made.splits[0].limits.start_offset == 250
