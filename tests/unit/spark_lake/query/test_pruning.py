"""What the `.meta` of a segment lets us leave out: chunks without a wanted row, and no others."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import cast

import pytest

from strandline.spark_lake.archive.segments import SegmentMeta
from strandline.spark_lake.plan.splits import SegmentSlice
from strandline.spark_lake.query.pruning import covers, prune
from strandline.storage.records.columns.columns import RowLimits
from strandline.storage.remote.segment.meta import ChunkStatistics, SegmentStatistics
from tests.unit.storage.remote.manifests import entry

MIB = 1 << 20
# Three chunks of a hundred records, one each millisecond from 1000 on.
CHUNK_RECORDS = 100
START_MS = 1000
ENTRY = replace(
    entry(0, 3 * CHUNK_RECORDS, size_bytes=3 * MIB),
    min_timestamp_ms=START_MS,
    max_timestamp_ms=START_MS + 3 * CHUNK_RECORDS - 1,
)
STATISTICS = SegmentStatistics(
    record_count=3 * CHUNK_RECORDS,
    batch_count=3,
    control_batch_count=0,
    min_timestamp_ms=ENTRY.min_timestamp_ms,
    max_timestamp_ms=ENTRY.max_timestamp_ms,
    chunks=tuple(
        ChunkStatistics(
            position=number * MIB,
            base_offset=number * CHUNK_RECORDS,
            record_count=CHUNK_RECORDS,
            min_timestamp_ms=START_MS + number * CHUNK_RECORDS,
            max_timestamp_ms=START_MS + (number + 1) * CHUNK_RECORDS - 1,
        )
        for number in range(3)
    ),
)
# Borders, and what lies beside them.
EDGES = [border + beside for border in (0, 100, 200, 300) for beside in (-1, 0, 1)]


class KnownMeta:
    """In the place of a `SegmentMeta`: nothing is asked of a bucket."""

    def statistics(self) -> SegmentStatistics:
        return STATISTICS


def left(limits: RowLimits, piece: SegmentSlice | None = None) -> set[int]:
    """The chunks of which something is read."""
    meta = cast("SegmentMeta", KnownMeta())
    found = prune(meta, piece or SegmentSlice.whole(ENTRY), limits)
    return {
        offset // CHUNK_RECORDS
        for part in found.ranges
        for offset in range(part.base_offset, part.end_offset)
    }


def with_rows(start: int, end: int) -> set[int]:
    """The chunks that hold one of the records [start, end)."""
    return {number // CHUNK_RECORDS for number in range(300) if start <= number < end}


def test_the_chunks_that_are_left_are_those_with_a_wanted_time() -> None:
    for start, end in combinations(EDGES, 2):
        limits = RowLimits(
            start_timestamp_ms=START_MS + start, last_timestamp_ms=START_MS + end - 1
        )
        assert left(limits) == with_rows(start, end), (start, end)


def test_the_chunks_that_are_left_are_those_with_a_wanted_offset() -> None:
    for start, end in combinations(EDGES, 2):
        limits = RowLimits(start_offset=start, end_offset=end)
        assert left(limits) == with_rows(start, end), (start, end)


def test_a_slice_has_the_chunks_that_begin_in_it() -> None:
    limits = RowLimits(start_timestamp_ms=START_MS + 1)
    for start, end in combinations([0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB], 2):
        piece = SegmentSlice(entry=ENTRY, start_position=start, end_position=end)
        begun = {number for number in range(3) if start <= number * MIB < end}
        assert left(limits, piece) == begun, (start, end)


@pytest.mark.parametrize(
    ("limits", "is_covered"),
    [
        (RowLimits(start_offset=0, end_offset=300), True),
        (RowLimits(start_offset=1), False),
        (RowLimits(end_offset=299), False),
        (RowLimits(start_timestamp_ms=START_MS, last_timestamp_ms=START_MS + 299), True),
        (RowLimits(start_timestamp_ms=START_MS + 1), False),
        (RowLimits(last_timestamp_ms=START_MS + 298), False),
    ],
)
def test_a_segment_is_covered_when_every_row_of_it_is_wanted(
    limits: RowLimits, is_covered: bool
) -> None:
    """It is counted then without being read."""
    assert covers(limits, ENTRY) is is_covered
