"""Logical types of Avro that came later, that a field leaves out, or that make no column."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.unit.spark_lake.archive_builder import START_MS
from tests.unit.spark_lake.fake_registry import FakeRegistry
from tests.unit.spark_lake.values.valued_archive import (
    archive_of,
    avro,
    framed,
    record_of,
    values_of,
)

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}


def test_numbers_written_before_they_were_times_are_the_times_they_meant(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    def schema(millis: Any, micros: Any, date: Any) -> dict[str, Any]:
        inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": millis}]}
        return record_of(
            millis=millis,
            maybe=["null", micros],
            day=date,
            many={"type": "array", "items": ["null", millis]},
            named={"type": "map", "values": inner},
            inner="a.b.Inner",
        )

    before, after = schema("long", "long", "int"), schema(MILLIS, MICROS, DATE)
    registry.answers = {
        "/subjects/t-value/versions/latest": {"id": 2, "schema": json.dumps(after)},
        "/schemas/ids/1": {"schema": json.dumps(before)},
        "/schemas/ids/2": {"schema": json.dumps(after)},
    }
    row = {
        "millis": START_MS,
        "maybe": START_MS * 1000 + 1,
        "day": 19_000,
        "many": [None, 5],
        "named": {"k": {"at": 7}},
        "inner": {"at": -1},
    }
    empty = {**row, "maybe": None, "many": [], "named": {}}
    values = [framed(2, avro(row, before)), *(framed(1, avro(one, before)) for one in (row, empty))]
    archive = archive_of(tmp_path / "all", values)
    found = values_of(archive, valueFormat="avro", registryurl=registry.url)
    # Alone the first is read by the compiled loop, beside others by fastavro.
    alone = archive_of(tmp_path / "alone", values[:1])
    assert values_of(alone, valueFormat="avro", registryurl=registry.url) == found[:1]
    assert found[0] == found[1]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert found[1]["millis"] == epoch + timedelta(milliseconds=START_MS)
    assert found[1]["maybe"] == epoch + timedelta(microseconds=START_MS * 1000 + 1)
    assert found[1]["day"] == date(2022, 1, 8)
    assert found[1]["many"] == [None, epoch + timedelta(milliseconds=5)]
    assert found[1]["named"] == [("k", {"at": epoch + timedelta(milliseconds=7)})]
    assert found[1]["inner"] == {"at": epoch - timedelta(milliseconds=1)}
    assert (found[2]["maybe"], found[2]["many"], found[2]["named"]) == (None, [], [])
    # And the other way round: the reader has numbers.
    registry.answers["/subjects/t-value/versions/latest"] = {"id": 1, "schema": json.dumps(before)}
    again = values_of(archive, valueFormat="avro", registryurl=registry.url)
    assert again[0] == again[1] == {**row, "named": [("k", {"at": 7})]}


def test_bytes_written_before_they_were_a_decimal_are_the_decimal_they_meant(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    fixed = {"type": "fixed", "name": "F", "size": 2}
    decimal = {"logicalType": "decimal", "precision": 4, "scale": 2}
    before = record_of(a="bytes", b=["null", fixed], c="int")
    after = record_of(a={"type": "bytes", **decimal}, b=["null", {**fixed, **decimal}], c=DATE)
    registry.answers = {
        "/subjects/t-value/versions/latest": {"id": 2, "schema": json.dumps(after)},
        "/schemas/ids/1": {"schema": json.dumps(before)},
        "/schemas/ids/2": {"schema": json.dumps(after)},
    }
    rows = [{"a": b"\x83", "b": b"\x00\x7d", "c": 1}, {"a": b"\x01", "b": None, "c": 2}]
    archive = archive_of(tmp_path, [framed(n, avro(row, before)) for row in rows for n in (1, 2)])
    found = values_of(archive, valueFormat="avro", registryurl=registry.url)
    day = date(1970, 1, 2)
    first = {"a": Decimal("-1.25"), "b": Decimal("1.25"), "c": day}
    second = {"a": Decimal("0.01"), "b": None, "c": day + timedelta(days=1)}
    assert found == [first, first, second, second]


def test_a_logical_type_that_one_field_leaves_out_is_the_plain_value_there(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    """As it is where the reader's schema has no logical type at all."""
    cents = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}

    def schema(millis: Any, day: Any, price: Any) -> dict[str, Any]:
        inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": millis}]}
        return record_of(
            kept=MILLIS,
            at=["null", millis],
            many={"type": "array", "items": ["null", day]},
            named={"type": "map", "values": inner},
            inner="a.b.Inner",
            price=price,
        )

    written, wanted = schema(MILLIS, DATE, cents), schema("long", "int", "bytes")
    wanted["fields"][5] |= {"name": "cost", "aliases": ["price"]}
    registry.answers = {"/schemas/ids/1": {"schema": json.dumps(written)}}
    row = {"at": 5, "many": [3, None], "named": {"k": {"at": 7}}, "inner": {"at": -1}}
    plain = schema("long", "int", "bytes")
    plain["fields"][0]["type"] = "long"
    value = framed(1, avro({**row, "kept": START_MS, "price": b"\x83"}, plain))
    (found,) = values_of(
        archive_of(tmp_path, [value]),
        valueFormat="avro",
        registryurl=registry.url,
        valueSchema=json.dumps(wanted),
    )
    kept = datetime.fromtimestamp(START_MS / 1000, UTC)
    assert found == {**row, "kept": kept, "named": [("k", {"at": 7})], "cost": b"\x83"}


@pytest.mark.parametrize("written", ["uuid", "time-micros", "local-timestamp-micros", "unheard-of"])
def test_logical_types_that_make_no_column_are_the_plain_values(
    tmp_path: Path, registry: FakeRegistry, written: str
) -> None:
    plain, value = ("string", "0-0") if written == "uuid" else ("long", 7)
    schema = record_of(x={"type": plain, "logicalType": written}, at=MILLIS)
    reader = record_of(x=plain, at=MILLIS, more={"type": "int"})
    reader["fields"][2]["default"] = 3
    registry.answers = {"/schemas/ids/1": {"schema": json.dumps(schema)}}
    archive = archive_of(
        tmp_path, [framed(1, avro({"x": value, "at": 0}, record_of(x=plain, at="long")))]
    )
    options = {"valueFormat": "avro", "registryurl": registry.url}
    (row,) = values_of(archive, **options, valueSchema=json.dumps(reader))
    assert row == {"x": value, "at": datetime(1970, 1, 1, tzinfo=UTC), "more": 3}
