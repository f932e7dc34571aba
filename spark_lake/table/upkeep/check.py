"""Check of a table against its archive: counts, offset ranges, rows that are twice; with `deep`
also every value.

    the table's property    next offset of each partition          -> rows before it must be there
    its files               topic id, partition and offset of each row, of all partitions at once
    those of the second     rows whose values do not parse: each offset is in one table of the two
    the archive             record counts of manifests and statistics, for the same offsets
    deep                    the rows of all, in rounds of DEEP_BYTES, compared column by column

Of a table with the newest record of each key, the archive's keys tell which offsets it must have;
those of one partition are in memory.

Rows that retention or compaction took out of the archive are the table's alone: they are counted,
not compared.
Rows that the table's own retention dropped are not missed (`retention.DROPPED_PROPERTY`).
Rows from before the table had a field must have null there (`offsets.WIDENED_PROPERTY`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark_lake.archive.catalog import Catalog
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.plan.planner import OffsetRange, ScanPlan
from strandline.spark_lake.query.arrow_scan import default_threads, read_in_order
from strandline.spark_lake.query.counting import count_plan
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.table.archive import TopicView, check_identity, entries_of, load_view
from strandline.spark_lake.table.columns import RowLayout
from strandline.spark_lake.table.conform import (
    added_fields,
    conform,
    shared_schema,
    without_fields,
)
from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.offsets import (
    WIDENED_PROPERTY,
    Mode,
    Widening,
    decode_widenings,
)
from strandline.spark_lake.table.rounds import next_round
from strandline.spark_lake.table.upkeep.maintained import CheckedTable, LiveFile, load_made
from strandline.spark_lake.table.upkeep.retention import DROPPED_PROPERTY, Kept, rows_before
from strandline.spark_lake.table.upsert import DELETED, NewestRows
from strandline.storage.model import Offset, TopicPartition
from strandline.storage.plurals import counted

OFFSET_MAX = 2**63 - 1
# Offsets that are looked at in one pass over the files: a byte each.
WINDOW_OFFSETS = 64 * 1024 * 1024
# Archived bytes that are in memory at once, as rows of the archive and of the table.
DEEP_BYTES = 32 * 1024 * 1024
# Differences that are named; the others are counted.
NAMED_MAX = 20

Ranges = Mapping[TopicPartition, OffsetRange]


@dataclass(slots=True, kw_only=True)
class PartitionCheck:
    """One partition in the table and in the archive."""

    partition: int
    table_rows: int = 0
    # None if the table has none.
    first_offset: Offset | None = None
    last_offset: Offset | None = None
    # Of the second table: values that do not parse.
    rejected_rows: int = 0
    # Also a row of the one table that the other has, too.
    rows_twice: int = 0
    # Of a table of the newest records: those that are not the newest of their key.
    rows_old: int = 0
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
    # Fields of the table, at any depth, that the archive's rows do not have under this name.
    uncompared: Sequence[str] = ()
    unnamed_findings: int = 0

    def find(self, text: str) -> None:
        if len(self.findings) < NAMED_MAX:
            self.findings.append(text)
        else:
            self.unnamed_findings += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A table whose rows are counted: the first, or the second one with those that do not parse."""

    table: CheckedTable
    files: Sequence[LiveFile]
    kept: Kept
    is_rejected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Offsets of one partition that one pass looks at; the last window of a partition is open."""

    check: PartitionCheck
    start: Offset
    end: Offset | None
    # One byte for each offset before the partition's next one.
    seen: Any

    def has(self, offsets: Any) -> Any:
        """Which of the offsets are in the window."""
        return (offsets >= self.start) & (self.end is None or offsets < self.end)


class Check:
    """One check of one table."""

    def __init__(
        self,
        table: CheckedTable,
        query: Query,
        names: Mapping[str, str],
        rejected: CheckedTable | None = None,
    ) -> None:
        """`query` has the columns of a sync, `names` those of the table by part.

        With `rejected`, a loaded second table, `query` must not fail at values that do not parse.
        """
        self._table = table
        self._rejected = rejected
        self._query = query
        self._names = names
        self._report = CheckReport(table=table.name)
        # The offsets of the newest records, sorted, by partition; none of a table of all records.
        self._newest: dict[int, Any] = {}
        # The same of a table of all records, where compaction left fewer records than offsets.
        self._left: dict[int, Any] = {}

    def run(self, *, deep: bool, count_query: Query) -> CheckReport:
        """`count_query` selects the same topic without its values.

        Raises TableRefused, TierError, TableUnavailable.
        """
        has = load_made(self._table)
        reader = self._query.open()
        view = load_view(self._query, reader)
        check_identity(view, has, new_incarnation=False)
        sources = self._sources()
        kept = sources[0].kept
        checks = self._report.partitions
        for partition, next_offset in sorted(has.of(view.topic_id).items()):
            checks.append(self._partition(view, partition, next_offset, kept))
        layout = RowLayout(
            topic=view.topic,
            topic_id=view.topic_id,
            names=self._names,
            value_type=self._query.schema.field("value").type,
            mode=has.mode,
        )
        ranges = {
            TopicPartition(view.topic, one.partition): OffsetRange(
                start_offset=min(one.archive_start, one.next_offset), end_offset=one.next_offset
            )
            for one in checks
        }
        for one, (place, found) in zip(checks, ranges.items(), strict=True):
            if has.mode is Mode.APPEND:
                plan = count_query.plan_ranges(reader, view.partitions, {place: found})
                one.archive_rows = count_plan(count_query, plan, reader)
                if one.archive_rows < found.offset_count and not _has_transactions(plan):
                    batches = read_in_order(count_query, plan, reader, threads=default_threads())
                    self._left[one.partition] = _sorted(batches, "offset")
            else:
                newest = self._newest_offsets(view, layout, {place: found}, kept, reader)
                self._newest[one.partition] = newest
                one.archive_rows = len(newest)
        self._count_rows(view.topic_id, sources)
        for one in checks:
            self._compare(one)
        if deep:
            self._compare_values(view, layout, sources, ranges, reader)
        return self._report

    def _newest_offsets(
        self, view: TopicView, layout: RowLayout, ranges: Ranges, kept: Kept, reader: ObjectReader
    ) -> Any:
        """The offsets that a table of the newest records must have, sorted."""
        schema = layout.schema(self._query.schema)
        columns = [self._names[part] for part in ("key", "offset")]
        plan = self._query.plan_ranges(reader, view.partitions, ranges)
        newest = NewestRows(key=columns[0], offset=columns[1])
        for batch in read_in_order(self._query, plan, reader, threads=default_threads()):
            rows = layout.changes(layout.accepted(batch), schema)
            newest.add(rows.select([*dict.fromkeys([*columns, *kept.columns]), DELETED]))
        rows = newest.rows()
        rows = rows.filter(pc.invert(rows.column(DELETED)))
        return _sorted(map(kept.rows, rows.to_batches()), columns[1])

    def _sources(self) -> list[_Source]:
        return [
            _Source(
                table=table,
                files=table.live_files(),
                kept=Kept.decode(
                    table.property_of(DROPPED_PROPERTY), self._names, source=table.name
                ),
                is_rejected=table is not self._table,
            )
            for table in (self._table, self._rejected)
            if table is not None
        ]

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

    def _count_rows(self, topic_id: UUID, sources: Sequence[_Source]) -> None:
        """Reads the columns of a row's identity, each file once for WINDOW_OFFSETS offsets."""
        files = [file for source in sources for file in source.files]
        for windows in _passes(self._windows(files)):
            by_partition = {one.check.partition: one for one in windows}
            for source in sources:
                for numbers, offsets in self._identities(source, topic_id, by_partition):
                    for number in np.unique(numbers):
                        window = by_partition.get(int(number))
                        if window is not None:
                            found = offsets[numbers == number]
                            self._count_offsets(
                                window, found[window.has(found)], source.is_rejected
                            )

    def _windows(self, files: Sequence[LiveFile]) -> Iterator[_Window]:
        starts = self._first_offsets(files)
        for one in self._report.partitions:
            last = one.next_offset
            start = min(starts.get(one.partition, last), starts.get(None, last), last)
            while True:
                end = start + WINDOW_OFFSETS
                is_last = end >= last
                yield _Window(
                    check=one,
                    start=start,
                    end=None if is_last else end,
                    seen=np.zeros(min(end, last) - start, dtype=np.uint8),
                )
                if is_last:
                    break
                start = end

    def _first_offsets(self, files: Sequence[LiveFile]) -> dict[int | None, Offset]:
        """The least offset of files by partition; None stands for files with several."""
        found: dict[int | None, Offset] = {}
        for file in files:
            least, most = file.bounds.get(self._names["partition"], (None, None))
            key = least if least == most else None
            found[key] = min(self._bounds(file)[0], found.get(key, OFFSET_MAX))
        return found

    def _identities(
        self, source: _Source, topic_id: UUID, windows: Mapping[int, _Window]
    ) -> Iterator[tuple[Any, Any]]:
        """Partitions and offsets of the rows of files with one of these windows, by batch."""
        columns = [self._names[part] for part in ("topic_id", "partition", "offset")]
        if source.kept.before_ms:
            columns.append(self._names["timestamp"])
        for file in source.files:
            if not any(self._overlaps(file, one) for one in self._of(file, windows)):
                continue
            for batch in source.table.read(file, columns):
                rows = source.kept.rows(batch)
                rows = rows.filter(pc.equal(rows.column(columns[0]), str(topic_id)))
                yield tuple(
                    rows.column(name).to_numpy(zero_copy_only=False) for name in columns[1:3]
                )

    def _overlaps(self, file: LiveFile, window: _Window) -> bool:
        least, most = file.bounds.get(self._names["partition"], (None, None))
        if least is not None and not least <= window.check.partition <= most:
            return False
        first, last = self._bounds(file)
        return bool(last >= window.start and (window.end is None or first < window.end))

    def _of(self, file: LiveFile, windows: Mapping[int, _Window]) -> Collection[_Window]:
        """The windows of partitions that the file may have rows of."""
        least, most = file.bounds.get(self._names["partition"], (None, None))
        if least is None or least != most:
            return windows.values()
        return [windows[least]] if least in windows else []

    def _bounds(self, file: LiveFile) -> tuple[Offset, Offset]:
        found: tuple[Offset, Offset] = file.bounds.get(self._names["offset"], (0, OFFSET_MAX))
        return found

    def _count_offsets(self, window: _Window, offsets: Any, is_rejected: bool) -> None:
        if not len(offsets):
            return
        one = window.check
        if is_rejected:
            one.rejected_rows += len(offsets)
        else:
            one.table_rows += len(offsets)
        first, last = int(offsets.min()), int(offsets.max())
        one.first_offset = first if one.first_offset is None else min(first, one.first_offset)
        one.last_offset = last if one.last_offset is None else max(last, one.last_offset)
        inside = offsets[offsets < one.next_offset]
        distinct = np.unique(inside - window.start)
        one.rows_twice += len(inside) - len(distinct) + int(window.seen[distinct].sum())
        window.seen[distinct] = 1
        compared = inside[inside >= one.archive_start]
        if one.partition in self._left:
            compared = compared[np.isin(compared, self._left[one.partition])]
        newest = self._newest.get(one.partition)
        if newest is None or not is_rejected:
            one.compared_rows += len(compared)
        if newest is not None and not is_rejected:
            one.rows_old += int(np.isin(compared, newest, invert=True).sum())

    def _of_ranges(self, rows: Any, topic_id: UUID, ranges: Ranges) -> Any:
        """The rows of one topic id in these offsets."""
        names = self._names
        numbers, offsets = rows.column(names["partition"]), rows.column(names["offset"])
        known = pa.array([one.partition for one in ranges], numbers.type)
        # Null for another partition, which compares as null and is dropped.
        places = pc.index_in(numbers, value_set=known)
        starts = pa.array([one.start_offset for one in ranges.values()], pa.int64())
        ends = pa.array([one.end_offset for one in ranges.values()], pa.int64())
        inside = pc.and_(
            pc.greater_equal(offsets, starts.take(places)), pc.less(offsets, ends.take(places))
        )
        return rows.filter(pc.and_(inside, pc.equal(rows.column(names["topic_id"]), str(topic_id))))

    def _has_some(self, file: LiveFile, ranges: Ranges) -> bool:
        """Whether the file may have rows in these offsets."""
        least, most = file.bounds.get(self._names["partition"], (0, OFFSET_MAX))
        first, last = self._bounds(file)
        return any(
            least <= partition.partition <= most
            and first < one.end_offset
            and one.start_offset <= last
            for partition, one in ranges.items()
        )

    def _compare(self, one: PartitionCheck) -> None:
        where = f"partition {one.partition}"
        if one.rows_twice:
            self._report.find(f"{where}: {counted(one.rows_twice, 'row')} more than once")
        if one.last_offset is not None and one.last_offset >= one.next_offset:
            self._report.find(
                f"{where}: the table has offset {one.last_offset}, its property says that"
                f" {one.next_offset} is next: the next sync adds rows again"
            )
        if one.rows_old:
            self._report.find(
                f"{where}: {counted(one.rows_old, 'row')} whose key has a newer record, or none any"
                " more, in the archive"
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
        layout: RowLayout,
        sources: Sequence[_Source],
        ranges: Ranges,
        reader: ObjectReader,
    ) -> None:
        first, kept = sources[0], sources[0].kept
        text = first.table.property_of(WIDENED_PROPERTY)
        widenings = decode_widenings(text, source=f"table {first.table.name}")
        left = {one: found for one, found in ranges.items() if found.offset_count}
        while left:
            catalog = Catalog(reader)
            entries = {
                one.topic_partition: entries_of(one, left[one.topic_partition], catalog)
                for one in view.partitions
                if one.topic_partition in left
            }
            taken = next_round(left, entries, bytes_max=DEEP_BYTES)
            wanted = self._archived(view, layout, taken.ranges, kept, reader)
            for other in sources[1:]:
                # What was rejected stays so, also if the options could read it now.
                wanted = self._without(wanted, self._rows_of(view, other, taken.ranges))
            there = self._in_archive(self._rows_of(view, first, taken.ranges))
            # Fields that the options do not know any more are not the archive's to compare.
            schema = shared_schema(first.table.schema, wanted.schema)
            others = added_fields(wanted.schema, first.table.schema)
            self._report.uncompared = [".".join(one) for one in others]
            wanted = self._as_synced(conform(wanted, schema), view.topic_id, widenings)
            self._compare_rows(conform(there, schema), first.table.as_stored(wanted))
            left = {
                one: OffsetRange(start_offset=end, end_offset=found.end_offset)
                for one, found in left.items()
                if (end := _end(taken.ranges.get(one), found)) < found.end_offset
            }

    def _as_synced(self, rows: Any, topic_id: UUID, widenings: Sequence[Widening]) -> Any:
        """The archive's rows as the table must have them: null in fields that it got later."""
        for step in widenings:
            ends = step.next_offsets.get(topic_id, {})
            older = rows_before(rows, self._names, topic_id, ends)
            narrow = conform(rows.filter(older), without_fields(rows.schema, step.fields))
            rows = pa.concat_tables([conform(narrow, rows.schema), rows.filter(pc.invert(older))])
        return rows

    def _archived(
        self,
        view: TopicView,
        layout: RowLayout,
        ranges: Ranges,
        kept: Kept,
        reader: ObjectReader,
    ) -> Any:
        schema = layout.schema(self._query.schema)
        plan = self._query.plan_ranges(reader, view.partitions, ranges)
        batches = [
            kept.rows(self._wanted_rows(layout, batch, schema))
            for batch in read_in_order(self._query, plan, reader, threads=default_threads())
        ]
        return pa.Table.from_batches(batches, schema)

    def _wanted_rows(self, layout: RowLayout, batch: Any, schema: Any) -> Any:
        """The rows of a batch of one partition that the table must have."""
        if layout.mode is Mode.APPEND or not batch.num_rows:
            return layout.rows(batch, schema)
        newest = self._newest[batch.column("partition")[0].as_py()]
        wanted = batch.filter(pa.array(np.isin(batch.column("offset").to_numpy(), newest)))
        return layout.changes(wanted, schema).drop_columns([DELETED])

    def _rows_of(self, view: TopicView, source: _Source, ranges: Ranges) -> Any:
        found: list[Any] = []
        for file in source.files:
            if not self._has_some(file, ranges):
                continue
            try:
                found.extend(
                    self._of_ranges(source.kept.rows(batch), view.topic_id, ranges)
                    for batch in source.table.read(file)
                )
            except TableRefused as error:
                # What the table says of the file, and what was read of it, are not the same.
                self._report.find(str(error))
        return pa.Table.from_batches(found, source.table.schema)

    def _in_archive(self, rows: Any) -> Any:
        """The rows that compaction left."""
        partition, offset = (rows.column(self._names[one]) for one in ("partition", "offset"))
        kept = np.full(rows.num_rows, fill_value=True)
        for number, left in self._left.items():
            kept &= (partition.to_numpy() != number) | np.isin(offset.to_numpy(), left)
        return rows.filter(pa.array(kept))

    def _without(self, rows: Any, others: Any) -> Any:
        """The rows that are not among the others, of which there are few."""
        partition, offset = self._names["partition"], self._names["offset"]
        kept = pa.array([True] * rows.num_rows, pa.bool_())
        for number in pc.unique(others.column(partition)).to_pylist():
            known = others.filter(pc.equal(others.column(partition), number)).column(offset)
            found = pc.is_in(rows.column(offset), value_set=known.combine_chunks())
            kept = pc.and_not(kept, pc.and_(found, pc.equal(rows.column(partition), number)))
        return rows.filter(kept)

    def _compare_rows(self, there: Any, wanted: Any) -> None:
        partition, offset = self._names["partition"], self._names["offset"]
        order = [(partition, "ascending"), (offset, "ascending")]
        there, wanted = (
            one.sort_by(order).combine_chunks()
            for one in _with_equal_counts(there, wanted, partition)
        )
        self._report.deep_rows += wanted.num_rows
        for number in pc.unique(wanted.column(partition)).to_pylist():
            mine, theirs = (
                one.filter(pc.equal(one.column(partition), number)) for one in (there, wanted)
            )
            for name in wanted.column_names:
                self._compare_column(
                    (number, name), theirs.column(offset), mine.column(name), theirs.column(name)
                )

    def _compare_column(self, place: tuple[int, str], offsets: Any, mine: Any, theirs: Any) -> None:
        """`place` is the partition and the column; rows come in the order of their offsets."""
        partition, name = place
        for row in () if mine.equals(theirs) else range(len(mine)):
            # A NaN is not equal to itself.
            if repr(mine[row].as_py()) != repr(theirs[row].as_py()):
                self._report.find(
                    f"partition {partition} offset {offsets[row]}: column {name} is another value"
                    " than in the archive"
                )


def _with_equal_counts(there: Any, wanted: Any, partition: str) -> tuple[Any, Any]:
    """Rows of the partitions that can be put side by side; of others a count has told already."""
    counts = []
    for one in (there, wanted):
        numbers, count = np.unique(one.column(partition).to_numpy(), return_counts=True)
        counts.append(dict(zip(numbers.tolist(), count.tolist(), strict=True)))
    equal = [number for number, count in counts[1].items() if counts[0].get(number) == count]
    if len(equal) == len(counts[0]) == len(counts[1]):
        return there, wanted
    known = pa.array(equal, wanted.schema.field(partition).type)
    return (
        there.filter(pc.is_in(there.column(partition), value_set=known)),
        wanted.filter(pc.is_in(wanted.column(partition), value_set=known)),
    )


def _has_transactions(plan: ScanPlan) -> bool:
    return any(one.entry.has_transactions for split in plan.splits for one in split.slices)


def _sorted(batches: Iterable[Any], column: str) -> Any:
    """The values of a column of numbers."""
    found = [one.column(column).to_numpy() for one in batches]
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def _passes(windows: Iterator[_Window]) -> Iterator[list[_Window]]:
    """Windows of WINDOW_OFFSETS offsets together, one of each partition at most."""
    taken: list[_Window] = []
    for one in windows:
        if taken and sum(len(each.seen) for each in taken) + len(one.seen) > WINDOW_OFFSETS:
            yield taken
            taken = []
        taken.append(one)
    if taken:
        yield taken


def _end(taken: OffsetRange | None, left: OffsetRange) -> Offset:
    return left.start_offset if taken is None else taken.end_offset
