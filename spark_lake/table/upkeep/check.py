"""Check of a table against its archive: counts, offset ranges, rows that are twice; with `deep`
also every value.

    the table's property    next offset of each partition          -> rows before it must be there
    its files               topic id, partition and offset of each row, read in windows
    the archive             record counts of manifests and statistics, for the same offsets
    deep                    the rows of both, in rounds of DEEP_BYTES, compared column by column

Rows that retention took out of the archive are the table's alone: they are counted, not compared.
Rows that the table's own retention dropped are not missed (`retention.DROPPED_PROPERTY`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark_lake.archive.catalog import Catalog
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.plan.planner import OffsetRange
from strandline.spark_lake.query.arrow_scan import default_threads, read_in_order
from strandline.spark_lake.query.counting import count_plan
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.table.archive import TopicView, check_identity, entries_of, load_view
from strandline.spark_lake.table.columns import RowLayout
from strandline.spark_lake.table.conform import conform
from strandline.spark_lake.table.rounds import next_round
from strandline.spark_lake.table.upkeep.maintained import LiveFile, MaintainedTable, load_made
from strandline.spark_lake.table.upkeep.retention import DROPPED_PROPERTY, Kept
from strandline.storage.model import Offset, TopicPartition
from strandline.storage.plurals import counted

# Offsets that are looked at in one pass over the files: a byte each.
WINDOW_OFFSETS = 64 * 1024 * 1024
# Archived bytes that are in memory at once, as rows of the archive and of the table.
DEEP_BYTES = 32 * 1024 * 1024
# Differences that are named; the others are counted.
NAMED_MAX = 20


@dataclass(slots=True, kw_only=True)
class PartitionCheck:
    """One partition in the table and in the archive."""

    partition: int
    table_rows: int = 0
    # None if the table has none.
    first_offset: Offset | None = None
    last_offset: Offset | None = None
    rows_twice: int = 0
    # Of the offsets that both must have.
    compared_rows: int = 0
    archive_rows: int = 0
    next_offset: Offset = 0
    archive_start: Offset = 0
    archive_end: Offset = 0

    @property
    def behind(self) -> int:
        """Offsets that a sync would add."""
        return max(0, self.archive_end - self.next_offset)


@dataclass(slots=True, kw_only=True)
class CheckReport:
    """What a check found; the table is right if there are no findings."""

    table: str
    partitions: list[PartitionCheck] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    # Rows whose values were compared.
    deep_rows: int = 0
    unnamed_findings: int = 0

    def find(self, text: str) -> None:
        if len(self.findings) < NAMED_MAX:
            self.findings.append(text)
        else:
            self.unnamed_findings += 1


class Check:
    """One check of one table."""

    def __init__(self, table: MaintainedTable, query: Query, names: Mapping[str, str]) -> None:
        """`query` has the columns of a sync, `names` those of the table by part."""
        self._table = table
        self._query = query
        self._names = names
        self._report = CheckReport(table=table.name)

    def run(self, *, deep: bool, count_query: Query) -> CheckReport:
        """`count_query` selects the same topic without its values.

        Raises TableRefused, TierError, TableUnavailable.
        """
        has = load_made(self._table)
        reader = self._query.open()
        view = load_view(self._query, reader)
        check_identity(view, has, new_incarnation=False)
        kept = Kept.decode(
            self._table.property_of(DROPPED_PROPERTY), self._names, source=self._table.name
        )
        files = self._table.live_files()
        ranges = {}
        for partition, next_offset in sorted(has.of(view.topic_id).items()):
            one = self._partition(view, partition, next_offset, kept)
            self._count_table(one, view.topic_id, files, kept)
            both = OffsetRange(
                start_offset=min(one.archive_start, next_offset), end_offset=next_offset
            )
            ranges[TopicPartition(view.topic, partition)] = both
            plan = count_query.plan_ranges(
                reader, view.partitions, {TopicPartition(view.topic, partition): both}
            )
            one.archive_rows = count_plan(count_query, plan, reader)
            self._compare(one)
            self._report.partitions.append(one)
        if deep:
            self._compare_values(view, files, ranges, kept, reader)
        return self._report

    def _partition(
        self, view: TopicView, partition: int, next_offset: Offset, kept: Kept
    ) -> PartitionCheck:
        archived = view.archived(TopicPartition(view.topic, partition))
        dropped = kept.starts.get(view.topic_id, {}).get(partition, 0)
        selected = view.selected[TopicPartition(view.topic, partition)].start_offset
        return PartitionCheck(
            partition=partition,
            next_offset=next_offset,
            archive_start=max(archived.start_offset, dropped, selected),
            archive_end=archived.end_offset,
        )

    def _count_table(
        self, one: PartitionCheck, topic_id: UUID, files: Sequence[LiveFile], kept: Kept
    ) -> None:
        for start in range(0, max(one.next_offset, 1), WINDOW_OFFSETS):
            window = OffsetRange(start_offset=start, end_offset=start + WINDOW_OFFSETS)
            seen = np.zeros(min(WINDOW_OFFSETS, one.next_offset - start), dtype=np.uint8)
            for offsets in self._offsets(files, topic_id, one.partition, window, kept):
                self._count_offsets(one, offsets, seen, start)

    def _count_offsets(self, one: PartitionCheck, offsets: Any, seen: Any, start: Offset) -> None:
        if not len(offsets):
            return
        one.table_rows += len(offsets)
        first, last = int(offsets.min()), int(offsets.max())
        one.first_offset = first if one.first_offset is None else min(first, one.first_offset)
        one.last_offset = last if one.last_offset is None else max(last, one.last_offset)
        inside = offsets[offsets < one.next_offset]
        distinct = np.unique(inside - start)
        one.rows_twice += len(inside) - len(distinct) + int(seen[distinct].sum())
        seen[distinct] = 1
        one.compared_rows += int((inside >= one.archive_start).sum())

    def _offsets(
        self,
        files: Sequence[LiveFile],
        topic_id: UUID,
        partition: int,
        window: OffsetRange,
        kept: Kept,
    ) -> Iterator[Any]:
        columns = [self._names[part] for part in ("topic_id", "partition", "offset")]
        if kept.before_ms:
            columns.append(self._names["timestamp"])
        for file in self._overlapping(files, partition, window):
            for batch in self._table.read(file, columns):
                rows = self._of_window(kept.rows(batch), topic_id, partition, window)
                yield rows.column(self._names["offset"]).to_numpy(zero_copy_only=False)

    def _of_window(self, rows: Any, topic_id: UUID, partition: int, window: OffsetRange) -> Any:
        offsets = rows.column(self._names["offset"])
        wanted = pc.and_(
            pc.and_(
                pc.equal(rows.column(self._names["topic_id"]), str(topic_id)),
                pc.equal(rows.column(self._names["partition"]), partition),
            ),
            pc.and_(
                pc.greater_equal(offsets, window.start_offset),
                pc.less(offsets, window.end_offset),
            ),
        )
        return rows.filter(wanted)

    def _overlapping(
        self, files: Sequence[LiveFile], partition: int, window: OffsetRange
    ) -> Iterator[LiveFile]:
        for file in files:
            first, last = file.bounds.get(self._names["offset"], (0, window.end_offset))
            least, most = file.bounds.get(self._names["partition"], (partition, partition))
            if (
                first < window.end_offset
                and window.start_offset <= last
                and least <= partition <= most
            ):
                yield file

    def _compare(self, one: PartitionCheck) -> None:
        where = f"partition {one.partition}"
        if one.rows_twice:
            self._report.find(f"{where}: {counted(one.rows_twice, 'row')} more than once")
        if one.last_offset is not None and one.last_offset >= one.next_offset:
            self._report.find(
                f"{where}: the table has offset {one.last_offset}, its property says that"
                f" {one.next_offset} is next: the next sync adds rows again"
            )
        rows = one.compared_rows - one.rows_twice
        if rows != one.archive_rows:
            what = "lacks" if rows < one.archive_rows else "has more than the archive:"
            self._report.find(
                f"{where}: of the offsets {one.archive_start} to {one.next_offset}, the table"
                f" {what} {counted(abs(rows - one.archive_rows), 'row')}"
            )
        if one.next_offset > one.archive_end:
            self._report.find(
                f"{where}: the table is at offset {one.next_offset}, the archive ends at"
                f" {one.archive_end}: an older state of the archive was restored"
            )

    def _compare_values(
        self,
        view: TopicView,
        files: Sequence[LiveFile],
        ranges: Mapping[TopicPartition, OffsetRange],
        kept: Kept,
        reader: ObjectReader,
    ) -> None:
        layout = RowLayout(
            topic_id=view.topic_id,
            names=self._names,
            value_type=self._query.schema.field("value").type,
        )
        left = {one: found for one, found in ranges.items() if _count(found)}
        while left:
            catalog = Catalog(reader)
            entries = {
                one.topic_partition: entries_of(one, left[one.topic_partition], catalog)
                for one in view.partitions
                if one.topic_partition in left
            }
            taken = next_round(left, entries, bytes_max=DEEP_BYTES)
            for partition, found in taken.ranges.items():
                wanted = self._archived(view, layout, {partition: found}, kept, reader)
                there = self._rows_of(view, files, partition.partition, found, kept)
                self._compare_rows(partition.partition, there, wanted)
            left = {
                one: OffsetRange(start_offset=end, end_offset=found.end_offset)
                for one, found in left.items()
                if (end := _end(taken.ranges.get(one), found)) < found.end_offset
            }

    def _archived(
        self,
        view: TopicView,
        layout: RowLayout,
        ranges: Mapping[TopicPartition, OffsetRange],
        kept: Kept,
        reader: ObjectReader,
    ) -> Any:
        schema = layout.schema(self._query.schema)
        plan = self._query.plan_ranges(reader, view.partitions, ranges)
        batches = [
            kept.rows(layout.rows(batch, schema))
            for batch in read_in_order(self._query, plan, reader, threads=default_threads())
        ]
        return conform(pa.Table.from_batches(batches, schema), self._table.schema)

    def _rows_of(
        self,
        view: TopicView,
        files: Sequence[LiveFile],
        partition: int,
        window: OffsetRange,
        kept: Kept,
    ) -> Any:
        found = [
            self._of_window(kept.rows(batch), view.topic_id, partition, window)
            for file in self._overlapping(files, partition, window)
            for batch in self._table.read(file)
        ]
        return pa.Table.from_batches(found, self._table.schema)

    def _compare_rows(self, partition: int, there: Any, wanted: Any) -> None:
        by_offset = [(self._names["offset"], "ascending")]
        there, wanted = (one.sort_by(by_offset).combine_chunks() for one in (there, wanted))
        self._report.deep_rows += wanted.num_rows
        if there.num_rows != wanted.num_rows:
            # `_compare` has said so: rows cannot be put side by side.
            return
        for name in wanted.column_names:
            if there.column(name).equals(wanted.column(name)):
                continue
            for row in range(wanted.num_rows):
                mine, theirs = (one.column(name)[row].as_py() for one in (there, wanted))
                # A NaN is not equal to itself.
                if repr(mine) != repr(theirs):
                    offset = wanted.column(self._names["offset"])[row].as_py()
                    self._report.find(
                        f"partition {partition} offset {offset}: column {name} is another value"
                        " than in the archive"
                    )


def _count(one: OffsetRange) -> int:
    return one.end_offset - one.start_offset


def _end(taken: OffsetRange | None, left: OffsetRange) -> Offset:
    return left.start_offset if taken is None else taken.end_offset
