"""Schemas of Avro as registries have them: names, logical types that came later, nonsense."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.storage.errors import InvalidConfig, ObjectCorrupt, TierUnavailable
from tests.unit.spark_lake.archive_builder import START_MS
from tests.unit.spark_lake.fake_registry import FakeRegistry
from tests.unit.spark_lake.values.test_values import (
    ORDER,
    ORDER_ROW,
    archive_of,
    avro,
    framed,
    shown,
    values_of,
)


def test_what_a_registry_should_not_answer_costs_only_its_values(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    registry.answers = {
        "/subjects/t-value/versions/latest": {"id": 9, "schema": json.dumps(ORDER)},
        "/schemas/ids/9": {"schema": json.dumps(ORDER)},
        "/schemas/ids/1": {"schema": "no JSON"},
        "/schemas/ids/2": {"schema": "5"},
        "/schemas/ids/3": {"schema": '{"type": "record"}'},
        "/schemas/ids/4": {"schema": json.dumps({**ORDER, "fields": [{"name": "x"}]})},
    }
    values = [framed(number, b"\0") for number in (1, 2, 3, 4, 77)]
    archive = archive_of(tmp_path, [*values, framed(9, avro(ORDER_ROW))] * 3)
    options = {"valueFormat": "avro", "registryurl": registry.url}
    assert values_of(archive, **options, valueErrors="null") == [*[None] * 5, shown(ORDER_ROW)] * 3
    # What is unusable is asked for once, however many values name it.
    assert registry.asked.count("/schemas/ids/77") == 1
    with pytest.raises(ObjectCorrupt, match="its schema 1 in the registry is no Avro schema"):
        values_of(archive, **options)
    registry.answers["/subjects/t-value/versions/latest"] = {"error": "who are you?"}
    with pytest.raises(TierUnavailable, match="the answer has no schema: is this"):
        values_of(archive, **options)


def test_a_frame_of_an_older_schema_says_that_there_is_a_newer_one(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    archive = archive_of(tmp_path, [None])
    latest = "/subjects/t-value/versions/latest"
    options = {
        "path": archive.url,
        "subscribe": "t",
        "valueFormat": "avro",
        "schemaRegistry.url": registry.url,
    }
    registry.answers[latest] = {"id": 1, "schema": json.dumps(record_of(a="int"))}
    source = StrandlineDataSource(options)
    schema = source.schema()
    source.reader(schema)
    registry.answers[latest] = {"id": 2, "schema": json.dumps(record_of(a="int", b="int"))}
    for reader in (source.reader, source.streamReader):
        with pytest.raises(InvalidConfig, match="newer schema by now, make the frame anew"):
            reader(schema)


def test_values_of_a_registry_say_so_where_none_was_given(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    archive = archive_of(tmp_path, [framed(9, avro(ORDER_ROW))])
    options = {"valueFormat": "avro", "valueSchema": json.dumps(ORDER)}
    with pytest.raises(ObjectCorrupt, match=r"with schema 9: then give option schemaRegistry\.url"):
        values_of(archive, **options)
    registry.answers["/schemas/ids/9"] = {"schema": json.dumps(ORDER)}
    assert values_of(archive, **options, registryurl=registry.url) == [shown(ORDER_ROW)]
    registry.answers["/schemas/ids/8"] = {"schema": '"long"'}
    other = archive_of(tmp_path / "other", [framed(8, b"\0")])
    with pytest.raises(ObjectCorrupt, match="does not parse") as caught:
        values_of(other, **options, registryurl=registry.url)
    assert "then give option" not in str(caught.value)


def test_another_record_than_the_wanted_one_is_told_in_a_few_words(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    """Of subjects by record name a topic has several; fastavro shows both schemas, whole."""
    wide = record_of(**{f"field_{n}": "int" for n in range(200)})
    other = {**wide, "name": "Refund"}
    registry.answers["/schemas/ids/1"] = {"schema": json.dumps(other)}
    registry.answers["/schemas/ids/2"] = {"schema": json.dumps([other, record_of(a="int")])}
    for number, name in ((1, "a.b.Refund"), (2, "a union of 2 types")):
        archive = archive_of(tmp_path / name, [framed(number, b"\0" * 200)])
        options = {"valueSchema": json.dumps(wide), "registryurl": registry.url}
        says = rf"does not parse: {name} cannot be read as a\.b\.R: .{{1,200}}; option"
        with pytest.raises(ObjectCorrupt, match=says):
            values_of(archive, valueFormat="avro", **options)


def record_of(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "R", "namespace": "a.b", "fields": fields}


def test_bytes_of_a_default_are_those_of_its_letters(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    """In a schema a byte is the letter of its number, which Arrow would write as UTF-8."""
    cents = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    stamp = {"type": "fixed", "name": "Stamp", "size": 2}
    newer = record_of(a="int")
    newer["fields"] = [
        newer["fields"][0],
        {"name": "raw", "type": "bytes", "default": "\u00ff\u0000a"},
        {"name": "either", "type": ["bytes", "null"], "default": "\u00e9"},
        {"name": "none", "type": ["null", "bytes"], "default": None},
        {"name": "fixed", "type": stamp, "default": "\u0080\u0001"},
        {"name": "again", "type": "Stamp", "default": "\u0081\u0002"},
        {"name": "fare", "type": cents, "default": "\u00ff\u0085"},
        {"name": "inside", "type": {**record_of(x="bytes"), "name": "In"}, "default": {"x": "ÿ"}},
    ]
    older = record_of(a="int")
    registry.answers["/subjects/t-value/versions/latest"] = {"schema": json.dumps(newer)}
    registry.answers["/schemas/ids/1"] = {"schema": json.dumps(older)}
    registry.answers["/schemas/ids/2"] = {"schema": json.dumps(record_of(a="int", raw="string"))}
    archive = archive_of(tmp_path, [framed(1, b"\x02"), framed(2, b"\x04\x04\xc3\xa9")])
    expected = {
        "a": 1,
        "raw": b"\xff\x00a",
        "either": b"\xe9",
        "none": None,
        "fixed": b"\x80\x01",
        "again": b"\x81\x02",
        "fare": Decimal("-1.23"),
        "inside": {"x": b"\xff"},
    }
    assert values_of(archive, valueFormat="avro", registryurl=registry.url) == [
        expected,
        # What was written as text are the bytes of that.
        {**expected, "a": 2, "raw": b"\xc3\xa9"},
    ]


def test_a_default_that_leaves_fields_out_has_their_defaults(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    inner = {**record_of(x="int", y="bytes", z="int"), "name": "In"}
    for field, default in zip(inner["fields"], (5, "\u00ff", 7), strict=True):
        field["default"] = default
    newer = record_of(a="int", inside=inner)
    newer["fields"][1]["default"] = {"z": 8}
    registry.answers["/subjects/t-value/versions/latest"] = {"schema": json.dumps(newer)}
    registry.answers["/schemas/ids/1"] = {"schema": json.dumps(record_of(a="int"))}
    archive = archive_of(tmp_path, [framed(1, b"\x02")])
    (row,) = values_of(archive, valueFormat="avro", registryurl=registry.url)
    assert row == {"a": 1, "inside": {"x": 5, "y": b"\xff", "z": 8}}


def test_a_value_with_a_schema_of_another_kind_is_no_avro(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    """`{"type": "string"}` is a schema of both; these bytes would be 17 letters in Avro."""
    registry.answers["/subjects/t-value/versions/latest"] = {"schema": '"string"'}
    registry.answers["/schemas/ids/1"] = {"schemaType": "JSON", "schema": '{"type": "string"}'}
    archive = archive_of(tmp_path, [framed(1, b'"0123456789abcdef"')])
    options = {"valueFormat": "avro", "registryurl": registry.url}
    assert values_of(archive, **options, valueErrors="null") == [None]
    with pytest.raises(ObjectCorrupt, match="its schema 1 is json"):
        values_of(archive, **options)


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


@pytest.mark.parametrize("depth", [10, 1_000_000])
def test_what_a_writer_nested_without_end_costs_only_itself(
    tmp_path: Path, registry: FakeRegistry, depth: int
) -> None:
    """A list of its own kind is a schema like others; so long a one ended the process."""
    chain = {
        "type": "record",
        "name": "Chain",
        "fields": [{"name": "n", "type": ["null", "Chain"]}],
    }
    registry.answers = {
        "/schemas/ids/1": {"schema": json.dumps(record_of(a="int", more=["null", chain]))},
        "/schemas/ids/2": {"schema": json.dumps(record_of(a="int"))},
    }
    values = [framed(1, b"\x06" + b"\x02" * depth + b"\x00"), framed(2, b"\x06")]
    archive = archive_of(tmp_path, values)
    options = {"valueFormat": "avro", "registryurl": registry.url, "valueErrors": "null"}
    found = values_of(archive, **options, valueSchema=json.dumps(record_of(a="int")))
    assert found == [{"a": 3} if depth == 10 else None, {"a": 3}]


NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "n", "type": "null"}]}
LISTS_OF_NOTHING = [
    {"type": "array", "items": "null"},
    {"type": "array", "items": NOTHING},
    {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
    {"type": "map", "values": {"type": "array", "items": {"type": "array", "items": "null"}}},
    {**record_of(first=NOTHING, many={"type": "array", "items": "Nothing"}), "name": "Q"},
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", LISTS_OF_NOTHING)
def test_a_list_of_what_takes_no_byte_is_not_counted_through(
    tmp_path: Path, registry: FakeRegistry, kind: Any
) -> None:
    registry.answers = {
        "/schemas/ids/1": {
            "schema": json.dumps(record_of(more={**NOTHING, "name": "X"}, some=kind))
        },
        "/schemas/ids/2": {"schema": json.dumps(record_of(a="int"))},
    }
    # Six bytes: so many items as nobody lives to see.
    endless = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    archive = archive_of(tmp_path, [framed(1, endless), framed(2, b"\x06")])
    reader = record_of(a="int")
    reader["fields"][0]["default"] = 5
    options = {"valueFormat": "avro", "registryurl": registry.url, "valueErrors": "null"}
    assert values_of(archive, **options, valueSchema=json.dumps(reader)) == [None, {"a": 3}]
    with pytest.raises(InvalidConfig, match=r"take no byte|null, which makes no column"):
        values_of(archive, valueFormat="avro", valueSchema=json.dumps(record_of(some=kind)))


@pytest.mark.parametrize("reference", ["E", "a.b.E"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "A"),
        ({"type": "fixed", "name": "E", "size": 2}, b"xy"),
        ({"type": "record", "name": "E", "fields": [{"name": "n", "type": "int"}]}, {"n": 1}),
    ],
)
def test_named_types_are_found_by_either_name(
    tmp_path: Path, kind: Any, value: Any, reference: str
) -> None:
    schema = record_of(first=kind, again=reference)
    row = {"first": value, "again": value}
    archive = archive_of(tmp_path, [avro(row, schema)])
    assert values_of(archive, valueFormat="avro", valueSchema=json.dumps(schema)) == [row]
