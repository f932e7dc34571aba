"""Events that clients cause as fast as they can: few lines a minute, and every event is counted.

    the first one of a kind in a minute     a line at once
    the same again                          counted, and told when the minute ends
    more kinds than a client may have       counted together for that client

So an auditor learns of each event within a minute, also of the last ones before a client stops, and
nobody fills the disk: neither by repeating, nor with names that are made up, nor by many addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

# Kinds of one client that are told apart in a minute.
KINDS_OF_CLIENT_MAX: Final = 64
# Kinds of all clients together.
KINDS_MAX: Final = 10_000
# Clients whose further events are counted apart.
CLIENTS_MAX: Final = 1000
COUNT: Final = "not_recorded"

# What is the same of several events: names and values.
About: TypeAlias = tuple[tuple[str, str], ...]


class LimitedEvents:
    """The events of one name in the present minute."""

    def __init__(self, say: Callable[[Mapping[str, object]], None]) -> None:
        """`say` writes a line."""
        self._say = say
        # By client and kind, how many came after the first.
        self._more: dict[tuple[About, About], int] = {}
        self._kind_counts: Counter[About] = Counter()
        # By client, how many were not told apart.
        self._others: Counter[About] = Counter()

    def note(
        self, client: Mapping[str, str], about: Mapping[str, str], fields: Mapping[str, object]
    ) -> None:
        """Notes an event: `client` says who caused it, `about` its kind, `fields` all of it."""
        who = tuple(client.items())
        kind = who, tuple(about.items())
        if kind in self._more:
            self._more[kind] += 1
        elif self._kind_counts[who] < KINDS_OF_CLIENT_MAX and len(self._more) < KINDS_MAX:
            self._kind_counts[who] += 1
            self._more[kind] = 0
            self._say(fields)
        elif who in self._others or len(self._others) < CLIENTS_MAX:
            self._others[who] += 1
        else:
            self._others[()] += 1

    def turn(self) -> Iterator[Mapping[str, object]]:
        """Begins a minute; yields what the lines of the last one lack."""
        more, others = self._more, self._others
        self._more, self._kind_counts, self._others = {}, Counter(), Counter()
        for (who, kind), count in more.items():
            if count:
                yield {**dict(who), **dict(kind), COUNT: count}
        for who, count in others.items():
            yield {**dict(who), COUNT: count}
