"""Records as text: lines for people, JSON for programs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.record_text import (
    ReadRecord,
    json_of,
    line_of,
    record_of_json,
    record_of_line,
    shown,
)


def seen(**fields: object) -> ReadRecord:
    usual = {"topic": "t", "partition": 1, "offset": 7, "timestamp_ms": 1357034400000}
    usual |= {"key": b"k", "value": b"v", "headers": (("h", b"x"),)}
    return ReadRecord(**(usual | fields))  # type: ignore[arg-type]


def test_a_line_tells_place_time_key_value_and_headers() -> None:
    assert line_of(seen(), colours=False) == "t-1@7  2013-01-01 10:00:00.000  k → v  {h=x}"
    bare = seen(key=None, value=None, headers=(), timestamp_ms=None)
    assert line_of(bare, colours=False) == "t-1@7  -  null"


def test_a_record_cannot_drive_the_terminal() -> None:
    hostile = b"a\x1b]0;owned\x07\nb\r"
    line = line_of(seen(key=hostile, value=hostile, headers=(("\x1b[2J", hostile),)), colours=False)
    assert "\x1b" not in line
    assert "\n" not in line
    assert shown(b"tab\there \xc3\xa9") == "tab\there é"


def test_what_is_no_text_is_shown_in_hex_as_far_as_it_helps() -> None:
    assert shown(b"\xff\x00") == "<2 bytes ff00>"
    assert shown(b"\xff" * 1000).endswith("…>")


contents = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)


@given(
    key=contents,
    value=contents,
    headers=st.lists(st.tuples(st.text(max_size=8), contents), max_size=3).map(tuple),
    timestamp_ms=st.none() | st.integers(0, 2**62),
)
def test_what_consume_writes_as_json_produce_reads_without_loss(
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    timestamp_ms: int | None,
) -> None:
    record = seen(key=key, value=value, headers=headers, timestamp_ms=timestamp_ms)
    line = json_of(record)
    assert "\n" not in line
    again = record_of_json(line.encode())
    assert (again.key, again.value, again.headers) == (key, value, headers)
    assert again.timestamp_ms == timestamp_ms


def test_json_of_people_may_hold_numbers_and_objects_as_values() -> None:
    assert record_of_json(b'{"key": 5, "value": {"a": 1}}').value == b'{"a": 1}'
    assert json.loads(json_of(seen()))["headers"] == [{"name": "h", "value": "x"}]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x",
        b"[1]",
        b'{"value": "v", "headers": {"a": 1}}',
        b'{"value": "v", "timestamp": "now"}',
        b'{"value_base64": "!"}',
        '{"value_base64": "ä"}'.encode(),
        b'{"value": "\\ud800"}',
        b'{"value": "v", "headers": [{"name": "\\ud800"}]}',
        b'{"value": "v", "timestamp": 9223372036854775808}',
        b'{"value": "v", "timestamp": -2}',
        b"[" * 100_000,
    ],
)
def test_json_that_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(WrongUse):
        record_of_json(line)


def test_a_line_is_split_as_it_was_asked_for() -> None:
    plain = record_of_line(b"a:b", key_separator=None, parse_headers=False, null_text=None)
    assert (plain.key, plain.value) == (None, b"a:b")
    full = record_of_line(
        b"h1:x,h2:\tk:v:w", key_separator=b":", parse_headers=True, null_text=b"NULL"
    )
    assert (full.key, full.value) == (b"k", b"v:w")
    assert full.headers == (("h1", b"x"), ("h2", b""))
    gone = record_of_line(b"k:NULL", key_separator=b":", parse_headers=False, null_text=b"NULL")
    assert (gone.key, gone.value) == (b"k", None)


@pytest.mark.parametrize(
    ("line", "key_separator", "parse_headers"),
    [(b"no separator", b":", False), (b"no tab", None, True), (b"h\tv", None, True)],
)
def test_a_line_without_its_separator_is_refused(
    line: bytes, key_separator: bytes | None, parse_headers: bool
) -> None:
    with pytest.raises(WrongUse):
        record_of_line(
            line, key_separator=key_separator, parse_headers=parse_headers, null_text=None
        )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"key": "a", "vaule": "x"}', "'value'"),
        (b'{"key": "a", "Value": "x"}', "'value'"),
        (b'{"key": "a", "payload": "x"}', "unknown member 'payload'"),
        (b'{"key": "a"}', '"value": null'),
        (b'{"value": "x", "value_base64": "eA=="}', "both value and value_base64"),
        (b'{"value_base64": null}', "value_base64 is no text"),
        (b'{"value": "x", "value": null}', "'value' is given twice"),
        (b'{"value": {"a": 1, "a": 2}}', "'a' is given twice"),
        (b'{"value": "x", "partition": "1"}', "a partition is a number from 0"),
        (b'{"value": "x", "partition": -1}', "a partition is a number from 0"),
        (b'{"value": "x", "headers": [{"name": "h", "valeu": "x"}]}', "'value'"),
    ],
)
def test_a_misspelt_member_writes_no_tombstone(line: bytes, said: str) -> None:
    with pytest.raises(WrongUse) as refused:
        record_of_json(line)
    assert said in str(refused.value)
    assert record_of_json(b'{"key": "a", "value": null}').value is None
