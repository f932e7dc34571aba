"""Sync: brings a table up to what the archive has of its topic.

    1 ask the archive where it ends, and then the registry for the newest schema
      create the table, or widen its schema         a commit of its own
    2 load the table and the manifests, plan a round
    3 write the files of the round                  under names that no other attempt uses; an
                                                    upsert ends it early if its memory is full
    4 commit files and offsets together             `commit.py`: once, whatever the answer
      and rows that do not parse to a second table  `rejected.py`, if they are wanted there
    5 again from 2, until the table has what the archive had when the sync began, or the topic was
      deleted and made anew

The table is the only state. After a death at any step the next sync begins at 2 with what was
committed. Two syncs of one table do each other's work twice, and one of them drops its files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from strandline.spark_lake.archive.catalog import Catalog
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.options.options import RAW_COLUMN
from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.table.archive import (
    TopicView,
    check_identity,
    check_is_ahead,
    check_mode,
    entries_of,
    load_view,
    missing_ranges,
)
from strandline.spark_lake.table.columns import RowLayout
from strandline.spark_lake.table.commit import (
    ROUND_AGE_MS_MAX,
    CommitOutcome,
    commit_files,
    load_existing,
)
from strandline.spark_lake.table.errors import TableUnavailable
from strandline.spark_lake.table.offsets import Mode, RejectedFiles, TableOffsets
from strandline.spark_lake.table.rejected import settle
from strandline.spark_lake.table.rounds import Round, next_round
from strandline.spark_lake.table.sink import SinkPlan, Target
from strandline.spark_lake.table.store import FileRole, TableStore, WrittenFile
from strandline.spark_lake.table.upsert import UpsertPlan
from strandline.storage.crash_points import (
    TABLE_AFTER_COMMIT,
    TABLE_AFTER_CREATE,
    TABLE_AFTER_REJECTED,
    TABLE_BEFORE_COMMIT,
    crash_point,
)
from strandline.storage.model import Offset, TimestampMs, TopicPartition

# Archived bytes of a round in one process. A death costs the work of one round, a commit a few
# requests.
ROUND_BYTES = 1024 * 1024 * 1024
# Rows in memory of a file: some 20 to 60 MB of Parquet.
FILE_BYTES = 128 * 1024 * 1024
# Rounds in a row that another writer commits first, or that take too long.
LOST_ROUNDS_MAX = 100


class Progress(Protocol):
    """A progress bar."""

    def begin(self, what: str, total: int) -> None:
        """Begins to count `total` offsets."""
        ...

    def advance(self, count: int) -> None:
        """Counts offsets that were read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTask:
    """The work of a round for an engine: read `plan`, write its rows through `sink`."""

    query: Query
    plan: ScanPlan
    sink: SinkPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """What became of a round's task, or of one worker's share of it."""

    files: Sequence[WrittenFile]
    # The next offset of partitions that are not read to their end, as an upsert's memory was full.
    ends: Mapping[TopicPartition, Offset] = field(default_factory=dict)

    @classmethod
    def joined(cls, shares: Sequence[WrittenRows]) -> WrittenRows:
        """Of shares with different partitions, or without `ends`."""
        return cls(
            files=[file for one in shares for file in one.files],
            ends={partition: at for one in shares for partition, at in one.ends.items()},
        )


class SyncEngine(Protocol):
    """What runs the task of a round: this process, or Spark."""

    @property
    def round_bytes(self) -> int:
        """Archived bytes of a round that suit it."""
        ...

    def run(
        self, task: RoundTask, reader: ObjectReader, advance: Callable[[int], None]
    ) -> WrittenRows:
        """The files of the task. Raises what `Query.read` and the writers raise.

        What was written before an error is deleted, as far as the engine can.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """How a sync works, whatever the table."""

    names: dict[str, str]
    file_bytes: int = FILE_BYTES
    # None: what suits the engine.
    round_bytes: int | None = None
    new_incarnation: bool = False
    mode: Mode = Mode.APPEND


@dataclass(slots=True, kw_only=True)
class SyncReport:
    """What a sync did."""

    table: str
    rows: int = 0
    # Of the second table.
    rejected_rows: int = 0
    files: int = 0
    size_bytes: int = 0
    commits: int = 0
    lost_rounds: int = 0
    # The next offset of each partition that the table has now.
    next_offsets: dict[int, Offset] = field(default_factory=dict)
    # Whether the table has what the archive had when the sync began; not if it was stopped, or if
    # the topic was made anew meanwhile.
    is_complete: bool = False


class Sync:
    """One run over one topic and its table."""

    def __init__(
        self,
        query: Query,
        store: TableStore,
        engine: SyncEngine,
        settings: SyncSettings,
        *,
        rejected: TableStore,
        progress: Progress,
        wait: Callable[[float], None],
        now_ms: Callable[[], TimestampMs],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`query` selects the topic; `should_stop` is asked before each round.

        `rejected` is the second table, which takes rows if the query has their column.
        """
        self._query = query
        self._store = store
        self._rejected = rejected
        self._engine = engine
        self._settings = settings
        self._progress = progress
        self._wait = wait
        self._now_ms = now_ms
        self._should_stop = should_stop
        self._report = SyncReport(table=store.name)

    def run(self) -> SyncReport:
        """Raises TableRefused before anything is written, TierError, TableUnavailable."""
        reader = self._query.open()
        view = load_view(self._query, reader)
        ends = {one: selected.end_offset for one, selected in view.selected.items()}
        # After `ends`: a schema is registered before the records that have it. With an older one
        # their new fields would be null for ever.
        self._query = self._query.renewed()
        layout = self._layout(view)
        known = self._store.load()
        if known is not None:
            check_identity(view, known, new_incarnation=self._settings.new_incarnation)
            check_is_ahead(self._query, view, known, reader)
        # 1
        self._prepare(view, layout, known)
        crash_point(TABLE_AFTER_CREATE)
        is_begun = False
        while True:
            # 2
            base = load_existing(self._store)
            check_identity(view, base, new_incarnation=self._settings.new_incarnation)
            settle(base, self._rejected, wait=self._wait)
            made = self._next_round(view, base, ends, reader)
            if not is_begun:
                self._progress.begin("records", self._left(view, base, ends))
                is_begun = True
            self._report.is_complete = not made.ranges
            if not made.ranges or self._should_stop():
                self._report.next_offsets = dict(base.of(view.topic_id))
                return self._report
            self._run_round(made, view, layout, base, reader)
            newer = load_view(self._query, reader)
            if newer.topic_id != view.topic_id:
                # Made anew meanwhile, perhaps with other values: a run of its own begins there.
                has = load_existing(self._store)
                check_identity(newer, has, new_incarnation=self._settings.new_incarnation)
                self._report.next_offsets = dict(has.of(view.topic_id))
                return self._report
            view = newer

    def _run_round(
        self,
        made: Round,
        view: TopicView,
        layout: RowLayout,
        base: TableOffsets,
        reader: ObjectReader,
    ) -> None:
        commit_id = uuid.uuid4().hex
        begun_ms = self._now_ms()
        # 3
        task = RoundTask(
            query=self._query,
            plan=self._query.plan_ranges(reader, view.partitions, made.ranges),
            sink=self._sink(layout, commit_id),
        )
        written = self._written(task, reader, made)
        files = written.files
        crash_point(TABLE_BEFORE_COMMIT)
        # 4
        claimed = base.advanced(
            view.topic_id,
            {one.partition: end for one, end in written.ends.items()},
            commit_id=commit_id,
            rejected=[one.path for one in files if one.role is FileRole.REJECTED],
        )
        outcome = commit_files(
            self._store,
            [one for one in files if one.role is not FileRole.REJECTED],
            base=base,
            claimed=claimed,
            wait=self._wait,
            discard=lambda _: self._store.discard(files),
            is_too_old=lambda: self._now_ms() - begun_ms > ROUND_AGE_MS_MAX,
        )
        crash_point(TABLE_AFTER_COMMIT)
        if outcome is CommitOutcome.LANDED:
            settle(claimed, self._rejected, wait=self._wait)
            crash_point(TABLE_AFTER_REJECTED)
        self._count(outcome, files)

    def _written(self, task: RoundTask, reader: ObjectReader, made: Round) -> WrittenRows:
        """The files of a round, and the ends of all its partitions."""
        told = 0

        def advance(count: int) -> None:
            nonlocal told
            told += count
            self._progress.advance(count)

        written = self._engine.run(task, reader, advance)
        ends = {one: written.ends.get(one, taken.end_offset) for one, taken in made.ranges.items()}
        offset_count = sum(end - made.ranges[one].start_offset for one, end in ends.items())
        # Offsets of a compacted topic, or of a transaction's markers, have no record.
        self._progress.advance(offset_count - told)
        return replace(written, ends=ends)

    def _count(self, outcome: CommitOutcome, files: Sequence[WrittenFile]) -> None:
        report = self._report
        if outcome is CommitOutcome.LOST:
            report.lost_rounds += 1
            if report.lost_rounds > LOST_ROUNDS_MAX:
                raise TableUnavailable(
                    f"table {self._store.name}: another writer was first {LOST_ROUNDS_MAX} times,"
                    " or rounds took longer than a day; let one sync at a time work on a table"
                )
            return
        report.commits += 1
        for one in files:
            if one.role is FileRole.REMOVED:
                continue
            report.files += 1
            report.size_bytes += one.size_bytes
            if one.role is FileRole.REJECTED:
                report.rejected_rows += one.record_count
            else:
                report.rows += one.record_count

    @property
    def _rejects(self) -> bool:
        return RAW_COLUMN in self._query.columns

    def _prepare(self, view: TopicView, layout: RowLayout, known: TableOffsets | None) -> None:
        lake_schema = self._query.schema
        schema = layout.schema(lake_schema)
        mode = self._settings.mode
        if known is not None:
            check_mode(known, mode, table=self._store.name)
        if self._rejects:
            # Refused here, the second table is not made either.
            self._store.check(schema)
            # A second table that somebody has dropped does not get its last files again.
            number = 0 if known is None else known.rejected.number
            self._rejected.prepare(
                layout.rejected_schema(lake_schema),
                TableOffsets(topic=view.topic, rejected=RejectedFiles(number=number)),
            )
        self._store.prepare(schema, TableOffsets(topic=view.topic, mode=mode))

    def _sink(self, layout: RowLayout, commit_id: str) -> SinkPlan:
        lake_schema = self._query.schema
        rejected = None
        if self._rejects:
            rejected = Target(
                schema=layout.rejected_schema(lake_schema), writer=self._rejected.writer(commit_id)
            )
        return SinkPlan(
            layout=layout,
            rows=Target(schema=layout.schema(lake_schema), writer=self._store.writer(commit_id)),
            rejected=rejected,
            upsert=self._upsert(),
            file_bytes=self._settings.file_bytes,
        )

    def _upsert(self) -> UpsertPlan | None:
        if self._settings.mode is Mode.APPEND:
            return None
        names = self._settings.names
        return UpsertPlan(
            existing=self._store.files_by(names["partition"]),
            partition=names["partition"],
            offset=names["offset"],
            key=names["key"],
        )

    def _layout(self, view: TopicView) -> RowLayout:
        values = self._query.values
        layout = RowLayout(
            topic=view.topic,
            topic_id=view.topic_id,
            names=self._settings.names,
            value_type=self._query.schema.field("value").type,
            mode=self._settings.mode,
        )
        assert values is None or values.type == layout.value_type, values
        return layout

    def _next_round(
        self,
        view: TopicView,
        offsets: TableOffsets,
        ends: dict[TopicPartition, Offset],
        reader: ObjectReader,
    ) -> Round:
        wanted = self._missing(view, offsets, ends)
        catalog = Catalog(reader)
        entries = {
            one.topic_partition: entries_of(one, wanted[one.topic_partition], catalog)
            for one in view.partitions
            if one.topic_partition in wanted
        }
        bytes_max = self._settings.round_bytes or self._engine.round_bytes
        return next_round(wanted, entries, bytes_max=bytes_max)

    def _left(
        self, view: TopicView, offsets: TableOffsets, ends: dict[TopicPartition, Offset]
    ) -> int:
        return sum(one.offset_count for one in self._missing(view, offsets, ends).values())

    def _missing(
        self, view: TopicView, offsets: TableOffsets, ends: dict[TopicPartition, Offset]
    ) -> Any:
        return missing_ranges(
            view, offsets, ends, fail_on_data_loss=self._query.options.fail_on_data_loss
        )
