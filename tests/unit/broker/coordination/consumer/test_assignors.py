"""The assignors of KIP-848 groups: everything is assigned once, evenly, and little is moved."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Mapping, Sequence

import pytest

from strandline.broker.coordination.consumer.assignors import (
    AssignedMember,
    assign_range,
    assign_uniform,
)
from strandline.broker.coordination.model.consumer_messages import Partitions
from strandline.storage.model import TopicId

T, U, V = (uuid.UUID(int=number) for number in (1, 2, 3))


def member(
    name: str, *topics: TopicId, previous: Partitions | None = None, instance: str | None = None
) -> AssignedMember:
    return AssignedMember(
        member_id=name,
        instance_id=instance,
        topic_ids=frozenset(topics),
        previous=previous or {},
    )


def total(partitions: Partitions) -> int:
    return sum(len(found) for found in partitions.values())


def flat(assignment: Mapping[str, Partitions]) -> list[tuple[TopicId, int]]:
    return sorted(
        (topic_id, partition)
        for partitions in assignment.values()
        for topic_id, found in partitions.items()
        for partition in found
    )


def again(
    members: Sequence[AssignedMember], assignment: Mapping[str, Partitions]
) -> list[AssignedMember]:
    """The same members with what they were assigned."""
    return [
        member(m.member_id, *m.topic_ids, previous=assignment.get(m.member_id), instance=None)
        for m in members
    ]


def moves(before: Mapping[str, Partitions], after: Mapping[str, Partitions]) -> int:
    """Partitions that somebody had and somebody else has now."""
    owners = {
        (topic_id, partition): name
        for name, partitions in before.items()
        for topic_id, found in partitions.items()
        for partition in found
    }
    return sum(
        owners.get((topic_id, partition), name) != name
        for name, partitions in after.items()
        for topic_id, found in partitions.items()
        for partition in found
    )


def test_range_gives_the_same_numbers_of_all_topics_to_the_same_member() -> None:
    found = assign_range([member("b", T, U), member("a", T, U)], {T: 3, U: 3})
    assert found == {
        "a": {T: {0, 1}, U: {0, 1}},
        "b": {T: {2}, U: {2}},
    }


def test_range_counts_the_readers_of_each_topic() -> None:
    found = assign_range([member("a", T), member("b", T, U), member("c", U)], {T: 2, U: 3})
    assert found == {"a": {T: {0}}, "b": {T: {1}, U: {0, 1}}, "c": {U: {2}}}


def test_range_puts_static_members_first_so_that_a_restart_moves_nothing() -> None:
    before = assign_range([member("x", T, instance="i"), member("m", T)], {T: 2})
    after = assign_range([member("a", T, instance="i"), member("m", T)], {T: 2})
    assert before["x"] == after["a"]
    assert before["m"] == after["m"]


def test_more_members_than_partitions_leaves_some_without() -> None:
    for assign in (assign_range, assign_uniform):
        found = assign([member(name, T) for name in "abc"], {T: 2})
        assert flat(found) == [(T, 0), (T, 1)]
        assert sorted(total(partitions) for partitions in found.values()) == [0, 1, 1]


def test_uniform_differs_by_one_at_most_among_equals() -> None:
    found = assign_uniform([member(name, T, U) for name in "abcd"], {T: 5, U: 6})
    assert sorted(total(partitions) for partitions in found.values()) == [2, 3, 3, 3]
    assert len(flat(found)) == len(set(flat(found))) == 11


def test_uniform_moves_no_more_than_a_newcomer_needs() -> None:
    members = [member(name, T) for name in "abc"]
    before = assign_uniform(members, {T: 12})
    after = assign_uniform([*again(members, before), member("d", T)], {T: 12})
    assert total(after["d"]) == 3
    assert moves(before, after) == 3


def test_uniform_gives_the_partitions_of_one_who_left_to_the_others_and_moves_no_other() -> None:
    members = [member(name, T) for name in "abc"]
    before = assign_uniform(members, {T: 12})
    after = assign_uniform(again(members[:2], before), {T: 12})
    left = {name: before[name] for name in "ab"}
    assert moves(left, after) == 0
    assert len(flat(after)) == 12


def test_uniform_makes_up_for_topics_that_only_some_can_read() -> None:
    found = assign_uniform([member("a", T, U), member("b", T)], {T: 4, U: 2})
    assert found["a"][U] == {0, 1}
    assert total(found["a"]) == total(found["b"]) == 3


def test_what_a_member_does_not_subscribe_to_any_more_is_taken_away() -> None:
    for counts in ({T: 2, U: 2}, {T: 2, U: 2, V: 1}):
        members = [member("a", T, previous={T: frozenset({0}), U: frozenset({0, 1})})]
        members.append(member("b", *(t for t in counts if t != T or len(counts) == 2)))
        found = assign_uniform(members, counts)
        assert U not in found["a"]
        assert len(flat(found)) == sum(counts.values())


def test_partitions_beyond_a_topic_that_was_made_anew_are_dropped() -> None:
    found = assign_uniform([member("a", T, previous={T: frozenset({0, 7})})], {T: 2})
    assert found == {"a": {T: {0, 1}}}


def test_nobody_and_nothing_are_assigned_nothing() -> None:
    assert assign_uniform([], {}) == assign_range([], {}) == {}
    assert assign_uniform([member("a")], {}) == assign_range([member("a")], {}) == {"a": {}}


@pytest.mark.parametrize("seed", range(60))
def test_everything_is_assigned_once_to_somebody_who_reads_it(seed: int) -> None:
    chance = random.Random(seed)
    topics = [uuid.UUID(int=number + 1) for number in range(chance.randint(1, 5))]
    counts = {topic: chance.randint(1, 12) for topic in topics}
    members: list[AssignedMember] = []
    assignment: dict[str, Partitions] = {}
    for step in range(12):
        if not members or chance.random() < 0.6:
            mine = topics if chance.random() < 0.5 else chance.sample(topics, 1)
            members.append(member(f"m{step}", *mine))
        else:
            members.remove(chance.choice(members))
        assign = chance.choice([assign_uniform, assign_uniform, assign_range])
        members = again(members, assignment)
        assignment = assign(members, counts)
        read = {topic_id for m in members for topic_id in m.topic_ids}
        assert flat(assignment) == sorted((t, p) for t in read for p in range(counts[t]))
        for m in members:
            assert assignment[m.member_id].keys() <= m.topic_ids
        loads = [total(assignment[m.member_id]) for m in members]
        if assign is assign_uniform and len({m.topic_ids for m in members}) == 1:
            assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("seed", range(30))
def test_uniform_cannot_be_made_more_even_by_moving_one_partition(seed: int) -> None:
    chance = random.Random(seed)
    topics = [uuid.UUID(int=number + 1) for number in range(4)]
    counts = {topic: chance.randint(1, 9) for topic in topics}
    members = [
        member(f"m{n}", *chance.sample(topics, chance.randint(1, 4)))
        for n in range(chance.randint(1, 6))
    ]
    found = assign_uniform(members, {t: counts[t] for m in members for t in m.topic_ids})
    readers = {m.member_id: m.topic_ids for m in members}
    for partitions in found.values():
        for topic_id in partitions:
            for other, topic_ids in readers.items():
                if topic_id in topic_ids:
                    assert total(partitions) - total(found[other]) <= 1


def test_uniform_evens_out_through_a_member_that_stands_between() -> None:
    """a cannot give to c, but b can, and takes one of a's for it."""
    members = [
        member("a", T, previous={T: frozenset({0, 1, 2})}),
        member("b", T, U, previous={U: frozenset({0, 1})}),
        member("c", U, V, previous={V: frozenset({0})}),
    ]
    found = assign_uniform(members, {T: 3, U: 2, V: 1})
    assert {name: total(partitions) for name, partitions in found.items()} == dict.fromkeys(
        "abc", 2
    )
    assert moves({m.member_id: m.previous for m in members}, found) == 2


@pytest.mark.parametrize("seed", range(40))
def test_no_other_assignment_is_more_even_than_the_uniform_one(seed: int) -> None:
    """Held against every assignment that there is."""
    chance = random.Random(seed)
    topics = [T, U, V]
    counts = {topic: chance.randint(1, 3) for topic in topics}
    members: list[AssignedMember] = []
    assignment: dict[str, Partitions] = {}
    for step in range(4):
        members.append(member(f"m{step}", *chance.sample(topics, chance.randint(1, 2))))
        members = again(members, assignment)
        read = {topic_id: counts[topic_id] for m in members for topic_id in m.topic_ids}
        assignment = assign_uniform(members, read)
        choices = [
            [position for position, m in enumerate(members) if topic_id in m.topic_ids]
            for topic_id, count in read.items()
            for _ in range(count)
        ]
        best = min(
            sum(chosen.count(position) ** 2 for position in range(len(members)))
            for chosen in itertools.product(*choices)
        )
        assert sum(total(assignment[m.member_id]) ** 2 for m in members) == best
