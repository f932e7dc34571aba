"""Counts of things, as people say them."""

from __future__ import annotations

from strandline.storage.plurals import counted


def test_one_thing_is_told_as_one() -> None:
    told = [counted(count, "entry", "entries") for count in (0, 1, 1200)]
    assert told == ["0 entries", "1 entry", "1,200 entries"]
