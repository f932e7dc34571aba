"""What `make test-heavy` runs beside `make test`: more of the same kind, which takes minutes.

Of a family that dies at each step, or of random histories, `make test` has the members that say
most; the others are marked `heavy`. Each step is also met by the unit tests, without processes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

HEAVY = pytest.mark.heavy


def heavy(*values: Any) -> Any:
    """A set of parameters for `make test-heavy` alone."""
    return pytest.param(*values, marks=HEAVY)


def all_but(light: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """All of `values`, those that are not `light` for `make test-heavy` alone.

    A tuple has a value for each of several parameters.
    """
    return [
        value if value in light else heavy(*(value if isinstance(value, tuple) else (value,)))
        for value in values
    ]


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """All of `values`, those behind the first `count` for `make test-heavy` alone."""
    return [value if place < count else heavy(value) for place, value in enumerate(values)]
