"""The server-side assignors `uniform` and `range`.

    uniform    as even as the subscriptions allow, with few moves
    range      each topic separately, in contiguous runs: partition n of all topics goes to the
               same member; not sticky

Both are functions of the members in order and of the partition counts. As in Kafka's
UniformAssignor and RangeAssignor, static members come first in `range`, by instance id, so that a
restart under the same instance id changes nothing.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from strandline.broker.coordination.model.consumer_messages import NO_PARTITIONS, Partitions
from strandline.storage.model import TopicId


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
    """All members read the same topics: each gets the same number, or one more."""
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


@dataclass(slots=True, kw_only=True)
class _Holding:
    """Partitions of one topic held by one member; the ones it has not read before move first."""

    kept: list[int] = field(default_factory=list)
    gained: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.kept or self.gained)

    def give(self) -> int:
        return (self.gained or self.kept).pop()


class _Balance:
    """Balances members with different subscriptions, starting from their previous assignment.

    A partition moves from a member to one that has at least two less, directly or along a chain of
    members: the first gives a partition of one topic to the second, the second one of another topic
    to the third. The shortest chain is taken, to minimise moves. Each chain reduces the sum of the
    squares of the loads, so this ends; when no chain is left, no other assignment is more even.
    (Kafka's assignor only looks for chains of one step.)
    """

    def __init__(self, members: Sequence[AssignedMember], counts: PartitionCounts) -> None:
        self._counts = counts
        self._readers: dict[TopicId, list[str]] = defaultdict(list)
        self._owned: dict[TopicId, set[int]] = defaultdict(set)
        self._held: dict[str, dict[TopicId, _Holding]] = {m.member_id: {} for m in members}
        self._load: dict[str, int] = {member.member_id: 0 for member in members}
        for member in members:
            for topic_id in sorted(member.topic_ids):
                self._readers[topic_id].append(member.member_id)
        for member in members:
            for topic_id, partitions in member.previous.items():
                if topic_id in member.topic_ids:
                    self._keep(member.member_id, topic_id, partitions)

    def _keep(self, member_id: str, topic_id: TopicId, partitions: frozenset[int]) -> None:
        count, owned = self._counts[topic_id], self._owned[topic_id]
        kept = sorted(p for p in partitions if p < count and p not in owned)
        owned.update(kept)
        if kept:
            self._held[member_id][topic_id] = _Holding(kept=kept)
            self._load[member_id] += len(kept)

    def settle(self) -> dict[str, Partitions]:
        # Topics with few readers come first: members with other topics can still compensate.
        topics = sorted(
            self._readers, key=lambda topic_id: (len(self._readers[topic_id]), topic_id)
        )
        for topic_id in topics:
            for partition in range(self._counts[topic_id]):
                if partition not in self._owned[topic_id]:
                    self._give(topic_id, partition, self._least_loaded(topic_id))
        self._even_out()
        return {
            member_id: _frozen(
                {topic_id: {*held.kept, *held.gained} for topic_id, held in holdings.items()}
            )
            for member_id, holdings in self._held.items()
        }

    def _least_loaded(self, topic_id: TopicId) -> str:
        return min(self._readers[topic_id], key=lambda member_id: self._load[member_id])

    def _give(self, topic_id: TopicId, partition: int, member_id: str) -> None:
        self._held[member_id].setdefault(topic_id, _Holding()).gained.append(partition)
        self._load[member_id] += 1

    def _even_out(self) -> None:
        settled: set[str] = set()
        while True:
            donors = [member_id for member_id in self._load if member_id not in settled]
            if not donors:
                return
            donor = max(donors, key=lambda member_id: self._load[member_id])
            chain = self._shortest_chain(donor, settled)
            for giver, topic_id, receiver in chain:
                partition = self._held[giver][topic_id].give()
                self._load[giver] -= 1
                self._give(topic_id, partition, receiver)

    def _shortest_chain(self, donor: str, settled: set[str]) -> list[tuple[str, TopicId, str]]:
        """Steps (giver, topic, receiver) from `donor` to a member with at least two less.

        If there is none, all members that can be reached have as many as the donor, or one less;
        they are settled, as no later move concerns them.
        """
        came_from: dict[str, tuple[str, TopicId, str] | None] = {donor: None}
        seen_topics: set[TopicId] = set()
        queue = deque([donor])
        while queue:
            giver = queue.popleft()
            for topic_id, held in self._held[giver].items():
                if not held or topic_id in seen_topics:
                    continue
                seen_topics.add(topic_id)
                for receiver in self._readers[topic_id]:
                    if receiver not in came_from:
                        came_from[receiver] = (giver, topic_id, receiver)
                        queue.append(receiver)
                receiver = self._least_loaded(topic_id)
                if self._load[receiver] <= self._load[donor] - 2:
                    return _steps(came_from, receiver)
        settled.update(came_from)
        return []


def _steps(
    came_from: Mapping[str, tuple[str, TopicId, str] | None], receiver: str
) -> list[tuple[str, TopicId, str]]:
    """Returns the chain back from `receiver`; the order of the steps does not matter."""
    steps = []
    while (step := came_from[receiver]) is not None:
        steps.append(step)
        receiver = step[0]
    return steps


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
    assigned: dict[str, dict[TopicId, set[int]]] = {member.member_id: {} for member in members}
    for topic_id, member_ids in readers.items():
        quota, extra = divmod(counts[topic_id], len(member_ids))
        start = 0
        for position, member_id in enumerate(member_ids):
            end = start + quota + (position < extra)
            if start < end:
                assigned[member_id][topic_id] = set(range(start, end))
            start = end
    return {member_id: _frozen(partitions) for member_id, partitions in assigned.items()}


ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {"uniform": assign_uniform, "range": assign_range}
)


def _frozen(partitions: Mapping[TopicId, set[int]]) -> Partitions:
    return {topic_id: frozenset(found) for topic_id, found in partitions.items() if found}
