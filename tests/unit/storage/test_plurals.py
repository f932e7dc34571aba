"""Counts and sizes, as people say them."""

from __future__ import annotations

from strandline.storage.plurals import counted, human_bytes


def test_one_thing_is_told_as_one() -> None:
    told = [counted(count, "entry", "entries") for count in (0, 1, 1200)]
    assert told == ["0 entries", "1 entry", "1,200 entries"]


def test_sizes_are_readable() -> None:
    sizes = (0, 1, 1023, 1536, 5 << 20, 3 << 40, 5 << 60)
    told = ["0 B", "1 B", "1023 B", "1.5 KiB", "5.0 MiB", "3.0 TiB", "5120.0 PiB"]
    assert [human_bytes(size) for size in sizes] == told
