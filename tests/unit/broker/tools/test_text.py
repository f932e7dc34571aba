"""What people type and see: moments, lengths of time, addresses, records as text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.tools.client.connection import connection_of, split_address
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.printing import print_table, remark, say
from strandline.broker.tools.client.record_text import (
    SeenRecord,
    json_of,
    line_of,
    record_of_json,
    record_of_line,
    shown,
)
from strandline.broker.tools.client.timestamps import duration_ms, moment_ago_ms, moment_ms
from strandline.storage.counted import counted


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("2013-01-01T10:00:00Z", 1357034400000),
        ("2013-01-01T11:00:00+01:00", 1357034400000),
        ("2013-01-01 10:00:00", 1357034400000),
        ("2013-01-01", 1356998400000),
        ("1357034400123", 1357034400123),
        # Negative times ask for something else: -1 for the end of the log.
        ("1969-12-31T23:59:59.999Z", 0),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_moment_is_iso_or_milliseconds_and_utc_unless_it_says(
    text: str, expected_ms: int
) -> None:
    assert moment_ms(text) == expected_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("90s", 90_000),
        ("15m", 900_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("250ms", 250),
        ("PT1H30M", 5_400_000),
        ("P1DT2S", 86_402_000),
    ],
)
def test_a_length_of_time_is_short_or_iso(text: str, expected_ms: int) -> None:
    assert duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "soon", "P", "PT", "-5m", "5", "5 m", "1x"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="no duration"):
        duration_ms(text)


def test_longer_ago_than_there_are_times_is_the_first_of_them() -> None:
    assert moment_ago_ms("15m", 1_000_000) == 100_000
    assert moment_ago_ms("99999999999d", 1_000_000) == 0


@pytest.mark.parametrize("text", ["yesterday", "2013-13-01", "-1", "", "²", str(2**63)])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="no moment"):
        moment_ms(text)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("broker:9093", ("broker", 9093)),
        ("broker", ("broker", 9092)),
        ("[::1]:9", ("::1", 9)),
        ("[::1]", ("::1", 9092)),
        ("PLAINTEXT://broker:1", ("broker", 1)),
    ],
)
def test_addresses_are_read_as_clients_read_them(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["", ":1", "a:b", "a:0", "a:65536"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(WrongUse):
        split_address(address)


def test_settings_of_the_command_line_win_over_the_file(tmp_path: pytest.TempPathFactory) -> None:
    file = tmp_path / "client.properties"  # type: ignore[operator]
    file.write_text("# a comment\n\nsasl.username = me\nclient.id=a\n")
    connection = connection_of("b:1", ["client.id=b"], file)
    assert connection.client_settings(group_id="g") == {
        "bootstrap.servers": "b:1",
        "group.id": "g",
        "sasl.username": "me",
        "client.id": "b",
    }


def seen(**fields: object) -> SeenRecord:
    usual = {"topic": "t", "partition": 1, "offset": 7, "timestamp_ms": 1357034400000}
    usual |= {"key": b"k", "value": b"v", "headers": (("h", b"x"),)}
    return SeenRecord(**(usual | fields))  # type: ignore[arg-type]


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
        b'{"headers": {"a": 1}}',
        b'{"timestamp": "now"}',
        b'{"value_base64": "!"}',
        '{"value_base64": "ä"}'.encode(),
        b'{"value": "\\ud800"}',
        b'{"headers": [{"name": "\\ud800"}]}',
        b'{"timestamp": 9223372036854775808}',
        b'{"timestamp": -2}',
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
    "name", ["[bold]x[/bold]", "[/x]", "\\[/x]", "[", "a\\", "[link=file:///etc]x", "[0,10)"]
)
def test_brackets_in_somebodys_names_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """They are markup to the library that draws the table, and some of it ends in a traceback."""
    wide = "w" * 80
    print_table(f"group {name}", ["group", "other"], [[name, wide]])
    title, *_, row = filter(None, (line.strip() for line in capsys.readouterr().out.splitlines()))
    assert (title, row.removesuffix(wide).strip()) == (f"group {name}", name)


def test_names_do_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[2J\x1b]0;mine\x07\x9b31m\u202e"
    print_table(name, ["group"], [[name]])
    say(f"deleted group {name}\nand another")
    remark(name)
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert all(one.isprintable() for line in text.splitlines() for one in line)
        assert "\\x1b[2J" in text
    assert captured.out.endswith("\nand another\n")


def test_one_thing_is_told_as_one() -> None:
    told = [counted(count, "entry", "entries") for count in (0, 1, 1200)]
    assert told == ["0 entries", "1 entry", "1,200 entries"]
