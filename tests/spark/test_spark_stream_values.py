"""Streams of decoded values whose schema changes, and whose registry is away, while they run."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from strandline.storage.records.batch.record import Record, encode_batch
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder
from tests.unit.spark_lake.fake_registry import FakeRegistry

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

LATEST = "/subjects/t-value/versions/latest"


def order(**types: Any) -> dict[str, Any]:
    """A schema of optional fields, so that each version can read the others."""
    fields = [{"name": n, "type": ["null", t], "default": None} for n, t in types.items()]
    return {"type": "record", "name": "Order", "fields": fields}


FIRST = order(id="long")
WIDER = order(id="long", note="string")
OTHER = order(id="string")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    server = FakeRegistry()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def avro(schema_id: int, schema: Any, **row: Any) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(schema), row)
    return b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


class Topic:
    """Topic `t`, a segment at a time."""

    def __init__(self, folder: Path) -> None:
        self.archive = ArchiveBuilder(folder)
        self.archive.add_topic("t")
        self._next_offset = 0

    def add(self, *values: bytes | None) -> None:
        records = [
            Record(offset=self._next_offset + n, timestamp_ms=START_MS, key=None, value=value)
            for n, value in enumerate(values)
        ]
        self._next_offset += len(values)
        self.archive.add_segment("t", [encode_batch(records)])


def run(spark: SparkSession, topic: Topic, folder: Path, **options: str) -> None:
    """One run over what is available now, with the folder's checkpoint."""
    given = {name.replace("registry", "schemaRegistry."): text for name, text in options.items()}
    query = (
        spark.readStream.format("strandline")
        .options(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="2", **given)
        .load(topic.archive.url)
        .selectExpr("offset", "to_json(value) value", *["_corrupt"] * ("corrupt" in given.values()))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def rows(spark: SparkSession, folder: Path) -> dict[int, Any]:
    """Values by offset, each of which came once."""
    found = spark.read.parquet(str(folder / "rows")).orderBy("offset").collect()
    assert [row["offset"] for row in found] == list(range(len(found)))
    return {row["offset"]: row["value"] and json.loads(row["value"]) for row in found}


@pytest.mark.heavy
def test_a_schema_that_changes_under_a_stream_costs_no_row(
    spark: SparkSession, tmp_path: Path, registry: FakeRegistry
) -> None:
    """Newer schemas are read into that of the query, others by the policy, once each."""
    registry.answers = {LATEST: {"id": 1, "schema": json.dumps(FIRST)}}
    for number, schema in enumerate((FIRST, WIDER, OTHER), 1):
        registry.answers[f"/schemas/ids/{number}"] = {"schema": json.dumps(schema)}
    topic = Topic(tmp_path / "archive")
    topic.add(avro(1, FIRST, id=0), avro(1, FIRST, id=1))
    options = {"valueFormat": "avro", "registryurl": registry.url, "valueErrors": "corrupt"}
    run(spark, topic, tmp_path, **options)
    # A field more, a field of another type, a schema that nobody registered, a tombstone, no Avro.
    bad = [avro(3, OTHER, id="x"), avro(4, FIRST, id=6), b"x"]
    topic.add(avro(2, WIDER, id=2, note="n"), bad[0], None, bad[1], bad[2], avro(1, FIRST, id=7))
    run(spark, topic, tmp_path, **options)
    expected = [{"id": 0}, {"id": 1}, {"id": 2}, None, None, None, None, {"id": 7}]
    assert list(rows(spark, tmp_path).values()) == expected
    kept = spark.read.parquet(str(tmp_path / "rows")).where("_corrupt is not null")
    assert sorted(bytes(row["_corrupt"]) for row in kept.collect()) == sorted(bad)
    # The registry has a newer schema: the next run is made with it.
    registry.answers[LATEST] = {"id": 2, "schema": json.dumps(WIDER)}
    topic.add(avro(2, WIDER, id=8, note="n"), avro(1, FIRST, id=9))
    run(spark, topic, tmp_path, **options)
    assert rows(spark, tmp_path)[8] == {"id": 8, "note": "n"}
    assert rows(spark, tmp_path)[9] == {"id": 9}


def test_a_stream_ends_where_a_value_does_not_parse_and_goes_on_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With policy `fail` nothing of the batch is kept; the same checkpoint goes on with another."""
    topic = Topic(tmp_path / "archive")
    topic.add(b'{"a": 1}', b'{"a": 2}', b'{"a": 3}', b'{"a": "text"}', b'{"a": 5, "b": [1]}')
    options = {"valueFormat": "json", "valueSchema": "a INT"}
    with pytest.raises(StreamingQueryException, match=r"at offset 3 does not parse.*valueErrors"):
        run(spark, topic, tmp_path, **options)
    assert list(rows(spark, tmp_path).values()) == [{"a": 1}, {"a": 2}]
    run(spark, topic, tmp_path, **options, valueErrors="null")
    topic.add(b'{"a": 6, "b": [2]}')
    # And with more columns.
    run(spark, topic, tmp_path, **{**options, "valueSchema": "a INT, b ARRAY<INT>"})
    last = {"a": 6, "b": [2]}
    assert list(rows(spark, tmp_path).values()) == [
        *({"a": n} for n in (1, 2, 3)),
        None,
        {"a": 5},
        last,
    ]


@pytest.mark.heavy
def test_a_registry_that_goes_away_ends_a_stream_and_costs_no_row(
    spark: SparkSession, tmp_path: Path, registry: FakeRegistry
) -> None:
    """Whatever the policy: not to know a schema is no fault of the value."""
    registry.answers = {
        LATEST: {"id": 1, "schema": json.dumps(FIRST)},
        "/schemas/ids/1": {"schema": json.dumps(FIRST)},
        "/schemas/ids/2": {"schema": json.dumps(WIDER)},
    }
    topic = Topic(tmp_path / "archive")
    topic.add(
        avro(1, FIRST, id=0), avro(1, FIRST, id=1), avro(2, WIDER, id=2), avro(1, FIRST, id=3)
    )
    options = {"valueFormat": "avro", "registryurl": registry.url, "valueErrors": "null"}
    # The schema of the query it has, and those of the values it answers with nonsense.
    answers = dict(registry.answers)
    registry.answers["/schemas/ids/2"] = ["no schema"]
    with pytest.raises(StreamingQueryException, match=r"/schemas/ids/2.*is this a schema registry"):
        run(spark, topic, tmp_path, **options)
    assert list(rows(spark, tmp_path).values()) == [{"id": 0}, {"id": 1}]
    registry.answers = answers
    run(spark, topic, tmp_path, **options)
    assert list(rows(spark, tmp_path).values()) == [{"id": n} for n in range(4)]
