"""An Iceberg table for checks and maintenance: its files, replacements, snapshots and orphans.

Files are read here, not by pyiceberg, whose reader makes a null list an empty one: columns are
matched by field id, so that a column that somebody renamed is found.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.fs as pf
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from strandline.spark_lake.table.errors import (
    FilesOutdated,
    TableRefused,
    naming_table,
)
from strandline.spark_lake.table.iceberg.places import (
    FOLDERS,
    delete_paths,
    normalized,
    other_table,
    place_of,
)
from strandline.spark_lake.table.iceberg.reader import read_rows
from strandline.spark_lake.table.iceberg.store import IcebergStore, remove_snapshots
from strandline.spark_lake.table.offsets import TableOffsets
from strandline.spark_lake.table.store import FileWriter, WrittenFile
from strandline.spark_lake.table.upkeep.maintain import (
    MaintainReport,
    MaintainSettings,
    Maintenance,
)
from strandline.spark_lake.table.upkeep.maintained import LiveFile, StoredFile
from strandline.spark_lake.table.upkeep.retention import Kept
from strandline.storage.clock import SystemClock


class IcebergTable:
    """The table of a store: TableUpkeep and MaintainedTable."""

    def __init__(self, store: IcebergStore, order: Sequence[tuple[str, str]] = ()) -> None:
        """`order` is that of rewritten files, if the table has none."""
        self._store = store
        self._order = order

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def schema(self) -> Any:
        return schema_to_pyarrow(self._table.schema())

    def load(self) -> TableOffsets | None:
        return self._store.load()

    def property_of(self, name: str) -> str | None:
        return self._table.properties.get(name)

    def maintain(self, kept: Kept | None, settings: MaintainSettings) -> MaintainReport:
        return Maintenance(self, settings, now_ms=SystemClock().now_ms, wait=time.sleep).run(kept)

    def writer(self, attempt: str) -> FileWriter:
        writer = self._store.writer(attempt)
        # A table whose columns have other names keeps no order that nobody has given it.
        has_order = all(column in writer.schema.names for column, _ in self._order)
        order = self._order if has_order else ()
        return replace(writer, sort_columns=writer.sort_columns or order)

    def discard(self, files: Sequence[WrittenFile]) -> None:
        self._store.discard(files)

    def live_files(self) -> list[LiveFile]:
        with naming_table(self._store.name, "read"):
            schema = self._table.schema()
            return [
                LiveFile(
                    path=task.file.file_path,
                    size_bytes=task.file.file_size_in_bytes,
                    record_count=task.file.record_count,
                    key=(task.file.spec_id, _values(task.file.partition)),
                    bounds=_bounds(task.file, schema),
                    has_deletes=bool(task.delete_files),
                    entry=task.file,
                )
                for task in self._table.scan(row_filter=AlwaysTrue()).plan_files()
            ]

    def as_stored(self, rows: Any) -> Any:
        return rows

    def read(self, file: LiveFile, columns: Sequence[str] | None = None) -> Iterator[Any]:
        with naming_table(self._store.name, f"read {file.path} of"):
            yield from read_rows(self._table.io, self._table.metadata, file.entry, columns)

    def replace(
        self, old: Sequence[LiveFile], new: Sequence[WrittenFile], properties: Mapping[str, str]
    ) -> None:
        spec_id = self._table.metadata.default_spec_id
        if any(one.entry.spec_id != spec_id for one in new):
            raise FilesOutdated(f"table {self.name} is partitioned otherwise now")
        # Rows that were deleted meanwhile are in our new files: they would come back.
        whole = {one.path for one in self.live_files() if not one.has_deletes}
        if changed := [one.path for one in old if one.path not in whole]:
            raise FilesOutdated(f"table {self.name} has no {changed[0]} any more, or deletes of it")

        def fill(transaction: Transaction) -> None:
            if properties:
                transaction.set_properties(dict(properties))
            with transaction.update_snapshot().overwrite() as overwrite:
                for gone in old:
                    overwrite.delete_data_file(gone.entry)
                for one in new:
                    overwrite.append_data_file(one.entry.data_file)

        self._store.commit_once(fill)

    def expire(self, before_ms: int) -> int:
        metadata = self._table.metadata
        kept = {one.snapshot_id for one in metadata.refs.values()}
        old = [
            one.snapshot_id
            for one in metadata.snapshots
            if one.timestamp_ms < before_ms and one.snapshot_id not in kept
        ]
        if old:
            self._store.commit_once(lambda transaction: remove_snapshots(transaction, old))
        return len(old)

    def stored_files(self) -> list[StoredFile]:
        with naming_table(self._store.name, "list the files of"):
            system, path, prefix = place_of(self._table.io, self._table.location())
            return [
                StoredFile(
                    path=prefix + one.path,
                    size_bytes=one.size or 0,
                    modified_ms=(one.mtime_ns or 0) // 1_000_000,
                )
                for folder in FOLDERS
                for one in system.get_file_info(
                    pf.FileSelector(f"{path}/{folder}", recursive=True, allow_not_found=True)
                )
                if one.type is pf.FileType.File
            ]

    def named_paths(self) -> set[str]:
        table = self._table
        metadata = table.metadata
        with naming_table(self._store.name, "read"):
            named = {table.metadata_location, *(e.metadata_file for e in metadata.metadata_log)}
            for snapshot in metadata.snapshots:
                named.add(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    if manifest.manifest_path in named:
                        continue
                    named.add(manifest.manifest_path)
                    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                        named.add(entry.data_file.file_path)
            for statistics in (*metadata.statistics, *metadata.partition_statistics):
                named.add(statistics.statistics_path)
        self._refuse_other_table(named)
        return {normalized(table.io, one, table.location()) for one in named}

    def delete(self, paths: Sequence[str]) -> int:
        return delete_paths(self._table.io, paths)

    def _refuse_other_table(self, named: set[str]) -> None:
        """Files of a table of another catalog would look like orphans."""
        table = self._table
        other = other_table(table.io, table.location(), str(table.metadata.table_uuid), known=named)
        if other is not None:
            raise TableRefused(
                f"{table.location()} has the table {other.uuid} too, which another catalog names:"
                " nothing was deleted. Give one of the two a --warehouse of its own, or delete"
                " the metadata files of the one that is no longer used"
            )

    @property
    def _table(self) -> Table:
        return self._store.loaded


def _values(record: Record) -> tuple[Any, ...]:
    return tuple(record[number] for number in range(len(record)))


def _bounds(file: DataFile, schema: Schema) -> dict[str, tuple[Any, Any]]:
    found = {}
    for one in schema.fields:
        lower, upper = (
            (sides or {}).get(one.field_id) for sides in (file.lower_bounds, file.upper_bounds)
        )
        if isinstance(one.field_type, PrimitiveType) and lower is not None and upper is not None:
            found[one.name] = (from_bytes(one.field_type, lower), from_bytes(one.field_type, upper))
    return found
