"""Schemas of Avro as registries have them: names, logical types that came later, nonsense."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.spark_lake.values.decoders.avro_values import AvroValues
from strandline.spark_lake.values.decoders.decoder import UnparsableValue
from strandline.storage.errors import InvalidConfig, ObjectCorrupt, TierUnavailable
from tests.unit.spark_lake.fake_registry import FakeRegistry
from tests.unit.spark_lake.values.valued_archive import (
    ORDER,
    ORDER_ROW,
    archive_of,
    avro,
    framed,
    record_of,
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
    with pytest.raises(InvalidConfig, match=r"take no byte|Avro type null makes no column"):
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


def test_avro_values_become_columns(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, [avro(ORDER_ROW), None, avro({**ORDER_ROW, "note": None})])
    rows = values_of(archive, valueFormat="avro", valueSchema=json.dumps(ORDER))
    assert rows == [shown(ORDER_ROW), None, shown({**ORDER_ROW, "note": None})]


@pytest.mark.parametrize("bad", [b"", b"\x0e", avro(ORDER_ROW) + b"x", b"\xff" * 30])
def test_damaged_avro_does_not_parse(bad: bytes) -> None:
    decoder = AvroValues(json.dumps(ORDER), None)
    with pytest.raises(UnparsableValue):
        decoder.decode(pa.array([bad], pa.binary()))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "no Avro schema"),
        ('["null", "int", "string"]', "union of several types"),
        ('{"type":"record","name":"R","fields":[{"name":"r","type":["null","R"]}]}', "itself"),
        ('{"type":"int","logicalType":"time-millis"}', "time-millis makes no column"),
        ('{"type":"long","logicalType":"local-timestamp-micros"}', "makes no column"),
        ('{"type":"bytes","logicalType":"decimal","precision":50}', "decimal of 50 digits"),
        ('{"type":"bytes","logicalType":"decimal"}', "'precision' is missing"),
        ('{"type":"fixed","name":"F","size":"x"}', "F has the size 'x'"),
        ('{"type":"fixed","name":"F","size":-1}', "F has the size -1"),
        ("5", "no Avro schema"),
        ("{}", "'type' is missing"),
        ('{"type":"record","name":"R","fields":[{"name":"f","type":"Q"}]}', "stands alone: Q"),
        (
            '{"type":"record","name":"R","fields":[{"name":"r","type":{"type":"record",'
            '"name":"S","fields":[{"name":"u","type":["int","string"]}]}}]}',
            r"^field r: field u: a union of several types makes no column; give a reader schema",
        ),
        (
            '{"type":"record","name":"R","fields":[{"name":"f","type":"int"},'
            '{"name":"f","type":"int"}]}',
            "R has two fields of one name",
        ),
    ],
)
def test_avro_schemas_that_make_no_columns_are_refused(schema: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        AvroValues(schema, None)
