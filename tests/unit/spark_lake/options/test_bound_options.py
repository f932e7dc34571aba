"""Where a query begins and ends: offsets and times, for all partitions or each."""

from __future__ import annotations

import pytest

from strandline.spark_lake.options.bound_options import AtOffset, AtTimestamp, Edge, narrowed
from strandline.storage.errors import InvalidConfig
from tests.unit.spark_lake.options.parsed import REQUIRED, T0, T1, parse, refused


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": ",,"},
        {"subscribePattern": "("},
        {"assign": "a"},
        {"assign": "[]"},
        {"assign": "{}"},
        {"assign": '{"a": 1}'},
        {"assign": '{"a": [-1]}'},
        {"assign": '{"a": [], "b": [0]}'},
        {"assign": '{"a": ["0"]}'},
    ],
)
def test_bad_selections_are_refused_by_name(options: dict[str, str]) -> None:
    (name,) = options
    assert f"option {name}" in refused({"path": "s3://b", **options})


# --- bounds ----------------------------------------------------------------------------------


def test_offsets_by_partition_know_the_edges() -> None:
    options = parse(
        startingOffsets='{"t": {"0": 23, "1": -2}}', endingOffsets='{"t": {"0": -1, "1": 50}}'
    )
    assert options.start.of(T0) == AtOffset(23)
    assert options.start.of(T1) is Edge.EARLIEST
    assert options.end.of(T0) is Edge.LATEST
    assert options.end.of(T1) == AtOffset(50)


def test_a_timestamp_goes_before_timestamps_go_before_offsets() -> None:
    by_partition = '{"t": {"0": 5}}'
    offsets = '{"t": {"0": 7}}'
    assert parse(
        startingTimestamp="9", startingOffsetsByTimestamp=by_partition, startingOffsets=offsets
    ).start.of(T0) == AtTimestamp(9)
    assert parse(endingOffsetsByTimestamp=by_partition, endingOffsets=offsets).end.of(
        T0
    ) == AtTimestamp(5)


@pytest.mark.parametrize("which", ["starting", "ending"])
def test_seconds_are_refused_where_milliseconds_are_meant(which: str) -> None:
    for name, text in (
        (f"{which}Timestamp", "1706745600"),
        (f"{which}OffsetsByTimestamp", '{"t": {"0": 1706745600}}'),
    ):
        message = refused({**REQUIRED, name: text})
        assert f"option {name}" in message
        assert "looks like seconds" in message


def test_a_timestamp_is_milliseconds_or_a_time() -> None:
    for text in ("1706745600000", "2024-02-01", "2024-02-01T01:00:00+01:00"):
        assert parse(endingTimestamp=text).end.of(T0) == AtTimestamp(1706745600000)


def test_a_partition_that_is_not_named_is_refused() -> None:
    bounds = parse(startingOffsets='{"t": {"0": 1}}').start
    with pytest.raises(InvalidConfig, match="t partition 1 is missing"):
        bounds.of(T1)


def test_a_partition_that_is_named_and_not_read_is_refused() -> None:
    bounds = parse(startingOffsets='{"t": {"0": 1, "1": 2}}').start
    bounds.check_names([T0, T1])
    with pytest.raises(InvalidConfig, match="startingOffsets names t partition 1, which is not"):
        bounds.check_names([T0])
    # A pattern that does not find a topic would leave it out in silence.
    bounds = parse(startingOffsets='{"t": {"0": 1, "1": 2}, "u": {"0": 0}}').start
    with pytest.raises(InvalidConfig, match="startingOffsets names u partition 0, which is not"):
        bounds.check_names([T0, T1])


def test_of_options_for_several_topics_a_view_has_its_own() -> None:
    given = {
        "startingOFFSETS": '{"t": {"0": 1}, "u": {"0": 2}}',
        "endingOffsetsByTimestamp": '{"u": {"0": 3}}',
        "endingOffsets": "latest",
        "subscribe": "t,u",
    }
    assert narrowed(given, "u") == {
        **given,
        "startingOFFSETS": '{"u": {"0": 2}}',
    }
    # What is not named is left to be missed.
    assert narrowed(given, "t")["endingOffsetsByTimestamp"] == '{"u": {"0": 3}}'


def test_a_time_to_end_before_the_time_to_begin_is_refused() -> None:
    message = refused({**REQUIRED, "startingTimestamp": "20", "endingTimestamp": "10"})
    assert message == (
        "options startingTimestamp and endingTimestamp: the query would end before it begins"
    )
