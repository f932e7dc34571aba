"""Times in JSON as .NET, Go, Java and Python write them."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.spark_lake.values.decoders.decoder import UnparsableValue
from strandline.spark_lake.values.decoders.json_values import JsonValues
from strandline.spark_lake.values.schema.ddl import parse_columns
from strandline.storage.errors import InvalidConfig
from tests.unit.spark_lake.values.valued_archive import BAD, MOMENT, archive_of, values_of

INSTANT = dt.datetime(2024, 3, 10, 2, 30, 0, 123456, tzinfo=dt.UTC)
SECOND = INSTANT.replace(microsecond=0)
WRITTEN = {
    "2024-03-10T02:30:00.1234567Z": INSTANT,
    "2024-03-10T08:00:00.123456789+05:30": INSTANT,
    "2024-03-09 21:30:00.1234569999-0500": INSTANT,
    "2024-03-10T02:30:00.123456999": INSTANT,
    "2024-03-10T02:30:00.123456Z": INSTANT,
    "2024-03-09T21:30:00-05": SECOND,
    "2024-03-10 02:30": SECOND,
    "2024-03-10": SECOND.replace(hour=0, minute=0),
}
NO_TIMES = ["2024-03-10T02:30:61.1234567Z", "2024-03-10T02:30:00.1234567Q", "1710037800", ""]


def decoded(columns: str, *texts: str) -> list[Any]:
    made = JsonValues(parse_columns(columns))
    values = pa.array([text.encode() for text in texts], pa.binary())
    return list(made.decode(values).to_pylist())


@pytest.mark.parametrize("text", WRITTEN)
def test_a_time_is_the_same_whatever_stands_beside_it(text: str) -> None:
    """Six digits of a second are kept, as Spark does; without a zone it is UTC."""
    values = {one: f'{{"at": "{one}"}}' for one in WRITTEN}
    assert decoded("at TIMESTAMP", values[text]) == [{"at": WRITTEN[text]}]
    for one, other in itertools.permutations((text, *list(WRITTEN)[:2], "2024-03-10"), 2):
        found = decoded("at TIMESTAMP", values[one], values[other])
        assert found == [{"at": WRITTEN[one]}, {"at": WRITTEN[other]}]


@pytest.mark.parametrize("text", NO_TIMES)
def test_what_is_no_time_does_not_parse(text: str) -> None:
    with pytest.raises(UnparsableValue, match="couldn't parse"):
        decoded("at TIMESTAMP", f'{{"at": "{text}"}}')


def test_times_of_many_digits_are_found_however_deep_they_lie() -> None:
    columns = (
        "legs ARRAY<STRUCT<at: TIMESTAMP, n: INT, days: ARRAY<DATE>>>, own STRUCT<at: TIMESTAMP>"
    )
    at = '"2024-03-10T02:30:00.1234567Z"'
    found = decoded(
        columns,
        f'{{"legs": [{{"at": {at}, "n": 1, "days": ["2024-03-10", null]}}, null, {{"n": 2}}]}}',
        '{"legs": null, "own": null}',
        f'{{"legs": [], "own": {{"at": {at}}}}}',
        '{"legs": [{"days": []}], "own": {}}',
    )
    assert found == [
        {
            "legs": [
                {"at": INSTANT, "n": 1, "days": [dt.date(2024, 3, 10), None]},
                None,
                {"at": None, "n": 2, "days": None},
            ],
            "own": None,
        },
        {"legs": None, "own": None},
        {"legs": [], "own": {"at": INSTANT}},
        {"legs": [{"at": None, "n": None, "days": []}], "own": {"at": None}},
    ]


# --- JSON ------------------------------------------------------------------------------------

FLIGHT = "origin STRING, delay INT, day DATE, at TIMESTAMP, fare DECIMAL(6,2), legs ARRAY<BIGINT>"


def test_json_objects_become_columns(tmp_path: Path) -> None:
    full = {
        "origin": "JFK",
        "delay": -3,
        "day": "2024-02-01",
        "at": "2024-02-01T11:30:00+01:00",
        "fare": 12.5,
        "legs": [1, None],
        "spare": {"deep": [1]},
    }
    values = [json.dumps(full).encode(), None, b"{}", json.dumps(full, indent=2).encode(), b" {}\n"]
    rows = values_of(archive_of(tmp_path, values), valueFormat="json", valueSchema=FLIGHT)
    expected = {
        "origin": "JFK",
        "delay": -3,
        "day": dt.date(2024, 2, 1),
        "at": MOMENT,
        "fare": decimal.Decimal("12.50"),
        "legs": [1, None],
    }
    nothing = dict.fromkeys(expected)
    assert rows == [expected, None, nothing, expected, nothing]


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_such_object_is_refused_wherever_it_stands(bad: bytes) -> None:
    decoder = JsonValues(parse_columns("a INT"))
    for values in ([bad], [b'{"a":1}', bad, b"{}"]):
        with pytest.raises(UnparsableValue):
            decoder.decode(pa.array(values, pa.binary()))


def test_values_never_melt_into_each_other() -> None:
    decoder = JsonValues(parse_columns("a STRING, b INT"))
    for first, second in (
        (b'{"a":', b'"x"}{"a":"y"}'),
        (b'{"a":"}', b'{","b":1}'),
        (b'{"a":{}', b',"b":1}'),
        (b'{"b":1}{}', b""),
    ):
        with pytest.raises(UnparsableValue):
            decoder.decode(pa.array([first, second], pa.binary()))


def test_decimals_of_too_many_digits_do_not_parse(tmp_path: Path) -> None:
    """Arrow reads them, and Spark would take them for a number of its own."""
    texts = ['"1234.50"', '"123.45"', "123.4", '"123.456"', '"-999.99"', '"1e3"']
    archive = archive_of(tmp_path, [f'{{"a": [{text}]}}'.encode() for text in texts])
    rows = values_of(
        archive, valueFormat="json", valueSchema="a ARRAY<DECIMAL(5,2)>", valueErrors="null"
    )
    kept = [None, "123.45", "123.40", None, "-999.99", None]
    assert rows == [one and {"a": [decimal.Decimal(one)]} for one in kept]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"b": {"c": "x"}}', "field b/c: it is string, the schema has number"),
        ('{"d": true}', "field d: it is boolean, the schema has number or string"),
        ('{"a": 1.0}', "field a: .*couldn't parse:1.0"),
        ('{"a": 1, "b": {"c": 1e3}}', "field b: .*couldn't parse:1e3"),
        ('{"small": 40000}', "field small: .*40000"),
        ('{"day": "2024-13-01"}', "field day: .*2024-13-01"),
        ('{"d": "1.234"}', "field d: .*1.234"),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_told_by_the_field(text: str, says: str) -> None:
    columns = "a BIGINT, b STRUCT<c: INT>, at TIMESTAMP, d DECIMAL(4, 2), small SMALLINT, day DATE"
    with pytest.raises(UnparsableValue, match=f"^{says}"):
        decoded(columns, text)


FIELDS = "id BIGINT, place STRUCT<city: STRING, at: STRUCT<x: INT, y: INT>>, tags ARRAY<INT>"
GOOD = {"id": 1, "place": {"city": "c", "at": {"x": 1, "y": 2}}, "tags": [1]}


def by_field(*values: object) -> list[Any]:
    texts = [one if isinstance(one, bytes | None) else json.dumps(one).encode() for one in values]
    made = JsonValues(parse_columns(FIELDS))
    return list(made.decode_fields(pa.array(texts, pa.binary())).to_pylist())


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (GOOD, GOOD),
        (GOOD | {"id": "1"}, GOOD | {"id": None}),
        (GOOD | {"tags": [1, "x"]}, GOOD | {"tags": None}),
        (GOOD | {"place": "c"}, GOOD | {"place": None}),
        (GOOD | {"place": None, "id": 1.5}, GOOD | {"place": None, "id": None}),
        ({"id": "1"}, {"id": None, "place": None, "tags": None}),
        (
            GOOD | {"place": {"city": 3, "at": {"x": "1", "y": 2}}},
            GOOD | {"place": {"city": None, "at": {"x": None, "y": 2}}},
        ),
        (GOOD | {"place": {"at": 1}}, GOOD | {"place": {"city": None, "at": None}}),
        (b'{"id": 1', None),
        (b'{"id": 1}{"id": 2}', None),
        (b"[1]", None),
        (b"\xff", None),
        (b"", None),
        (None, None),
    ],
)
def test_a_field_that_does_not_parse_is_null_and_no_other(value: object, row: object) -> None:
    assert by_field(value) == [row]
    assert by_field(GOOD, value, GOOD, value, value) == [GOOD, row, GOOD, row, row]


def test_fields_are_null_where_they_do_not_parse_in_many_rows_and_in_few(tmp_path: Path) -> None:
    """One wrong among thousands; and all of them wrong, in the same field."""
    for bad in ({777}, set(range(1000))):
        values = [
            json.dumps({"id": "x" if n in bad else n, "city": "c"}).encode() for n in range(1000)
        ]
        archive = archive_of(tmp_path / str(len(bad)), values)
        options = {"valueFormat": "json", "valueSchema": "id INT, city STRING"}
        rows = values_of(archive, **options, valueErrors="field")
        assert rows == [{"id": None if n in bad else n, "city": "c"} for n in range(1000)]


def test_fields_of_other_formats_cannot_be_told_apart(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, [b"x"])
    with pytest.raises(InvalidConfig, match="valueErrors=field goes with valueFormat=json"):
        values_of(archive, valueFormat="string", valueErrors="field")
