"""Search of all states of a small world, breadth first: the first wrong one has the shortest story.

A world is a value. Its steps are all that may happen next, each with its name: no time, no chance,
so a pause of any length is only an order of steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

WorldT = TypeVar("WorldT", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """What a search found: `fault` is empty if no state is wrong; `story` leads to the first."""

    state_count: int
    fault: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{number:3d} {step}" for number, step in enumerate(self.story, 1)]
        return "\n".join([f"{self.state_count} states: {self.fault or 'none is wrong'}", *lines])


class TooManyStates(Exception):
    """The world is larger than its test believes."""


@dataclass(frozen=True, slots=True)
class _Way(Generic[WorldT]):
    """How a state was reached first."""

    before: WorldT
    step: str


def explore(
    start: WorldT,
    steps: Callable[[WorldT], Iterable[tuple[str, WorldT]]],
    fault_of: Callable[[WorldT], str],
    *,
    states_max: int,
) -> Explored:
    """Visits every state once, until one has a fault. Raises TooManyStates."""
    ways: dict[WorldT, _Way[WorldT] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        world = waiting.popleft()
        fault = fault_of(world)
        if fault:
            return Explored(state_count=len(ways), fault=fault, story=_story(ways, world))
        for step, after in steps(world):
            if after not in ways:
                ways[after] = _Way(world, step)
                waiting.append(after)
        if len(ways) > states_max:
            raise TooManyStates(f"more than {states_max} states")
    return Explored(state_count=len(ways), fault="", story=())


def _story(ways: dict[WorldT, _Way[WorldT] | None], world: WorldT) -> tuple[str, ...]:
    story: list[str] = []
    while (way := ways[world]) is not None:
        story.append(way.step)
        world = way.before
    return tuple(reversed(story))
