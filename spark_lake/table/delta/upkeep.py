"""Checks and maintenance of a Delta table: deltalake deletes, compacts and vacuums.

    1 retention     what is dropped becomes a property of the table, then DELETE drops it
    2 small files   OPTIMIZE, into files of up to `small_bytes`
    3 versions      a checkpoint; logs older than `delta.logRetentionDuration` are deleted
    4 orphans       VACUUM: files that no version younger than `expire_age_ms` needs

Each step is a commit, or none. Syncs may run meanwhile, and a later run goes on after a death: the
offsets are an application transaction, which no step touches.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pf
from deltalake import WriterProperties
from deltalake.exceptions import CommitFailedError

from strandline.spark_lake.table.delta.store import DeltaStore
from strandline.spark_lake.table.delta.writer import is_folder_too_long
from strandline.spark_lake.table.errors import naming_table
from strandline.spark_lake.table.iceberg.places import place_of
from strandline.spark_lake.table.offsets import TableOffsets
from strandline.spark_lake.table.upkeep.maintain import MaintainReport, MaintainSettings
from strandline.spark_lake.table.upkeep.maintained import LiveFile, load_made
from strandline.spark_lake.table.upkeep.retention import Kept

HOUR_MS = 3_600_000


class DeltaUpkeep:
    """TableUpkeep of a store."""

    def __init__(self, store: DeltaStore) -> None:
        self._store = store

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def schema(self) -> Any:
        return self._store.schema

    def load(self) -> TableOffsets | None:
        return self._store.load()

    def property_of(self, name: str) -> str | None:
        return self._store.loaded.metadata().configuration.get(name)

    def live_files(self) -> list[LiveFile]:
        with naming_table(self.name, "read"):
            actions = pa.table(self._store.loaded.get_add_actions(flatten=True)).to_pylist()
        bounds = {unquote(one["path"]): _bounds(one) for one in actions}
        return [
            LiveFile(
                path=one.path,
                size_bytes=one.size_bytes,
                record_count=one.record_count,
                key=tuple(one.entry.partition.items()),
                bounds=bounds[one.entry.place],
                entry=one,
            )
            for one in self._store.files()
        ]

    def as_stored(self, rows: Any) -> Any:
        """In the log of a Delta table an empty text is null."""
        for name in self._store.loaded.metadata().partition_columns:
            position = rows.schema.get_field_index(name)
            if position >= 0 and pa.types.is_string(rows.column(position).type):
                column = rows.column(position)
                text = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
                rows = rows.set_column(position, rows.schema.field(position), text)
        return rows

    def read(self, file: LiveFile, columns: Sequence[str] | None = None) -> Iterator[Any]:
        rows = self._store.writer(uuid.uuid4().hex).read(file.entry, columns)
        yield from rows.combine_chunks().to_batches()

    def maintain(self, kept: Kept | None, settings: MaintainSettings) -> MaintainReport:
        load_made(self)
        table, report = self._store.loaded, MaintainReport(table=self.name)
        # Parquet's own names, which deltalake checks.
        codec: Any = "UNCOMPRESSED" if (name := self._store.codec.upper()) == "NONE" else name
        writing = WriterProperties(compression=codec)
        with naming_table(self.name, "maintain"):
            # 1
            if kept is not None and (dropped := _dropped(kept)):
                table.alter.set_table_properties(kept.properties, raise_if_not_exists=False)
                done = table.delete(dropped, writer_properties=writing)
                report.dropped_rows = done["num_deleted_rows"] or 0
            # 2
            try:
                done = table.optimize.compact(
                    self._compactable(), target_size=settings.small_bytes, writer_properties=writing
                )
                report.rewritten_files = done["numFilesRemoved"]
                report.new_files = done["numFilesAdded"]
            except CommitFailedError:
                # Another writer replaced one of the files; the next run compacts what is there.
                report.lost_rounds += 1
            # 3
            table.create_checkpoint()
            table.cleanup_metadata()
            # 4
            age_ms = max(settings.expire_age_ms, settings.orphan_age_ms)
            deleted = table.vacuum(
                retention_hours=max(0, age_ms // HOUR_MS),
                dry_run=False,
                enforce_retention_duration=False,
                full=not self._has_tables_below(),
            )
            report.orphans = len(deleted)
        return report

    def _compactable(self) -> list[tuple[str, str, Any]] | None:
        """Filters of partitions: deltalake cannot make the folders of long texts, which stay."""
        found = [one.entry.partition for one in self._store.files()]
        filters: list[tuple[str, str, Any]] = []
        for column in self._store.loaded.metadata().partition_columns:
            values = {one[column] for one in found}
            long = {one for one in values if is_folder_too_long(self.name, {column: one})}
            if long:
                filters.append((column, "not in", sorted(str(one) for one in long)))
        return filters or None

    def _has_tables_below(self) -> bool:
        """Whether there is a table in a folder below, whose files look like orphans of this one."""
        system, path, _ = place_of(self._store.io, self.name)
        found = system.get_file_info(pf.FileSelector(path, recursive=True, allow_not_found=True))
        return any(
            one.path.endswith(".metadata.json")
            or ("/_delta_log/" in one.path and not one.path.startswith(f"{path}/_delta_log/"))
            for one in found
        )


def _dropped(kept: Kept) -> str:
    """The rows that go, as SQL; empty if none does. A row without a timestamp stays."""
    column = {part: f'"{name}"' for part, name in kept.names.items()}
    wanted = [
        f"({column['topic_id']} = '{topic_id}' AND {column['partition']} = {partition}"
        f" AND {column['offset']} < {start})"
        for topic_id, starts in kept.starts.items()
        for partition, start in starts.items()
        if start
    ]
    if kept.before_ms:
        moment = dt.datetime.fromtimestamp(kept.before_ms / 1000, dt.UTC)
        wanted.append(f"{column['timestamp']} < '{moment.isoformat()}'")
    return " OR ".join(wanted)


def _bounds(action: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Least and greatest value by column; of times in microseconds, as in Iceberg."""
    found = {}
    for name, value in action.items():
        kind, _, column = name.partition(".")
        if kind == "partition":
            found[column] = (value, value)
        elif kind == "min" and value is not None and action.get(f"max.{column}") is not None:
            found[column] = (_number(value), _number(action[f"max.{column}"]))
    return found


def _number(bound: Any) -> Any:
    return round(bound.timestamp() * 1e6) if isinstance(bound, dt.datetime) else bound
