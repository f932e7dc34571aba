"""Rounds of a sync: the next offsets to read of each partition, bounded by archived bytes. Pure.

    partition 0   |-- segment --|-- segment --|-- segment --|          taken in order of time,
    partition 1   |---- segment ----|---- segment ----|                until `bytes_max` is full
    round 1       [=============][=============]                       one commit each
                  [=================]

Whole segments: a segment is read once. Taking the oldest first keeps the rows of a day in few
rounds, and so in few files.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from strandline.spark_lake.plan.planner import OffsetRange
from strandline.storage.model import TopicPartition
from strandline.storage.remote.manifest.entries import SegmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Offset ranges that one commit adds; none is empty."""

    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    size_bytes: int = 0


def next_round(
    wanted: Mapping[TopicPartition, OffsetRange],
    entries: Mapping[TopicPartition, Iterator[SegmentEntry]],
    *,
    bytes_max: int,
) -> Round:
    """The first round of `wanted`. `entries` are those of each partition, in order of offset.

    Takes one segment at least. Offsets after the last entry of a partition have no records; they
    belong to the round that takes the last entry.
    """
    first = {one: next(entries[one], None) for one in wanted}
    waiting = [(e.max_timestamp_ms, one, e) for one, e in first.items() if e is not None]
    heapq.heapify(waiting)
    # A partition whose wanted offsets have no records is done with at once.
    ends = {one: wanted[one].end_offset for one, e in first.items() if e is None}
    size_bytes = 0
    while waiting:
        _, partition, entry = waiting[0]
        if size_bytes and size_bytes + entry.size_bytes > bytes_max:
            break
        heapq.heappop(waiting)
        size_bytes += entry.size_bytes
        ends[partition] = min(entry.end_offset, wanted[partition].end_offset)
        after = next(entries[partition], None)
        if after is None:
            ends[partition] = wanted[partition].end_offset
        else:
            heapq.heappush(waiting, (after.max_timestamp_ms, partition, after))
    ranges = {
        one: OffsetRange(start_offset=wanted[one].start_offset, end_offset=end)
        for one, end in ends.items()
        if end > wanted[one].start_offset
    }
    return Round(ranges=ranges, size_bytes=size_bytes)
