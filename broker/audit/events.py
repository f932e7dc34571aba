"""Events that clients cause as fast as they can: few are told in a minute, and each is counted.

    the first one of a kind in a minute     told at once
    the same again                          counted, and told when the minute ends
    more kinds than a client may have       counted together, apart from other clients

So an auditor learns of each event within a minute, also of the last ones before a client stops, and
nobody fills the disk: neither by repeating, nor with names that are made up, nor by many addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

# Kinds of one client that are told apart in a minute.
KINDS_OF_CLIENT_MAX: Final = 64
# Kinds of all clients together.
KINDS_MAX: Final = 10_000
# Clients whose further events are counted apart.
CLIENTS_MAX: Final = 1000
# What is kept of a name for a minute.
NAME_MAX: Final = 256

WhoT = TypeVar("WhoT", bound=Hashable)
KindT = TypeVar("KindT", bound=Hashable)


class LimitedEvents(Generic[WhoT, KindT]):
    """The events of the present minute, by who caused them and their kind."""

    def __init__(self) -> None:
        # How many came after the first.
        self._more: dict[tuple[WhoT, KindT], int] = {}
        self._kind_counts: Counter[WhoT] = Counter()
        # How many were not told apart; of more clients than CLIENTS_MAX together.
        self._others: Counter[WhoT | None] = Counter()

    def is_told(self, who: WhoT, kind: KindT) -> bool:
        """Notes an event; returns whether it is to be told at once."""
        key = who, kind
        count = self._more.get(key)
        if count is not None:
            self._more[key] = count + 1
            return False
        if self._kind_counts[who] < KINDS_OF_CLIENT_MAX and len(self._more) < KINDS_MAX:
            self._kind_counts[who] += 1
            self._more[key] = 0
            return True
        is_apart = who in self._others or len(self._others) < CLIENTS_MAX
        self._others[who if is_apart else None] += 1
        return False

    def turn(self) -> Iterator[tuple[WhoT | None, KindT | None, int]]:
        """Begins a minute; yields how many of the last one were not told, by who and kind.

        Without a kind it is of several, and without a client of several.
        """
        more, others = self._more, self._others
        self._more, self._kind_counts, self._others = {}, Counter(), Counter()
        for (who, kind), count in more.items():
            if count:
                yield who, kind, count
        for client, count in others.items():
            yield client, None, count
