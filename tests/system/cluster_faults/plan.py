"""What happens to a cluster, drawn from a seed: a list of troubles, told before anything is done.

Troubles overlap. Each lasts some time, shorter or longer than the session of a broker, and is
healed then: who died comes back, who stood still goes on, what was cut passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

# Between the beginnings of two troubles.
GAP_S = (0.3, 3.0)
# Shorter and longer than the session of a broker.
SHORT_S, LONG_S = (0.2, 3.0), (5.0, 12.0)
LONG_PART = 0.3
JUMP_MS = 600_000

# By kind: how often it is drawn beside others.
WEIGHTS = {
    "kill": 4,
    "stop": 3,
    "cut": 3,
    "cut one way": 2,
    "cut from the controller": 2,
    "isolate": 2,
    "ring": 1,
    "reset": 1,
    "restart": 1,
    "roll": 1,
    "kill controller": 1,
    "stop controller": 1,
    "kill all": 1,
    "lose power": 3,
    "full disk": 1,
    "broken disk": 1,
    "jump": 1,
    "store away": 1,
    "reassign": 4,
    "elect": 2,
    "kill client": 2,
}
KINDS = tuple(WEIGHTS)
# Needs a bucket behind a proxy.
STORE_AWAY = "store away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """`brokers` are whom it strikes, the first first; `chance` is for what else it draws."""

    at_s: float
    kind: str
    lasts_s: float
    brokers: tuple[int, ...]
    chance: int

    def __str__(self) -> str:
        return f"{self.kind} {','.join(map(str, self.brokers))} for {self.lasts_s:.1f} s"


def draw(
    seed: int, *, brokers: int, seconds: float, kinds: Sequence[str] = KINDS, calm: float = 1.0
) -> list[Trouble]:
    """The troubles of so many seconds; the same seed draws the same.

    `calm` is how many times as far apart as by default they begin.
    """
    chance, found = Random(seed), []
    at_s = 0.0
    weights = [WEIGHTS[kind] for kind in kinds]
    while True:
        at_s += calm * chance.uniform(*GAP_S)
        if at_s >= seconds:
            return found
        lasts_s = chance.uniform(*(LONG_S if chance.random() < LONG_PART else SHORT_S))
        found.append(
            Trouble(
                at_s=at_s,
                kind=chance.choices(kinds, weights)[0],
                lasts_s=lasts_s,
                brokers=tuple(chance.sample(range(1, brokers + 1), brokers)),
                chance=chance.randrange(2**32),
            )
        )
