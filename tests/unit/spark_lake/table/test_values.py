"""Values of each format are in a table what the lake decodes: nested, null, empty, missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from strandline.spark_lake import scan
from strandline.spark_lake.table import sync
from strandline.spark_lake.table.run import TableRequest, TableRun
from strandline.storage.records.batch.record import Record
from tests.unit.spark_lake.archive_builder import START_MS, make_batches
from tests.unit.spark_lake.fake_registry import FakeRegistry
from tests.unit.spark_lake.table.rig import NoProgress, iceberg
from tests.unit.spark_lake.values.protobuf_files import (
    BY_ID,
    LATEST,
    answer_of,
    order_file,
    order_message,
)
from tests.unit.spark_lake.values.valued_archive import (
    MOMENT,
    ORDER,
    ORDER_ROW,
    archive_of,
    avro,
    framed,
)

pytestmark = pytest.mark.slow


def assert_table_has_the_values_of_the_lake(
    folder: Path, values: Sequence[bytes | None], options: Mapping[str, str]
) -> None:
    archive = archive_of(folder, values)
    assert sync(None, archive.url, "t", "lake.t", options=options).rows == len(values)
    decoded = scan(archive.url, "t", options=options).read_all()
    names = [field.name for field in decoded.schema.field("value").type]
    expected = [
        dict.fromkeys(names) if row is None else row for row in decoded.column("value").to_pylist()
    ]
    place = folder.with_name(f"{folder.name}-tables")
    (file,) = place.rglob("*.parquet")
    # Of the file: pyiceberg 0.12 reads a null list of structs as an empty one.
    for found in (pq.ParquetFile(file).read(), pl.read_parquet(file).to_arrow()):
        rows = sorted(found.to_pylist(), key=lambda row: int(row["_offset"]))
        assert [{name: row[name] for name in names} for row in rows] == expected


def test_json_keeps_nulls_and_empty_lists_apart(tmp_path: Path) -> None:
    rows: list[dict[str, Any] | None] = [
        {"a": None, "b": [], "d": {"e": None}},
        {"a": 1, "b": None, "d": None},
        {},
        None,
        {"a": 3, "b": [None, []], "d": {"e": [{"f": 1.5}, None]}},
        {"at": "2024-02-01T10:30:00Z", "day": "2024-02-01", "price": "12.50", "small": 7},
    ]
    schema = (
        "a INT, b ARRAY<ARRAY<STRING>>,"
        " d STRUCT<e: ARRAY<STRUCT<f: DOUBLE>>>, at TIMESTAMP, day DATE, price DECIMAL(10, 2),"
        " small SMALLINT"
    )
    assert_table_has_the_values_of_the_lake(
        tmp_path / "archive",
        [None if row is None else json.dumps(row).encode() for row in rows],
        {"valueFormat": "json", "valueSchema": schema},
    )


def test_avro_by_a_schema_and_by_a_registry(tmp_path: Path, registry: FakeRegistry) -> None:
    rows = [ORDER_ROW, {**ORDER_ROW, "note": None, "tags": {}, "lines": []}]
    assert_table_has_the_values_of_the_lake(
        tmp_path / "plain",
        [*map(avro, rows), None],
        {"valueFormat": "avro", "valueSchema": json.dumps(ORDER)},
    )
    answer = {"schema": json.dumps(ORDER), "id": 7}
    latest = "/subjects/t-value/versions/latest"
    registry.answers = {latest: answer, "/schemas/ids/7": answer}
    assert_table_has_the_values_of_the_lake(
        tmp_path / "registered",
        [*(framed(7, avro(row)) for row in rows), None],
        {"valueFormat": "avro", "schemaRegistry.url": registry.url},
    )


def test_protobuf_by_a_registry(tmp_path: Path, registry: FakeRegistry) -> None:
    answer = answer_of(order_file())
    registry.answers = {LATEST: answer, BY_ID.format(4): answer}
    message = order_message()
    message.id = 2**63 + 5
    message.lines.add(sku="a")
    message.tags["x"] = 3
    message.at.FromDatetime(MOMENT.replace(tzinfo=None))
    values = [message.SerializeToString(), order_message().SerializeToString()]
    assert_table_has_the_values_of_the_lake(
        tmp_path / "archive",
        [*(framed(4, b"\x00" + value) for value in values), None],
        {"valueFormat": "protobuf", "schemaRegistry.url": registry.url},
    )


def test_a_sync_that_goes_on_adds_the_fields_of_schemas_that_are_registered_meanwhile(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    latest = "/subjects/t-value/versions/latest"
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "more", "type": "long", "default": 0}]}
    answers = [{"schema": json.dumps(one), "id": 7 + n} for n, one in enumerate((ORDER, newer))]
    registry.answers = {latest: answers[0], "/schemas/ids/7": answers[0]}
    archive = archive_of(tmp_path / "archive", [framed(7, avro(ORDER_ROW))])
    options = {"valueFormat": "avro", "schemaRegistry.url": registry.url}
    run = TableRun(TableRequest(remote=archive.url, topic="t", table="lake.t", options=options))
    assert run.sync(NoProgress()).rows == 1
    registry.answers |= {latest: answers[1], "/schemas/ids/8": answers[1]}
    value = framed(8, avro({**ORDER_ROW, "more": 5}, newer))
    record = Record(offset=1, timestamp_ms=START_MS, key=b"k", value=value)
    archive.add_segment("t", make_batches([record]))
    assert run.sync(NoProgress()).rows == 1
    rows = iceberg(run).scan().to_arrow().sort_by("_offset")
    assert rows.column("more").to_pylist() == [None, 5]
