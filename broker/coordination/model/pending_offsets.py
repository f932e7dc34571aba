"""Offsets that were committed in transactions which are still open.

add         a commit in a transaction: nobody reads it yet, and its partition is unstable
overtake    a commit outside of it, or a tombstone: the later record wins, whatever the
            transaction comes to
end         the marker: the caller applies the records of a committed transaction, which overtake
            what other transactions wrote before them: the later record wins, whichever ends first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from strandline.broker.coordination.model.offset_messages import OffsetRecord

_Counted = TypeVar("_Counted")


class _Place(NamedTuple):
    group_id: str
    topic: str
    partition: int


class _Pending(NamedTuple):
    """The last record of a partition in a transaction; None: a later one elsewhere overtook it."""

    number: int
    record: OffsetRecord | None


class PendingOffsets:
    """The pending offsets of one partition of `__consumer_offsets`, by producer."""

    def __init__(self) -> None:
        self._open: dict[int, dict[_Place, _Pending]] = {}
        # Numbers the records in the order of the log.
        self._added = 0
        # In how many transactions a partition is, and how many such partitions a group has.
        self._places: Counter[_Place] = Counter()
        self._groups: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"<PendingOffsets {len(self)} of {len(self._open)} producers>"

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset of this partition."""
        return (group_id, topic, partition) in self._places

    def has_group(self, group_id: str) -> bool:
        return group_id in self._groups

    def topics(self) -> set[str]:
        return {place.topic for place in self._places}

    def add(self, producer_id: int, record: OffsetRecord) -> None:
        place = _place_of(record)
        offsets = self._open.setdefault(producer_id, {})
        if place not in offsets:
            self._places[place] += 1
            self._groups[place.group_id] += 1
        self._added += 1
        offsets[place] = _Pending(self._added, record)

    def overtake(self, record: OffsetRecord) -> None:
        """Notes a record that was written outside of any transaction."""
        self._overtake(_place_of(record), self._added)

    def _overtake(self, place: _Place, last_number: int) -> None:
        """Drops the pending records of a partition up to this number; it stays unstable."""
        if place in self._places:
            for offsets in self._open.values():
                pending = offsets.get(place)
                if pending is not None and pending.number <= last_number:
                    offsets[place] = pending._replace(record=None)

    def end(self, producer_id: int, *, is_commit: bool) -> list[OffsetRecord]:
        """Removes the producer's transaction; returns its records that count now."""
        offsets = self._open.pop(producer_id, {})
        for place in offsets:
            _discount(self._places, place)
            _discount(self._groups, place.group_id)
        counting = []
        for place, pending in offsets.items():
            if is_commit and pending.record is not None:
                self._overtake(place, pending.number)
                counting.append(pending.record)
        return counting

    def tombstones(self, is_gone: Callable[[OffsetRecord], bool]) -> Iterator[OffsetRecord]:
        """Returns tombstones of the pending offsets that are to be forgotten."""
        for offsets in self._open.values():
            for _, record in offsets.values():
                if record is not None and is_gone(record):
                    yield OffsetRecord(record.group_id, record.topic, record.partition, None)


def _place_of(record: OffsetRecord) -> _Place:
    return _Place(record.group_id, record.topic, record.partition)


def _discount(counter: Counter[_Counted], counted: _Counted) -> None:
    counter[counted] -= 1
    if not counter[counted]:
        del counter[counted]
