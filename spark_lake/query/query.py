"""A query over the archive, planned once and read split by split; Spark and `scan` share it.

    Query(options, columns, predicate, residual)      picklable, holds nothing open
      .plan()        manifests -> ScanPlan             in the driver
      .read(split)   split -> Arrow record batches     in an executor, or a thread

`predicate` prunes, and is exact for each returned row; `residual` holds further comparisons that
only drop rows. Each query logs one line (`query_log`).
"""

from __future__ import annotations

import gc
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

from strandline.spark_lake.archive.catalog import Catalog, LakePartition
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.options.options import CORRUPT_COLUMN, SPLIT_BYTES, LakeOptions
from strandline.spark_lake.plan.planner import (
    OffsetRange,
    ScanPlan,
    SelectedSegments,
    assemble,
    select,
    wanted_pages,
)
from strandline.spark_lake.plan.predicate import Comparison, Predicate
from strandline.spark_lake.plan.splits import Split, SplitSizes
from strandline.spark_lake.query.arrow import schema_of
from strandline.spark_lake.query.bounds import BoundsResolver
from strandline.spark_lake.query.error_messages import plain
from strandline.spark_lake.query.pruning import prune_selections
from strandline.spark_lake.query.query_log import log_event, plan_fields
from strandline.spark_lake.query.report import ReportWriter, TaskReport
from strandline.spark_lake.query.row_filter import RowFilter
from strandline.spark_lake.query.split_scan import SplitScan
from strandline.spark_lake.query.worker_reuse import leave_out_what_is_loaded
from strandline.spark_lake.values.decoders.decoder import ValueColumns
from strandline.spark_lake.values.decoding_plan import plan_values
from strandline.storage.errors import StrandlineError
from strandline.storage.model import TopicPartition


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switches garbage collection off: a plan is many small objects, of which none is garbage.

    With 100,000 segments collections would take a third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Query:
    """A picklable query over one archive; it holds no open connection."""

    def __init__(
        self,
        options: LakeOptions,
        *,
        columns: Sequence[str],
        predicate: Predicate | None = None,
        residual: Sequence[Comparison] = (),
    ) -> None:
        self.options = options
        self.columns = tuple(columns)
        self.predicate = predicate or Predicate()
        self.residual = tuple(residual)
        # Number of tasks that Spark runs at once, if known.
        self.task_slots: int | None = None
        wants_values = {"value", CORRUPT_COLUMN} & set(columns)
        self.values = plan_values(options.values, options.selection) if wants_values else None
        self._scan_id = uuid.uuid4().hex
        self.is_salvaging = False

    def renewed(self) -> Query:
        """The query with the registry's newest schema. Raises what `Registry.latest` raises."""
        made = copy(self)
        if self.values is not None and self.values.registry is not None:
            made.values = plan_values(self.options.values, self.options.selection)
        return made

    def salvaging(self) -> Query:
        """The query with a row for each damaged record: its offset, and why in REASON_COLUMN.

        It reads chunk by chunk, in eight times as many requests: only after ObjectCorrupt.
        """
        made = copy(self)
        made.is_salvaging = True
        return made

    @property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the batches."""
        return schema_of(self.columns, None if self.values is None else self.values.type)

    def open(self) -> ObjectReader:
        """Returns a reader of this query's archive; sends no request yet."""
        return ObjectReader(self.options.url, self.options.s3)

    def plan(self, reader: ObjectReader) -> ScanPlan:
        """Reads manifests and plans. Raises what `Catalog` and `BoundsResolver` raise."""
        try:
            with _uncollected():
                return self._planned(reader)
        except StrandlineError as error:
            raise plain(error) from None
        finally:
            leave_out_what_is_loaded()

    def _planned(self, reader: ObjectReader) -> ScanPlan:
        catalog = Catalog(reader)
        catalog.load_cluster()
        selected = catalog.load_partitions(self.options.selection, open_for=self.options.open_for)
        for bounds in (self.options.start, self.options.end):
            bounds.check_names([one.topic_partition for one in selected])
        wanted = [one for one in selected if self.predicate.wants(one.topic_partition)]
        resolver = BoundsResolver(reader, catalog, self.options)
        return self.plan_ranges(reader, selected, resolver.resolve_all(wanted))

    def plan_ranges(
        self,
        reader: ObjectReader,
        selected: Sequence[LakePartition],
        ranges: Mapping[TopicPartition, OffsetRange],
    ) -> ScanPlan:
        """Returns the plan for these offset ranges."""
        made = assemble(
            prune_selections(
                self._selected(Catalog(reader), selected, ranges), reader, self.predicate.keys
            ),
            totals=[one.manifest for one in selected if one.manifest is not None],
            sizes=self._sizes(),
            splits_min=self.options.splits_min,
        )
        empty = tuple(one.topic_partition for one in selected if one.manifest is None)
        made = replace(made, empty=empty)
        if self.options.scan_report is not None:
            statistics = reader.statistics()
            ReportWriter(self.options.scan_report, self._scan_id).write_plan(
                made, requests=statistics.request_count, bytes_read=statistics.bytes_read
            )
        return made

    def log_plan(
        self, made: ScanPlan, reader: ObjectReader, more: Mapping[str, str] | None = None
    ) -> None:
        """Logs the line of a query that Spark reads; `reader` planned it."""
        fields = plan_fields(made, reader.statistics())
        log_event("scan planned", {"scan": self._scan_id, **fields, **(more or {})})

    def read(self, split: Split, reader: ObjectReader) -> Iterator[Any]:
        """One split as `pyarrow.RecordBatch`es of `columns`.

        Raises a TierError or CorruptRecords that names the object and what to do about it.
        """
        values = None
        if self.values is not None:
            values = ValueColumns(
                self.values.decoder(),
                self.values.errors,
                self.columns,
                self.schema,
                has_registry=self.values.registry is not None,
            )
        scan = SplitScan(
            reader,
            split,
            columns=self.columns,
            values=values,
            isolation=self.options.isolation,
            keys=self.predicate.keys,
            row_filter=RowFilter(keys=self.predicate.keys, comparisons=self.residual),
            lost_schema=self.schema if self.is_salvaging else None,
        )
        before = reader.statistics()
        try:
            yield from scan.record_batches()
        except StrandlineError as error:
            raise plain(error) from None
        finally:
            leave_out_what_is_loaded()
            # Also if the caller stops early, because of a LIMIT.
            after = reader.statistics()
            scan.counts.requests = after.request_count - before.request_count
            scan.counts.bytes_read = after.bytes_read - before.bytes_read
            self._tell_task(split, scan.counts)

    @property
    def sizes_are_given(self) -> bool:
        """Whether the options set the size or number of splits; else the task slots do."""
        options = self.options
        return bool(options.split_bytes or options.records_max or options.splits_min > 1)

    def _sizes(self) -> SplitSizes:
        options = self.options
        return SplitSizes(
            split_bytes=options.split_bytes or SPLIT_BYTES,
            records_max=options.records_max,
            task_slots=None if self.sizes_are_given else self.task_slots,
        )

    def _selected(
        self,
        catalog: Catalog,
        selected: Sequence[LakePartition],
        ranges: Mapping[TopicPartition, OffsetRange],
    ) -> list[SelectedSegments]:
        limits = self.predicate.limits
        archived = [
            (one.manifest, ranges[one.topic_partition])
            for one in selected
            if one.manifest is not None and one.topic_partition in ranges
        ]
        pages = catalog.load_pages(
            [page for manifest, found in archived for page in wanted_pages(manifest, found, limits)]
        )
        return [select(manifest, found, limits, pages) for manifest, found in archived]

    def _tell_task(self, split: Split, report: TaskReport) -> None:
        fields: dict[str, str | int] = {"scan": self._scan_id, "split": split.index}
        log_event("split read", fields | report.fields(), level=logging.DEBUG)
        if self.options.scan_report is not None:
            ReportWriter(self.options.scan_report, self._scan_id).write_task(split.index, report)
