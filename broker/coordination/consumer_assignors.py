"""The server-side assignors `uniform` and `range`: who is to read which partition.

    uniform    as equal as the subscriptions allow, and as few moves as that costs
    range      each topic for itself in runs of neighbours: partition n of all topics goes to the
               same member; nothing is kept on purpose

Both are functions of the members in order and of the partition counts. As in Kafka's
UniformAssignor and RangeAssignor, static members come first in `range`, by instance id, so that a
restart under the same instance id changes nothing.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TypeAlias

from strandline.broker.coordination.consumer_values import NO_PARTITIONS, Partitions
from strandline.storage.model import TopicId
from strandline.storage.values import dataclass

# Moves of single partitions settle at once in practice; this bounds a group that would not.
BALANCE_ROUNDS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedMember:
    """A member as an assignor sees it; `previous` is its last target."""

    member_id: str
    instance_id: str | None = None
    topic_ids: frozenset[TopicId]
    previous: Partitions = field(default_factory=lambda: NO_PARTITIONS)


PartitionCounts: TypeAlias = Mapping[TopicId, int]
Assignor: TypeAlias = Callable[[Sequence[AssignedMember], PartitionCounts], dict[str, Partitions]]


def assign_uniform(
    members: Sequence[AssignedMember], counts: PartitionCounts
) -> dict[str, Partitions]:
    """`counts` has every topic that any member subscribes to."""
    if not members:
        return {}
    topic_ids = members[0].topic_ids
    if all(member.topic_ids == topic_ids for member in members):
        return _assign_equals(members, topic_ids, counts)
    return _Balance(members, counts).settle()


def _assign_equals(
    members: Sequence[AssignedMember], topic_ids: frozenset[TopicId], counts: PartitionCounts
) -> dict[str, Partitions]:
    """All read the same topics: everybody gets the same number, or one more."""
    owned = {
        (topic_id, partition)
        for member in members
        for topic_id, partitions in member.previous.items()
        for partition in partitions
    }
    free = [
        (topic_id, partition)
        for topic_id in sorted(topic_ids)
        for partition in range(counts[topic_id])
        if (topic_id, partition) not in owned
    ]
    quota, extra = divmod(sum(counts[topic_id] for topic_id in topic_ids), len(members))
    kept: dict[str, dict[TopicId, set[int]]] = {}
    wanting: list[tuple[str, int]] = []
    for position, member in enumerate(members):
        room = quota + (position < extra)
        mine = kept[member.member_id] = {}
        for topic_id, partitions in member.previous.items():
            if topic_id not in topic_ids:
                continue
            known = sorted(p for p in partitions if p < counts[topic_id])
            free += ((topic_id, partition) for partition in known[room:])
            if known[:room]:
                mine[topic_id] = set(known[:room])
            room -= len(known[:room])
        if room:
            wanting.append((member.member_id, room))
    rest = iter(free)
    for member_id, room in wanting:
        for topic_id, partition in itertools.islice(rest, room):
            kept[member_id].setdefault(topic_id, set()).add(partition)
    return {member_id: _frozen(partitions) for member_id, partitions in kept.items()}


class _Balance:
    """Members that read different topics: begins with what they had, then evens out."""

    def __init__(self, members: Sequence[AssignedMember], counts: PartitionCounts) -> None:
        self._counts = counts
        self._readers: dict[TopicId, list[str]] = defaultdict(list)
        self._owners: dict[TopicId, dict[int, str]] = defaultdict(dict)
        self._load: dict[str, int] = {member.member_id: 0 for member in members}
        for member in members:
            for topic_id in member.topic_ids:
                self._readers[topic_id].append(member.member_id)
        for member in members:
            for topic_id, partitions in member.previous.items():
                if topic_id not in member.topic_ids:
                    continue
                owners = self._owners[topic_id]
                for partition in partitions:
                    if partition < counts[topic_id] and partition not in owners:
                        owners[partition] = member.member_id
                        self._load[member.member_id] += 1

    def settle(self) -> dict[str, Partitions]:
        # Topics that few can read come first: the others can still make up for them.
        topics = sorted(
            self._readers, key=lambda topic_id: (len(self._readers[topic_id]), topic_id)
        )
        for topic_id in topics:
            owners = self._owners[topic_id]
            for partition in range(self._counts[topic_id]):
                if partition not in owners:
                    owners[partition] = self._least_loaded(topic_id)
                    self._load[owners[partition]] += 1
        for _ in range(BALANCE_ROUNDS_MAX):
            moves = [self._even_out(topic_id) for topic_id in topics]
            if not any(moves):
                break
        found: dict[str, dict[TopicId, set[int]]] = {member_id: {} for member_id in self._load}
        for topic_id, owners in self._owners.items():
            for partition, member_id in owners.items():
                found[member_id].setdefault(topic_id, set()).add(partition)
        return {member_id: _frozen(partitions) for member_id, partitions in found.items()}

    def _least_loaded(self, topic_id: TopicId) -> str:
        return min(self._readers[topic_id], key=lambda member_id: self._load[member_id])

    def _even_out(self, topic_id: TopicId) -> bool:
        """Moves partitions of one topic to members that have less; True if it moved any."""
        owners = self._owners[topic_id]
        moved = False
        for _ in range(len(owners)):
            partition, donor = max(owners.items(), key=lambda entry: self._load[entry[1]])
            receiver = self._least_loaded(topic_id)
            if self._load[donor] - self._load[receiver] < 2:
                break
            owners[partition] = receiver
            self._load[donor] -= 1
            self._load[receiver] += 1
            moved = True
        return moved


def assign_range(
    members: Sequence[AssignedMember], counts: PartitionCounts
) -> dict[str, Partitions]:
    """`counts` has every topic that any member subscribes to."""
    in_order = sorted(
        members,
        key=lambda member: (
            member.instance_id is None,
            member.member_id if member.instance_id is None else member.instance_id,
        ),
    )
    readers: dict[TopicId, list[str]] = defaultdict(list)
    for member in in_order:
        for topic_id in member.topic_ids:
            readers[topic_id].append(member.member_id)
    found: dict[str, dict[TopicId, set[int]]] = {member.member_id: {} for member in members}
    for topic_id, member_ids in readers.items():
        quota, extra = divmod(counts[topic_id], len(member_ids))
        start = 0
        for position, member_id in enumerate(member_ids):
            end = start + quota + (position < extra)
            if start < end:
                found[member_id][topic_id] = set(range(start, end))
            start = end
    return {member_id: _frozen(partitions) for member_id, partitions in found.items()}


ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {"uniform": assign_uniform, "range": assign_range}
)


def _frozen(partitions: Mapping[TopicId, set[int]]) -> Partitions:
    return {topic_id: frozenset(found) for topic_id, found in partitions.items() if found}
