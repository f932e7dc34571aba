"""A key is a field of its section: all that is known of it is read from there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from strandline.storage.config.definition import (
    BOOLEAN,
    INT,
    STRING,
    key,
    keys_by_heading,
    keys_of,
    section,
    with_values,
)
from strandline.storage.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    wait_ms: int = key("{side}.wait.s", INT, 2, "Wait of the {side}.", convert=lambda s: 1000 * s)
    name: str | None = key("name.of.{side}", STRING, None, "Its name.")
    # Worked out, and no key.
    worker_count: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    is_on: bool = key("on", BOOLEAN, False, "Whether it is on.")
    left: Part = section(Part, "Sides", side="left")
    right: Part = section(Part, "Sides", side="right")


def test_sections_give_their_keys_in_the_order_of_their_fields_with_their_own_words() -> None:
    keys = list(keys_of(Whole))
    assert [found.name for found in keys] == [
        "on",
        "left.wait.s",
        "name.of.left",
        "right.wait.s",
        "name.of.right",
    ]
    assert keys[3].doc == "Wait of the right."
    assert [found.name for found in keys_by_heading(Whole)["Sides"]] == [
        found.name for found in keys[1:]
    ]


def test_a_field_holds_its_default_in_its_own_unit_and_a_part_may_be_made_by_hand() -> None:
    assert Whole().left == Part(wait_ms=2000, name=None, worker_count=3)
    assert Part(wait_ms=5).wait_ms == 5


def test_values_go_to_the_fields_of_their_keys_and_other_sections_stay_the_same() -> None:
    whole = Whole(left=Part(worker_count=9))
    changed = with_values(whole, {"left.wait.s": 7, "unknown": 1})
    assert changed == Whole(left=Part(wait_ms=7, worker_count=9))
    assert changed.right is whole.right
    assert with_values(whole, {"unknown": 1}) is whole


def test_an_empty_text_unsets_a_key_that_may_be_unset_and_no_other() -> None:
    wait, name = list(keys_of(Part, {"side": "left"}))
    assert name.parse(" ") is None
    assert wait.parse("3") == 3000
    with pytest.raises(InvalidConfig, match=r"left\.wait\.s='': expected a whole number"):
        wait.parse("")
