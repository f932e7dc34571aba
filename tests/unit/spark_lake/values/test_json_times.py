"""Times in JSON as .NET, Go, Java and Python write them."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pyarrow as pa
import pytest

from strandline.spark_lake.values.decoders.decoder import UnparsableValue
from strandline.spark_lake.values.decoders.json_values import JsonValues
from strandline.spark_lake.values.schema.ddl import parse_columns

MOMENT = dt.datetime(2024, 3, 10, 2, 30, 0, 123456, tzinfo=dt.UTC)
SECOND = MOMENT.replace(microsecond=0)
WRITTEN = {
    "2024-03-10T02:30:00.1234567Z": MOMENT,
    "2024-03-10T08:00:00.123456789+05:30": MOMENT,
    "2024-03-09 21:30:00.1234569999-0500": MOMENT,
    "2024-03-10T02:30:00.123456999": MOMENT,
    "2024-03-10T02:30:00.123456Z": MOMENT,
    "2024-03-09T21:30:00-05": SECOND,
    "2024-03-10 02:30": SECOND,
    "2024-03-10": SECOND.replace(hour=0, minute=0),
}
NO_TIMES = ["2024-03-10T02:30:61.1234567Z", "2024-03-10T02:30:00.1234567Q", "1710037800", ""]


def decoded(columns: str, *texts: str) -> list[Any]:
    made = JsonValues(parse_columns(columns, option="valueSchema"))
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
                {"at": MOMENT, "n": 1, "days": [dt.date(2024, 3, 10), None]},
                None,
                {"at": None, "n": 2, "days": None},
            ],
            "own": None,
        },
        {"legs": None, "own": None},
        {"legs": [], "own": {"at": MOMENT}},
        {"legs": [{"at": None, "n": None, "days": []}], "own": {"at": None}},
    ]
