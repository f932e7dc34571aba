"""How far a consumer has come, and why it stopped before its end.

librdkafka retries for ever and reports neither a broker that is gone nor an offset that cannot be
read: nothing arrives. So a reader is judged by what it knows itself: the offset that it has
reached, the end of each partition, and since when nothing has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from strandline.storage.model import Offset
from strandline.storage.plurals import counted

Key: TypeAlias = tuple[str, int]

# A consumer that is throttled, or a store that is slow, sends something by then.
STALLED_S = 30.0
# A broker that restarts is back by then, unless it has very much to recover.
AWAY_S = 30.0
# How many partitions are named.
PLACES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Place:
    """A partition, the offset that a reader has reached there, and its end; -1 if unknown."""

    key: Key
    offset: Offset
    end_offset: Offset

    def __str__(self) -> str:
        name = f"{self.key[0]}-{self.key[1]}"
        if self.offset < 0:
            return name
        end = f" of {self.end_offset}" if self.end_offset >= 0 else ""
        return f"{name} at offset {self.offset}{end}"


class Reading:
    """What a consumer has read, and since when it has heard nothing."""

    def __init__(self, starts: Mapping[Key, Offset], ends: Mapping[Key, Offset], now_s: float):
        """`ends` are those that the consumer can reach; it is there where it starts behind one."""
        self._offsets = dict(starts)
        self._ends = dict(ends)
        self._at_end = {key for key, end in ends.items() if starts.get(key, -1) >= end}
        self._heard_s = now_s
        self.count = 0
        # Whether the last news of the brokers was that all of them are gone, and since when.
        self._away_s: float | None = None

    def read(self, key: Key, offset: Offset, now_s: float) -> None:
        """Takes note of a record."""
        self.count += 1
        self._offsets[key] = offset + 1
        self._at_end.discard(key)
        self._note_heard(now_s)

    def reached_end(self, key: Key, offset: Offset, now_s: float) -> None:
        """Takes note that a partition has nothing behind `offset` at present."""
        self._at_end.add(key)
        self._offsets[key] = self._ends[key] = offset
        self._note_heard(now_s)

    def _note_heard(self, now_s: float) -> None:
        self._heard_s, self._away_s = now_s, None

    def brokers_away(self, now_s: float) -> None:
        """Takes note that no broker can be reached."""
        if self._away_s is None:
            self._away_s = now_s

    def brokers_back(self) -> None:
        self._away_s = None

    def is_away(self, now_s: float) -> bool:
        """Returns whether no broker has been reachable for longer than a restart takes."""
        return self._away_s is not None and now_s - self._away_s >= AWAY_S

    def silence_s(self, now_s: float) -> float:
        return now_s - self._heard_s

    def unread(self, assigned: Iterable[Key]) -> list[Place]:
        """Returns the partitions that are not read to their end."""
        return [
            Place(key, self._offsets.get(key, -1), self._ends.get(key, -1))
            for key in sorted(set(assigned) - self._at_end)
        ]

    def is_stalled(self, assigned: Iterable[Key], now_s: float) -> bool:
        """Returns whether there are records, and none of them has come for long."""
        return self.silence_s(now_s) >= STALLED_S and bool(self.unread(assigned))


def stopped_text(count: int, places: list[Place], *, silence_s: float) -> str:
    """`stopped after 3 records: nothing came for 30 s; orders-0 at offset 1200 of 5000`."""
    named = "; ".join(map(str, places[:PLACES_SHOWN]))
    others = len(places) - PLACES_SHOWN
    more = f" and {counted(others, 'other partition')}" if others > 0 else ""
    where = f"; {named}{more}" if places else ""
    return f"stopped after {counted(count, 'record')}: nothing came for {silence_s:.0f} s{where}"
