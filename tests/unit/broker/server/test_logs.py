"""What a line of the log looks like, whatever somebody else's names are made of."""

from __future__ import annotations

import logging

import pytest

from strandline.broker.server.logs import FIELD_CHARACTERS_MAX, FieldFormatter


def line(**fields: object) -> str:
    record = logging.LogRecord("strandline.broker.x", logging.INFO, "", 0, "event", (), None)
    record.fields = fields
    return FieldFormatter().format(record).partition("broker.x ")[2]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain-1", "plain-1"),
        ("ü日本", "ü日本"),
        ("", '""'),
        ("a b", '"a b"'),
        ("a=b", '"a=b"'),
        ('say "it"\\', '"say \\"it\\"\\\\"'),
        ("two\nlines\r\n", '"two\\nlines\\r\\n"'),
        ("\x1b[2J\x00\x07", '"\\x1b[2J\\x00\\x07"'),
        # Lines to some readers of logs, and text that is set backwards.
        ("\x0b\x85\u2028\u202e", '"\\x0b\\x85\\u2028\\u202e"'),
        ("\ud800", '"\\ud800"'),
        (12, "12"),
    ],
)
def test_no_value_can_forge_a_line_or_steer_a_terminal(value: object, shown: str) -> None:
    assert line(group=value) == f"event group={shown}"


def test_a_very_long_value_is_cut_and_its_length_told() -> None:
    said = line(group="g" * 32767, generation=3)
    assert said.endswith(' (32767 characters)" generation=3')
    assert len(said) < FIELD_CHARACTERS_MAX + 100
    assert line(reason="r" * FIELD_CHARACTERS_MAX).endswith("r" * FIELD_CHARACTERS_MAX)
