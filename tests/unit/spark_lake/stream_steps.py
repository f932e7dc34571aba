"""A stream as Spark calls it: a reader of an archive, and one micro-batch."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadLimit,
)

from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.spark_lake.spark.stream import StrandlineStreamReader
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

Json = dict[str, Any]


def add(archive: ArchiveBuilder, start: int, count: int, *, partition: int = 0) -> None:
    records = make_records(count, base_offset=start)
    archive.add_segment("t", make_batches(records), partition=partition)


def opened(archive: ArchiveBuilder, **options: str) -> StrandlineStreamReader:
    given = {"path": archive.url, "subscribe": "t", "startingOffsets": "earliest", **options}
    source = StrandlineDataSource(given)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StrandlineStreamReader)
    return reader


def through_json(fields: Json) -> Json:
    return dict(json.loads(json.dumps(fields)))


def rows(reader: StrandlineStreamReader, start: Json, end: Json) -> list[tuple[int, int]]:
    return [
        (row["partition"], row["offset"])
        for one in reader.partitions(start, end)
        for batch in reader.read(one)
        for row in batch.to_pylist()
    ]


def step(
    reader: StrandlineStreamReader, start: Json, limit: ReadLimit | None = None
) -> tuple[list[tuple[int, int]], Json]:
    """One micro-batch: its rows and where it ends."""
    end = through_json(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))
    return rows(reader, start, end), end
