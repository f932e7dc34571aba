"""Tables of one topic for readers that are not ours, and the rows that each must find.

    appended     two syncs
    newest       the same records, --mode upsert
    evolved      the second sync has more fields and, in Iceberg, wider ones
    maintained   small files rewritten, snapshots expired, files deleted

A reader gives a `pyarrow.Table`. The rows that it must have are those of the lake's own scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.spark_lake import scan
from strandline.spark_lake.table.columns import DEFAULT_NAMES
from strandline.spark_lake.table.upkeep.maintain import DAY_MS, MaintainSettings
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.rig import SCHEMA, add_rows, make_run, sync

Rows = list[dict[str, Any]]

FIRST_ROWS = 80
# What the first sync of `evolved` knows of the values; SCHEMA is what the second one knows.
FEWER_FIELDS = {
    "iceberg": "id INT, nested STRUCT<a: INT>, tags ARRAY<STRING>",
    "delta": "id BIGINT, nested STRUCT<a: INT>, tags ARRAY<STRING>",
}
TABLES = {
    "iceberg": ("appended", "newest", "evolved", "maintained"),
    "delta": ("appended", "newest", "evolved"),
}
# Everything is small, and everything is old.
NOW = MaintainSettings(
    file_bytes=1 << 20, small_files_min=2, expire_age_ms=-DAY_MS, orphan_age_ms=-DAY_MS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesToRead:
    """The tables `lake.NAME` of one archive, in one format."""

    archive: ArchiveBuilder
    kind: str

    @property
    def warehouse(self) -> Path:
        return self.archive.path.with_name(f"{self.archive.path.name}-tables")

    def load(self, name: str) -> Any:
        """The table of pyiceberg."""
        from pyiceberg.catalog import load_catalog

        uri = f"sqlite:///{self.warehouse}/catalog.db"
        return load_catalog("strandline", type="sql", uri=uri).load_table(f"lake.{name}")

    def files(self, name: str) -> list[str]:
        """The data files that the table names, for an engine that reads Parquet alone."""
        if self.kind == "delta":
            from deltalake import DeltaTable

            return list(DeltaTable(self.warehouse / "lake" / name).file_uris())
        return [task.file.file_path for task in self.load(name).scan().plan_files()]

    def expected(self, name: str) -> Rows:
        rows = [_row(one) for one in _scanned(self.archive)]
        if name == "newest":
            newest = {(row["_topic_partition"], row["_key"]): row for row in rows}
            return [row for row in newest.values() if not row.pop("deleted")]
        for row in rows:
            del row["deleted"]
            if name == "evolved" and row["_offset"] < FIRST_ROWS:
                row["city"] = None
        return rows


def make_tables(folder: Path, kind: str, **more: Any) -> TablesToRead:
    """`more` says where they lie, as to `make_run`; a folder beside the archive unless it does."""
    archive = ArchiveBuilder(folder / "archive")
    archive.add_topic("orders", partitions=2)
    for base in range(0, FIRST_ROWS, 40):
        add_rows(archive, base=base)
    _sync_all(archive, kind, FEWER_FIELDS[kind], more)
    add_rows(archive, base=FIRST_ROWS)
    _sync_all(archive, kind, SCHEMA, more)
    if "maintained" in TABLES[kind]:
        done = make_run(archive, table="lake.maintained", **more).maintain(None, NOW)
        assert done.rewritten_files > done.new_files > 0
        assert done.expired_snapshots > 0
        assert done.orphans > 0
    return TablesToRead(archive=archive, kind=kind)


def _sync_all(archive: ArchiveBuilder, kind: str, evolved: str, more: Mapping[str, Any]) -> None:
    for name in TABLES[kind]:
        schema = evolved if name == "evolved" else SCHEMA
        mode = "upsert" if name == "newest" else "append"
        sync(archive, schema, table=f"lake.{name}", format=kind, mode=mode, **more)


def _scanned(archive: ArchiveBuilder) -> Rows:
    columns = ["partition", "offset", "timestamp", "key", "headers", "value"]
    options = {"valueFormat": "json", "valueSchema": SCHEMA}
    rows: Rows = (
        scan(archive.url, "orders", columns=columns, options=options).read_all().to_pylist()
    )
    return rows


def _row(record: dict[str, Any]) -> dict[str, Any]:
    value = record.pop("value")
    fields = value or dict.fromkeys(("id", "city", "nested", "tags"))
    named = {DEFAULT_NAMES[name]: part for name, part in record.items()}
    return {**named, **fields, "deleted": not value}


def rows_of(table: pa.Table, expected: Iterable[dict[str, Any]]) -> Rows:
    """The columns of the expected rows, in order of partition and offset."""
    columns = list(next(iter(expected)))
    return in_order(table.select(columns).to_pylist())


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["_topic_partition"], row["_offset"]))
