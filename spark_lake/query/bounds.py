"""Resolution of the bounds of a query to offsets per partition.

Explicit bounds need only the manifest. A timestamp means the offset of the first record at
or after it, as in Kafka; the manifest names the segment, its statistics the chunk (about 1 MiB),
and that one chunk is read:

    segments  max  3  5  9  8 12      timestamp 7 -> third segment -> first chunk with max >= 7
                         ^                        -> first record with a timestamp >= 7
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strandline.spark_lake.archive.catalog import Catalog, LakePartition
from strandline.spark_lake.archive.objects import ObjectReader, in_parallel
from strandline.spark_lake.archive.segments import (
    LogReader,
    SegmentMeta,
    chunk_ranges,
    whole_segment,
)
from strandline.spark_lake.options.bound_options import AtTimestamp, Bounds
from strandline.spark_lake.options.options import LakeOptions
from strandline.spark_lake.plan.planner import OffsetRange, archived_range, explicit_offset
from strandline.spark_lake.plan.splits import ChunkRange, OpenPiece
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import Offset, TimestampMs, TopicPartition
from strandline.storage.records.columns.columns import RowLimits, RunBuilder, WantedColumns, decode
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest


class BoundsResolver:
    """Resolver of the bounds of one query; reads objects only for timestamps."""

    def __init__(self, reader: ObjectReader, catalog: Catalog, options: LakeOptions) -> None:
        self._reader = reader
        self._catalog = catalog
        self._options = options

    def resolve_all(self, partitions: Sequence[LakePartition]) -> dict[TopicPartition, OffsetRange]:
        """The range of each partition, resolved in parallel; raises what `resolve` raises."""
        ranges = in_parallel(self.resolve, partitions)
        return {one.topic_partition: found for one, found in zip(partitions, ranges, strict=True)}

    def resolve(self, partition: LakePartition) -> OffsetRange:
        """The range of a partition. Raises InvalidConfig if the archive does not have it."""
        start = self._offset(self._options.start, partition)
        end = self._offset(self._options.end, partition)
        available = archived_range(partition.manifest)
        if start is not None and end is not None and start > end:
            raise InvalidConfig(
                f"options {self._options.start.option} and {self._options.end.option}:"
                f" {partition.topic_partition.topic} partition"
                f" {partition.topic_partition.partition} would begin at offset {start} and end at"
                f" {end}"
            )
        if start is None:
            if self._options.fail_without_match:
                raise InvalidConfig(
                    f"option {self._options.start.option}: {partition.topic_partition.topic}"
                    f" partition {partition.topic_partition.partition} has no archived record at or"
                    " after that timestamp; startingOffsetsByTimestampStrategy=latest reads nothing"
                    " from it instead"
                )
            start = available.end_offset
        if end is None:
            end = available.end_offset
        return OffsetRange(start_offset=start, end_offset=max(start, end))

    def _offset(self, bounds: Bounds, partition: LakePartition) -> Offset | None:
        bound = bounds.of(partition.topic_partition)
        if isinstance(bound, AtTimestamp):
            if partition.manifest is None:
                return None
            return self._offset_at(partition.manifest, bound.timestamp_ms)
        return explicit_offset(
            bound,
            partition.manifest,
            option=bounds.option,
            partition=partition.topic_partition,
            strict=self._options.fail_on_data_loss,
        )

    def _offset_at(self, manifest: Manifest, timestamp_ms: TimestampMs) -> Offset | None:
        start_offset = archived_range(manifest).start_offset
        for entry in self._entries_reaching(manifest, timestamp_ms):
            if entry.end_offset > start_offset:
                found = self._offset_within(entry, start_offset, timestamp_ms)
                if found is not None:
                    return found
        return None

    def _entries_reaching(
        self, manifest: Manifest, timestamp_ms: TimestampMs
    ) -> Iterator[SegmentEntry]:
        for page in manifest.pages:
            if page.max_timestamp_ms >= timestamp_ms:
                for entry in self._catalog.load_pages([page])[page.key]:
                    if entry.max_timestamp_ms >= timestamp_ms:
                        yield entry
        for entry in manifest.segments:
            if entry.max_timestamp_ms >= timestamp_ms:
                yield entry

    def _offset_within(
        self, entry: SegmentEntry, start_offset: Offset, timestamp_ms: TimestampMs
    ) -> Offset | None:
        limits = RowLimits(start_offset=start_offset, start_timestamp_ms=timestamp_ms)
        log = LogReader(self._reader, entry, ahead=None)
        for part in self._parts_reaching(entry, timestamp_ms):
            if part.end_offset > start_offset:
                # The whole part, so that its checksum is verified.
                for block in list(log.blocks(part)):
                    builder = RunBuilder(block.content)
                    runs = [run for row in block.batches for run in builder.add(row)]
                    for run in [*runs, *builder.finish()]:
                        for found in decode(run, limits=limits, wanted=_NOTHING, rows_max=1):
                            return int(found.offsets[0])
        return None

    def _parts_reaching(
        self, entry: SegmentEntry, timestamp_ms: TimestampMs
    ) -> Iterator[ChunkRange]:
        if isinstance(entry, OpenPiece):
            yield whole_segment(entry)
            return
        statistics = SegmentMeta(self._reader, entry).statistics()
        ranges = chunk_ranges(entry, statistics)
        for part, chunk in zip(ranges, statistics.chunks, strict=True):
            if chunk.max_timestamp_ms >= timestamp_ms:
                yield part


_NOTHING = WantedColumns(key=False, value=False, headers=False)
