"""What happens in a soak, from its seed alone: pure, so that a seed tells the same story again.

    steps(seed)   step after step for ever: faults that the store shows from now on, then one event

Events come from a deck that holds each kind once and is shuffled when it is used up, so that a long
run sees all of them about equally often, and a short one does not see one kind twice. When a step
begins is decided by the machine; what it does, and in which order, by the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from strandline.storage.crash_points import CRASH_POINTS
from tests.support.fault_proxy import Action, Rule

# What a running broker can be made to die at, and a restore.
BROKER_POINTS = tuple(
    point
    for point in CRASH_POINTS
    if point.split(".")[0] in ("copy", "merge", "compact", "delete", "purge", "tail", "move")
)
RESTORE_POINTS = tuple(point for point in CRASH_POINTS if point.startswith("restore."))


class Event(Enum):
    """What is done to the broker; the value is what the report calls it."""

    KILL = "kill -9 and start"
    STOP = "SIGTERM and start"
    CRASH_AT = "die at a numbered step"
    STORE_AWAY = "store away"
    STORE_REFUSES = "store answers 503"
    STORE_HANGS = "store never answers"
    DELETE_RECORDS = "DeleteRecords"
    RECREATE = "topic deleted and made again"
    PAUSE_COPYING = "copying off and on"
    TURN_OFF = "tiering off and on"
    RETAIN = "retention shortened"
    KEEP_LOCALLY = "local retention changed"
    ROLL = "segments rolled faster"
    LOSE_DISK = "disk lost, restored"
    REJOIN = "a member leaves and joins"
    MOVE = "moved between log folders"
    REPLICA = "replica killed or stopped"


# Deaths at a named step come oftener than the others: there are many steps.
DECK = (*Event, Event.CRASH_AT, Event.CRASH_AT, Event.KILL, Event.MOVE)

REFUSALS = (
    (403, "AccessDenied"),
    (404, "NoSuchKey"),
    (409, "ConditionalRequestConflict"),
    (500, "InternalError"),
    (503, "SlowDown"),
)
# What of the store a fault strikes: method and path.
TARGETS = (
    ("PUT", r"\.log"),
    ("PUT", r"\.meta"),
    ("PUT", r"\.tail"),
    ("PUT", r"manifest\.json"),
    ("GET", r"\.log"),
    ("GET", r"\.meta"),
    ("GET", r"manifest\.json"),
    ("HEAD", r"\.log|\.meta"),
    ("POST", r"\?delete"),
    ("GET", r"list-type=2"),
    ("PUT", r"metadata/|groups/|topic\.json"),
)
# Where a body breaks or a bit flips: in the first header, in the first batch, well inside.
PLACES = (0, 700, 40_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn: `rules` hold until the next step; numbers in [0, 1) choose among what there is."""

    number: int
    rules: tuple[Rule, ...]
    event: Event
    point: str
    choice: float
    pause_s: float


def steps(seed: int) -> Iterator[Step]:
    """The story of a seed; it does not end."""
    chance = random.Random(seed)
    number = 0
    deck: list[Event] = []
    while True:
        if not deck:
            deck = list(DECK)
            chance.shuffle(deck)
        event = deck.pop()
        points = RESTORE_POINTS if event is Event.LOSE_DISK else BROKER_POINTS
        yield Step(
            number=number,
            rules=tuple(_rule(chance) for _ in range(chance.choice((0, 1, 1, 2, 3)))),
            event=event,
            point=chance.choice(points),
            choice=chance.random(),
            pause_s=chance.uniform(0.3, 2.5),
        )
        number += 1


def _rule(chance: random.Random) -> Rule:
    action = chance.choice(list(Action))
    method, path = chance.choice(TARGETS)
    status, code = chance.choice(REFUSALS)
    return Rule(
        action=action,
        method=method,
        path=path,
        skip=chance.choice((0, 0, 1, 3)),
        times=chance.randint(1, 4),
        status=status,
        code=code,
        delay_s=chance.uniform(0.2, 3.0),
        at_byte=chance.choice(PLACES),
        bytes_per_s=chance.choice((2_000, 50_000)),
    )


def describe(rule: Rule) -> str:
    """One word or two for the report."""
    name = rule.action.name.lower().replace("_", " ")
    return f"{rule.status} {rule.code}" if rule.action is Action.STATUS else name
