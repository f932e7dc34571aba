"""Faults that are planted into the product, and the search for a world that reveals one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sim.several.scenarios import Clients, play_scenario

# That are searched from the first one on.
WORLDS = 40


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is planted, and what a checker says of it."""

    plant: Callable[[pytest.MonkeyPatch], None]
    clients: Clients
    words: Sequence[str]
    # The troubles that reveal it; None are all.
    only: Sequence[str] | None = None
    troubles: int = 6
    replicas: int = 1
    is_synced: bool = True
    is_archived: bool = False
    first_world: int = 0

    def world_that_reveals(self, folder: Path, count: int = WORLDS) -> int | None:
        """Returns the first of the worlds in which a checker says one of the words."""
        for seed in range(self.first_world, self.first_world + count):
            try:
                play_scenario(
                    seed,
                    folder / str(seed),
                    self.clients,
                    troubles=self.troubles,
                    only=self.only,
                    replicas=self.replicas,
                    is_synced=self.is_synced,
                    is_archived=self.is_archived,
                )
            except (AssertionError, ExceptionGroup) as error:
                if any(word in text for text in _messages_of(error) for word in self.words):
                    return seed
        return None


def by_name(faults: Iterable[Fault]) -> Mapping[str, Fault]:
    return {f"{one.plant.__name__}-{_name(one.clients)}": one for one in faults}


def _name(clients: Clients) -> str:
    return str(getattr(clients, "__name__", clients))


def _messages_of(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for one in error.exceptions for text in _messages_of(one)]
    return [str(error)] if isinstance(error, AssertionError) else []
