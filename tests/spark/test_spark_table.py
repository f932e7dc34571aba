"""`table sync` with Spark's tasks: the table of the local engine, by the same commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from strandline.spark_lake.table import sync
from strandline.spark_lake.table.errors import TaskFailed
from strandline.storage.records.batch.record import Record
from tests.unit.spark_lake.archive.damaged import damage
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = "id BIGINT, nested STRUCT<a: INT>, tags ARRAY<STRING>"
VALUES = {"valueFormat": "json", "valueSchema": SCHEMA, "maxRecordsPerPartition": "50"}


def add_rows(archive: ArchiveBuilder, *, base: int, count: int = 200, bad: int = -1) -> None:
    for partition in (0, 1):
        records = [
            Record(
                offset=offset,
                timestamp_ms=START_MS + offset * 3_600_000,
                key=b"k",
                value=b"{" if offset == bad else value_of(offset),
                headers=(),
            )
            for offset in range(base, base + count)
        ]
        archive.add_segment("orders", make_batches(records), partition=partition, chunk_bytes=1024)


def value_of(offset: int) -> bytes | None:
    if offset % 7 == 3:
        return None
    return b'{"id": %d, "nested": {"a": 1}, "tags": %s}' % (
        offset,
        [b"null", b"[]", b'["x"]'][offset % 3],
    )


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveBuilder:
    made = ArchiveBuilder(tmp_path / "archive")
    made.add_topic("orders", partitions=2)
    add_rows(made, base=0)
    return made


def rows(archive: ArchiveBuilder, table: str) -> list[dict[str, Any]]:
    from pyiceberg.catalog import load_catalog

    uri = f"sqlite:///{archive.path.with_name('archive-tables')}/catalog.db"
    found = load_catalog("strandline", type="sql", uri=uri).load_table(table).scan().to_arrow()
    return sorted(found.to_pylist(), key=lambda row: (row["_topic_partition"], row["_offset"]))


def data_files(archive: ArchiveBuilder) -> list[Path]:
    return list(archive.path.with_name("archive-tables").rglob("*.parquet"))


def test_tasks_of_spark_make_the_table_that_one_process_makes(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    done = sync(spark, archive.url, "orders", "lake.by_spark", options=VALUES)
    assert (done.rows, done.next_offsets) == (400, {0: 200, 1: 200})
    assert sync(spark, archive.url, "orders", "lake.by_spark", options=VALUES).commits == 0
    add_rows(archive, base=200)
    assert sync(spark, archive.url, "orders", "lake.by_spark", options=VALUES).rows == 400
    sync(None, archive.url, "orders", "lake.local", options=VALUES)
    assert rows(archive, "lake.by_spark") == rows(archive, "lake.local")


@pytest.mark.heavy
def test_an_error_of_a_task_is_told_as_it_is_and_leaves_neither_rows_nor_files(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    add_rows(archive, base=200, bad=399)
    with pytest.raises(TaskFailed, match=r"the record at offset 399 does not parse.*valueErrors"):
        sync(spark, archive.url, "orders", "lake.t", options=VALUES, round_bytes=1 << 30)
    assert rows(archive, "lake.t") == []
    whole = sync(spark, archive.url, "orders", "lake.t", options={**VALUES, "valueErrors": "null"})
    assert whole.rows == 800


def test_tasks_of_spark_reject_a_damaged_batch_and_read_the_others(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    (entry,) = archive.manifest("orders", 1).segments
    damage(archive, entry.log_key, lambda content: content.__setitem__(-1, content[-1] ^ 1))
    with pytest.raises(TaskFailed, match=r"CRC of batch at offset 190.* of orders partition 1"):
        sync(spark, archive.url, "orders", "lake.t", options=VALUES)
    done = sync(spark, archive.url, "orders", "lake.t", options=VALUES, on_error="reject")
    assert (done.rows, done.rejected_rows) == (390, 10)
    lost = [(row["_topic_partition"], row["_offset"]) for row in rows(archive, "lake.t_rejected")]
    assert lost == [(1, offset) for offset in range(190, 200)]


def test_tasks_of_spark_upsert_a_partition_each(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    how: dict[str, Any] = {"options": VALUES, "mode": "upsert"}
    for base in (200, 400):
        sync(spark, archive.url, "orders", "lake.newest", **how)
        add_rows(archive, base=base)
    sync(spark, archive.url, "orders", "lake.newest", **how)
    found = [
        (row["_topic_partition"], row["_key"], row["id"]) for row in rows(archive, "lake.newest")
    ]
    assert found == [(0, b"k", 599), (1, b"k", 599)]


def test_tasks_of_spark_write_a_delta_table(spark: SparkSession, archive: ArchiveBuilder) -> None:
    done = sync(spark, archive.url, "orders", "lake.delta", options=VALUES, format="delta")
    assert done.rows == 400
    found = pl.read_delta(f"{archive.path}-tables/lake/delta")
    offsets = sorted(found.select("_topic_partition", "_offset").iter_rows())
    assert offsets == [(partition, offset) for partition in (0, 1) for offset in range(200)]
