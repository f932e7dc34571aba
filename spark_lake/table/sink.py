"""From rows of the lake to files: those of the table, and those that it cannot have.

    batch of the lake -> rows                         -> buffers by partition of the table -> files
                      -> those that do not parse, or
                         that the table cannot have   -> buffers of the second table       -> files

A plan is picklable: a task of Spark opens its own sink. Both tables' files are made in one pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from strandline.spark_lake.table.buffers import BUFFERS_BYTES_MAX, FileBuffers
from strandline.spark_lake.table.columns import RowLayout
from strandline.spark_lake.table.store import FileRole, FileWriter, WrittenFile
from strandline.spark_lake.table.upsert import UpsertBuffers, UpsertPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A table that takes rows of `schema`."""

    schema: Any
    writer: FileWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """The tables of a round; `rejected` None if a row that the table cannot have ends the sync."""

    layout: RowLayout
    rows: Target
    rejected: Target | None
    # None: rows are appended.
    upsert: UpsertPlan | None
    file_bytes: int
    # Of the rows of all files that a worker has not written yet; and of those that it upserts.
    buffers_bytes: int = BUFFERS_BYTES_MAX

    def renamed(self) -> SinkPlan:
        """The plan of another attempt, whose files have other names."""
        rejected = self.rejected
        return replace(
            self,
            rows=replace(self.rows, writer=self.rows.writer.renamed()),
            rejected=rejected and replace(rejected, writer=rejected.writer.renamed()),
        )

    def open(self) -> RowSink:
        return RowSink(self)

    def buffers(self, writer: FileWriter) -> FileBuffers:
        return FileBuffers(writer, file_bytes=self.file_bytes, buffers_bytes=self.buffers_bytes)

    def discard(self, files: Sequence[WrittenFile]) -> None:
        """Deletes files that no commit names."""
        self.rows.writer.discard(files)


class RowSink:
    """Takes the batches of one task. Each method yields the files that it wrote."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._rows = plan.buffers(plan.rows.writer)
        self._changes: UpsertBuffers | None = None
        if plan.upsert is not None:
            self._changes = UpsertBuffers(plan.upsert, plan.rows.writer, self._rows)
        self._rejected: FileBuffers | None = None
        if plan.rejected is not None:
            self._rejected = plan.buffers(plan.rejected.writer)

    def is_full(self) -> bool:
        """Whether rows to be upserted fill the memory: then this was the last batch."""
        changes = self._changes
        return changes is not None and changes.size_bytes >= self._plan.buffers_bytes

    def add(self, batch: Any) -> Iterator[WrittenFile]:
        """Takes a `pyarrow.RecordBatch` of the lake.

        Raises what the writers raise, and CorruptRecords for a row that no table here can have.
        """
        layout = self._plan.layout
        reasons = layout.reasons(batch)
        if reasons is not None:
            if self._plan.rejected is None or self._rejected is None:
                raise layout.refusal(batch, reasons)
            is_bad, schema = reasons.is_valid(), self._plan.rejected.schema
            bad = layout.rejected_rows(batch.filter(is_bad), reasons.filter(is_bad), schema)
            yield from _as_rejected(self._rejected.add(bad))
            batch = batch.filter(pc.invert(is_bad))
        if batch.num_rows and self._changes is not None:
            self._changes.add(layout.changes(batch, self._plan.rows.schema))
        elif batch.num_rows:
            yield from self._rows.add(layout.rows(batch, self._plan.rows.schema))

    def finish(self) -> Iterator[WrittenFile]:
        """Writes what is left."""
        if self._changes is not None:
            yield from self._changes.finish()
        yield from self._rows.finish()
        if self._rejected is not None:
            yield from _as_rejected(self._rejected.finish())


def _as_rejected(files: Iterator[WrittenFile]) -> Iterator[WrittenFile]:
    for one in files:
        yield replace(one, role=FileRole.REJECTED)
