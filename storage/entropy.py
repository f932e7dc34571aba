"""The only source of chance: ids that are drawn once, and jitter.

It is the system's, so nobody guesses an id. A simulation draws from a seed, and is the same again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random, SystemRandom

_source: Random = SystemRandom()


def new_id() -> uuid.UUID:
    """Returns a random UUID, of version 4."""
    return uuid.UUID(int=_source.getrandbits(128), version=4)


def number(first: int, last: int) -> int:
    """Returns one of [first, last]."""
    return _source.randint(first, last)


def fraction() -> float:
    """Returns one of [0, 1)."""
    return _source.random()


@contextmanager
def seeded(source: Random) -> Iterator[None]:
    """Inside the block everything is drawn from `source`."""
    global _source  # noqa: PLW0603 (a simulation has one, whatever brokers run in it)
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before
