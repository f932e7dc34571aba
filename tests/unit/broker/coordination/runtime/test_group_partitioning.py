"""Groups are found where Kafka puts them."""

from __future__ import annotations

import pytest

from strandline.broker.coordination.runtime.slots import (
    coordinating_partition,
    java_hash,
)


@pytest.mark.parametrize(
    ("text", "signed"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("ä", 228),
        ("😀", 1772899),
    ],
)
def test_java_hash_is_that_of_java(text: str, signed: int) -> None:
    assert java_hash(text) == signed % 2**32


@pytest.mark.parametrize("group_id", ["g", "polygenelubricants", "", "ü" * 100])
def test_every_group_has_a_partition(group_id: str) -> None:
    assert 0 <= coordinating_partition(group_id, 50) < 50


def test_the_smallest_hash_of_all_belongs_to_partition_zero() -> None:
    assert coordinating_partition("polygenelubricants", 50) == 0
