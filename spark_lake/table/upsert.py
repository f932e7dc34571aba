"""Upserts: of each key the record with the greatest offset is a row, and null deletes it.

    records of a round -> the newest of each key, by partition of the topic
    files of the table -> those with one of these keys: rewritten without them
    the commit         -> removes what was rewritten, adds the rest and the newest records

Copy on write: every engine reads the table, and the commit is one, as of an append. Its cost is the
rewritten files: all files of a partition of the topic, if the keys of a round are spread over them.
Equality deletes would be cheaper to write, but few engines read them, and pyiceberg does not.

A file has rows of one partition of the topic, so partitions are upserted side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark_lake.table.buffers import FileBuffers
from strandline.spark_lake.table.conform import conform
from strandline.spark_lake.table.store import FileRole, FileWriter, WrittenFile

# A column of rows that are to be upserted, and of no table.
DELETED = "strandline.deleted"
# Rows in memory of a partition after which older rows of a key are dropped.
REDUCE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertPlan:
    """The files of a table by partition of the topic, and the columns that are a row's identity."""

    existing: Mapping[int, Sequence[WrittenFile]]
    partition: str
    offset: str
    key: str


class NewestRows:
    """Of rows of one partition of the topic, the one with the greatest offset of each key.

    Memory: `size_bytes`, which are these rows, and REDUCE_BYTES that may have older ones.
    """

    def __init__(self, *, key: str, offset: str) -> None:
        self._key = key
        self._offset = offset
        self._tables: list[Any] = []
        self._reduced_bytes = 0
        self._pending_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._reduced_bytes + self._pending_bytes

    def add(self, rows: Any) -> None:
        """Takes a `pyarrow.RecordBatch`."""
        self._tables.append(pa.Table.from_batches([rows]))
        self._pending_bytes += rows.nbytes
        if self._pending_bytes > REDUCE_BYTES:
            self._tables = [self.rows()]
            self._reduced_bytes, self._pending_bytes = self._tables[0].nbytes, 0

    def rows(self) -> Any:
        """A `pyarrow.Table`; of no rows one without columns."""
        if not self._tables:
            return pa.table({})
        rows = pa.concat_tables(self._tables)
        pairs = rows.select([self._key, self._offset]).group_by(self._key)
        last = pairs.aggregate([(self._offset, "max")]).column(f"{self._offset}_max")
        # Offsets are unique within a partition.
        return rows.filter(pc.is_in(rows.column(self._offset), value_set=last.combine_chunks()))


class UpsertBuffers:
    """Takes rows in order of partition and offset, until `size_bytes` is what memory allows."""

    def __init__(self, plan: UpsertPlan, writer: FileWriter, files: FileBuffers) -> None:
        """`files` takes the rows of the table."""
        self._plan = plan
        self._writer = writer
        self._files = files
        self._newest: dict[int, NewestRows] = {}

    @property
    def size_bytes(self) -> int:
        """Of the newest rows of the round's keys."""
        return sum(one.size_bytes for one in self._newest.values())

    def add(self, rows: Any) -> None:
        """Takes a `pyarrow.RecordBatch` with the column DELETED, each row with a key."""
        plan = self._plan
        assert not rows.column(plan.key).null_count, plan
        for partition in pc.unique(rows.column(plan.partition)).to_pylist():
            if partition not in self._newest:
                self._newest[partition] = NewestRows(key=plan.key, offset=plan.offset)
            part = rows.filter(pc.equal(rows.column(plan.partition), partition))
            self._newest[partition].add(part)

    def finish(self) -> Iterator[WrittenFile]:
        """The files that the commit removes, and those it adds, but for rows left in `files`."""
        for partition, newest in self._newest.items():
            rows = newest.rows()
            gone = rows.column(DELETED)
            kept = rows.filter(pc.invert(gone)).drop_columns([DELETED])
            yield from self._rewritten(
                self._plan.existing.get(partition, ()), rows.column(self._plan.key)
            )
            yield from self._write(conform(kept, self._writer.schema))

    def _rewritten(self, files: Sequence[WrittenFile], keys: Any) -> Iterator[WrittenFile]:
        """The files that have one of these keys, as removed, and what is left of them."""
        key = self._plan.key
        known = keys.cast(self._writer.schema.field(key).type).combine_chunks()
        for file in files:
            is_changed = pc.is_in(self._writer.read(file, [key]).column(key), value_set=known)
            if pc.any(is_changed).as_py():
                yield replace(file, role=FileRole.REMOVED)
                rest = self._writer.read(file)
                yield from self._write(rest.filter(pc.invert(is_changed)))

    def _write(self, rows: Any) -> Iterator[WrittenFile]:
        for batch in rows.to_batches():
            if batch.num_rows:
                yield from self._files.add(batch)
