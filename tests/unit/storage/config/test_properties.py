"""Java properties files are read as Java reads them, but for UTF-8."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.storage.config.properties import (
    PROPERTIES_BYTES_MAX,
    parse_override,
    parse_properties,
    read_properties,
)
from strandline.storage.errors import InvalidConfig


def parsed(text: str) -> dict[str, str]:
    return {entry.key: entry.value for entry in parse_properties(text, name="f")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\t:\tb=c", {"a": "b=c"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("  a=b", {"a": "b"}),
        ("# a=b\n! c=d\n\n", {}),
        ("a=b#c", {"a": "b#c"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=b,\\\n    c", {"a": "b,c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# c", {"a": "b# c"}),
        ("# a\\\nb=c", {"b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a\\:b=c", {"a:b": "c"}),
        ("a=\\t\\u00e9\\q", {"a": "\téq"}),
        ("a=\\ud83d\\ude00", {"a": "\U0001f600"}),
        ("a=é", {"a": "é"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\\", {"a": "b"}),
        ("\\\n\\\na=b", {"a": "b"}),
    ],
)
def test_entries_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parsed(text) == expected


@pytest.mark.parametrize("text", ["a=\\ud800", "a\\ude00=b", "a=\\ude00\\ud83d"])
def test_half_of_a_character_is_refused_with_its_line(text: str) -> None:
    """Nothing could be called so, and no message could be written about it."""
    with pytest.raises(InvalidConfig, match="f line 1: half of a pair"):
        parsed(text)


@pytest.mark.parametrize("text", ["a=b\0c", "a=\\u0000", "a\0=b"])
def test_a_nul_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(InvalidConfig, match="f line 1: a NUL"):
        parsed(text)


def test_every_entry_knows_its_first_line() -> None:
    entries = parse_properties("# one\na=1,\\\n 2\nb=3", name="server.properties")
    assert [entry.origin for entry in entries] == [
        "server.properties line 2",
        "server.properties line 4",
    ]


@pytest.mark.parametrize("text", ["=b", ":b", "a=\\u12", "a=\\uzzzz"])
def test_an_entry_that_java_would_refuse_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(InvalidConfig, match="f line 1"):
        parsed(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidConfig):
        parsed(text)


_PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\\\0"), min_size=1, max_size=20)


@given(st.dictionaries(_PLAIN, _PLAIN, max_size=5))
def test_escaped_entries_come_back_as_they_were(entries: dict[str, str]) -> None:
    def escape(text: str) -> str:
        return "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text)

    text = "\n".join(f"{escape(key)}={escape(value)}" for key, value in entries.items())
    assert parsed(text) == entries


def test_an_override_is_split_at_its_first_equals_sign() -> None:
    entry = parse_override("strandline.remote.url = s3://b/p?x=y")
    assert (entry.key, entry.value, entry.origin) == (
        "strandline.remote.url",
        "s3://b/p?x=y",
        "--set",
    )


@pytest.mark.parametrize("text", ["", "a", "=b", " =b"])
def test_an_override_without_key_and_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="expected key=value"):
        parse_override(text)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"nowhere\.properties: No such file"):
        read_properties(tmp_path / "nowhere.properties")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes("\ufeffnode.id=1\r\nlog.dirs=data\r\n".encode())
    assert [entry.key for entry in read_properties(path)] == ["node.id", "log.dirs"]


def test_a_file_that_is_no_text_or_far_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"a=\xff")
    with pytest.raises(InvalidConfig, match="not UTF-8"):
        read_properties(path)
    path.write_bytes(b"#" * (PROPERTIES_BYTES_MAX + 1))
    with pytest.raises(InvalidConfig, match="is it the right file"):
        read_properties(path)


@pytest.mark.parametrize("content", ['{"node.id": 1}', ' \n[\n"a"]'])
def test_a_file_of_json_is_called_one(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broker.json"
    path.write_text(content)
    with pytest.raises(InvalidConfig, match="is JSON; expected lines of key=value"):
        read_properties(path)
