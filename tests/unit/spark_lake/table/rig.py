"""An archive of topic `orders` with JSON values, tables of it, and what a table has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from strandline.spark_lake.table.run import TableRequest, TableRun
from strandline.spark_lake.table.sync import SyncReport
from strandline.storage.records.batch.record import Header, Record
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches

SCHEMA = "id BIGINT, city STRING, nested STRUCT<a: INT>, tags ARRAY<STRING>"


class NoProgress:
    def begin(self, what: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...


def value_of(offset: int) -> bytes | None:
    if offset % 7 == 3:
        return None
    tags = {"tags": ["t"] * (offset % 3)} if offset % 2 else {}
    return json.dumps({"id": offset, "city": "x", "nested": {"a": offset}, **tags}).encode()


def add_rows(archive: ArchiveBuilder, *, base: int, count: int = 40) -> None:
    for partition in (0, 1):
        records = [
            Record(
                offset=offset,
                timestamp_ms=START_MS + offset * 3_600_000,
                key=f"k{offset % 5}".encode(),
                value=value_of(offset),
                headers=(Header("h", b"1"),) if offset % 2 else (),
            )
            for offset in range(base, base + count)
        ]
        archive.add_segment("orders", make_batches(records), partition=partition)


def make_run(
    archive: ArchiveBuilder,
    schema: str = SCHEMA,
    options: Mapping[str, str] | None = None,
    **more: Any,
) -> TableRun:
    options = {"valueFormat": "json", "valueSchema": schema, **(options or {})}
    return TableRun(
        TableRequest(
            remote=archive.url,
            options=options,
            **{"topic": "orders", "table": "lake.orders", "round_bytes": 1, **more},
        )
    )


def sync(archive: ArchiveBuilder, schema: str = SCHEMA, **more: Any) -> SyncReport:
    return make_run(archive, schema, **more).sync(NoProgress())


def rows_of(run: TableRun) -> list[tuple[int, int]]:
    table = iceberg(run).scan().to_arrow()
    return sorted(
        zip(
            table.column("_topic_partition").to_pylist(),
            table.column("_offset").to_pylist(),
            strict=True,
        )
    )


def every(offsets: Sequence[int] | range) -> list[tuple[int, int]]:
    return sorted((partition, offset) for partition in (0, 1) for offset in offsets)


def data_files(archive: ArchiveBuilder) -> list[str]:
    folder = archive.path.with_name("archive-tables")
    return [str(path) for path in folder.rglob("*.parquet")]


def recreate_topic(archive: ArchiveBuilder, *, partitions: int = 2) -> None:
    """Deletes topic `orders` with its archive, and makes it anew without records."""
    old = archive.object_path(archive.topics["orders"].info.key)
    shutil.rmtree(old.parent)
    archive.add_topic("orders", partitions=partitions)


def iceberg(run: TableRun) -> Any:
    """The table of pyiceberg, as it is now."""
    assert run.store.load() is not None
    return run.store.loaded


def named_files(run: TableRun) -> list[str]:
    """The data files of the newest snapshot."""
    return sorted(
        task.file.file_path.removeprefix("file://") for task in iceberg(run).scan().plan_files()
    )
