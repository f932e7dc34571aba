"""Documents that say what they are and whether they are whole."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.remote.manifest.json_document import (
    Fields,
    decode_document,
    encode_document,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=3,
)
fields_dicts = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name != "format"), json_values, max_size=4
)


def decode(content: bytes) -> Fields:
    return decode_document(content, format_name="test", versions=range(1, 3), source="t.json")


@settings(max_examples=25)
@given(fields_dicts)
def test_a_document_is_read_as_it_was_written(fields: dict[str, Any]) -> None:
    decoded = decode(encode_document("test", 2, fields))
    assert {name: decoded._get(name) for name in fields} == fields


@settings(max_examples=25)
@given(fields_dicts)
def test_formatting_by_hand_does_not_harm(fields: dict[str, Any]) -> None:
    document = json.loads(encode_document("test", 1, fields))
    decode(json.dumps(document, indent=4).encode())


@settings(max_examples=25)
@given(fields_dicts, st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_no_flipped_bit_changes_what_is_read(
    fields: dict[str, Any], place: float, bit: int
) -> None:
    """Some bits change nothing: case in an escape, the kind of white space at the end."""
    content = bytearray(encode_document("test", 1, fields))
    content[int(place * len(content))] ^= 1 << bit
    try:
        decoded = decode(bytes(content))
    except (CorruptFile, UnsupportedFormat):
        return
    assert {name: decoded._get(name) for name in fields} == fields


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused_with_the_name_of_the_object(content: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"t\.json"):
        decode(content)


def test_a_torn_or_deeply_nested_document_is_corrupt() -> None:
    whole = encode_document("test", 1, {"a": [1, 2, 3]})
    for content in (whole[: len(whole) // 2], b"[" * 100_000, b"[]", b""):
        with pytest.raises(CorruptFile):
            decode(content)


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_as_deeply_as_can_just_be_read_is_corrupt(begin: str, end: str) -> None:
    """Writing it for its checksum goes deeper than reading it."""
    for depth in range(sys.getrecursionlimit()):
        content = f'{{"format":"test","version":1,"x":{begin * depth}0{end * depth}}}'
        with pytest.raises(CorruptFile):
            decode(content.encode())


def test_a_later_version_is_unsupported_whatever_its_checksum() -> None:
    content = encode_document("test", 3, {}).replace(b'"crc32c":"', b'"crc32c":"sha:')
    with pytest.raises(
        UnsupportedFormat, match=r"version 3, .* a later release wrote it, start that one"
    ):
        decode(content)


def test_another_format_is_corrupt() -> None:
    with pytest.raises(CorruptFile, match="other"):
        decode(encode_document("other", 1, {}))


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda f: f.integer("x"), "1"),
        (lambda f: f.integer("x"), True),
        (lambda f: f.integer("x"), 1.5),
        (lambda f: f.integer("y"), 1),
        (lambda f: f.integer("x"), 2**63),
        (lambda f: f.integer("x"), -(2**63) - 1),
        (lambda f: f.count("x"), -1),
        (lambda f: f.integers("x"), [10**400]),
        (lambda f: list(f.integer_pairs("x")), [[1, 2**63]]),
        (lambda f: list(f.integer_pairs("x")), [[1, True]]),
        (lambda f: list(f.rows("x", 2)), [[1, 2**64]]),
        (lambda f: f.text("x"), None),
        (lambda f: f.boolean("x"), 1),
        (lambda f: f.uuid("x"), "no uuid"),
        (lambda f: f.crc("x"), "xyz"),
        (lambda f: f.texts_by_name("x"), {"a": 1}),
        (lambda f: list(f.integer_pairs("x")), [[1]]),
        (lambda f: list(f.rows("x", 2)), [[1, 2, 3]]),
        (lambda f: list(f.rows("x", 2)), [[1, "2"]]),
        (lambda f: list(f.objects("x")), [1]),
        (lambda f: list(f.objects("x")), {}),
    ],
)
def test_a_field_of_the_wrong_type_is_corrupt(read: Any, value: Any) -> None:
    with pytest.raises(CorruptFile):
        read(Fields({"x": value}, "t.json"))
