"""Groups that change their protocol while they work."""

from __future__ import annotations

import random

import pytest

from strandline.broker.coordination.model.classic_messages import GroupState, LeavingMember
from strandline.broker.coordination.model.consumer_messages import ConsumerRules, MigrationPolicy
from strandline.broker.protocol.formats.consumer_protocol import decode_assignment
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.coordination.consumer_trace import ConsumerTrace


def test_a_member_of_the_new_protocol_takes_a_classic_group_over() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1", "b": "t:2,3"})
    trace.join("n")
    trace.classic_beat("a")
    trace.classic_join("a", is_eager=True)
    trace.classic_sync("a")
    trace.classic_beat("a")
    trace.beat("n")
    trace.classic_beat("b")
    trace.classic_join("b", is_eager=True)
    trace.classic_sync("b")
    trace.beat("n")
    trace.shows("""
        join n            n: epoch 4 has -
        classic beat a    join again
        classic join a    a: generation 4
        classic sync a    a: has t:0-1
        classic beat a    -
        beat n            n: epoch 4
        classic beat b    join again
        classic join b    b: generation 4
        classic sync b    b: has t:2
        beat n            n: epoch 4 has t:3
    """)
    assert trace.shard.group("g") is None
    assert trace.group.state is GroupState.STABLE


def test_the_group_is_classic_again_when_its_last_member_of_the_new_protocol_leaves() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1", "b": "t:2,3"})
    trace.join("n")
    trace.leave("n")
    assert trace.shard.consumers.get("g") is None
    group = trace.classic_group
    assert [member.member_id for member in group.members] == ["a", "b"]
    effects = group.taken_over(trace.now, generations={"a": 3, "b": 3}, must_rejoin=True)
    assert group.state is GroupState.PREPARING_REBALANCE
    assert effects.answers == ()
    assert group.next_deadline_ms is not None


def test_the_group_is_classic_again_when_that_member_is_taken_out_with_leave_group() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1", "b": "t:2,3"})
    trace.join("n")
    trace.classic_leave("n")
    assert trace.shard.consumers.get("g") is None
    assert [member.member_id for member in trace.classic_group.members] == ["a", "b"]


def test_members_of_a_group_that_went_back_may_commit_what_they_have_until_they_joined() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1", "b": "t:2,3"})
    trace.join("n")
    trace.leave("n")
    group = trace.classic_group

    def beat(generation: int) -> ErrorCode:
        return group.heartbeat(
            member_id="a", group_instance_id=None, generation=generation, now=trace.now
        )

    def commit(generation: int) -> ErrorCode:
        return group.check_commit(member_id="a", group_instance_id=None, generation=generation)

    # After a restart nobody knows any more that they must join again; so they are told.
    assert beat(3) is ErrorCode.ILLEGAL_GENERATION
    group.taken_over(trace.now, generations={"a": 3, "b": 3}, must_rejoin=True)
    assert beat(3) is ErrorCode.REBALANCE_IN_PROGRESS
    assert commit(3) is ErrorCode.NONE
    assert commit(2) is ErrorCode.ILLEGAL_GENERATION
    trace.after(1)
    group.leave([LeavingMember(member_id="b")], trace.now)
    assert commit(3) is ErrorCode.NONE


def test_the_assignment_of_a_group_that_went_back_is_what_its_members_were_to_have() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1,2,3"})
    trace.join("n")
    trace.classic_join("a", is_eager=True)
    trace.leave("n")
    (member,) = trace.classic_group.members
    (row,) = decode_assignment(member.assignment).assigned_partitions
    assert row.topic == "t"
    assert set(row.partitions) == {0, 1}


def test_a_silent_member_of_the_new_protocol_leaves_a_classic_group_behind() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1,2,3"})
    trace.join("n")
    for _ in range(5):
        trace.after(9_000)
        if "g" in trace.shard.consumers:
            trace.classic_beat("a")
    trace.after(1)
    assert [m.member_id for m in trace.classic_group.members] == ["a"]


def test_a_group_that_is_no_group_of_consumers_is_not_taken_over() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0"})
    trace.classic_group.protocol_type = "connect"
    trace.join("n")
    trace.shows("join n   GROUP_ID_NOT_FOUND")


def test_the_policy_says_which_way_a_group_may_go() -> None:
    trace = ConsumerTrace(rules=ConsumerRules(migration=MigrationPolicy.DOWNGRADE))
    trace.classic_group_of({"a": "t:0"})
    trace.join("n")
    trace.shows("join n   GROUP_ID_NOT_FOUND")
    trace = ConsumerTrace(rules=ConsumerRules(migration=MigrationPolicy.UPGRADE))
    trace.classic_group_of({"a": "t:0"})
    trace.join("n")
    trace.leave("n")
    assert "g" in trace.shard.consumers
    assert list(trace.group.roster.subscriptions) == ["a"]


def test_the_last_static_member_of_the_new_protocol_takes_the_group_back_with_it() -> None:
    trace = ConsumerTrace()
    trace.join("n", instance="i")
    trace.ack("n")
    trace.leave("n", for_a_while=True)
    trace.classic_join("old", instance="i", is_new=True)
    assert trace.shard.consumers.get("g") is None
    (member,) = trace.classic_group.members
    assert member.member_id == "id-1"
    assert member.group_instance_id == "i"
    assert trace.classic_group.state is GroupState.STABLE


def take_part(trace: ConsumerTrace, who: str) -> None:
    """What a client of either protocol does between two records."""
    client = trace.clients[who]
    if not client.is_classic:
        trace.beat(who)
        trace.ack(who)
        return
    trace.classic_beat(who)
    if trace.lines[-1].endswith("join again"):
        trace.classic_join(who, " ".join(client.topics), is_eager=client.is_eager)
        trace.classic_sync(who)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_members_of_both_protocols_do_nothing_is_read_twice(seed: int) -> None:
    """The trace checks after every step that no partition has two readers."""
    chance = random.Random(seed)
    # Without the way back: a classic group has tests of its own.
    rules = ConsumerRules(migration=MigrationPolicy.UPGRADE)
    trace = ConsumerTrace("t:5 u:3", rules, reads_log_every=10)
    trace.classic_group_of({"a": "t:0,1,2", "b": "t:3,4"})
    trace.join("n", "t u")
    names = iter(range(10_000))
    for _ in range(120):
        who = chance.choice(list(trace.clients)) if trace.clients else None
        action = chance.random()
        if who is None or (action < 0.12 and len(trace.clients) < 8):
            trace.join(f"m{next(names)}", chance.choice(["t", "t u"]))
        elif action < 0.24 and len(trace.clients) < 8 and not trace.group.is_empty:
            name = f"c{next(names)}"
            trace.classic_join(name, chance.choice(["t", "t u"]), is_eager=chance.random() < 0.5)
            trace.classic_sync(name)
        elif action < 0.34:
            if trace.clients[who].is_classic:
                trace.classic_leave(who)
            else:
                trace.leave(who)
        elif action < 0.37:
            trace.after(chance.choice([1_000, 9_000, 46_000]))
        elif action < 0.4:
            trace.restart()
        else:
            take_part(trace, who)
    if not trace.clients:
        trace.join("last", "t u")
    for _ in range(8):
        for who in list(trace.clients):
            take_part(trace, who)
    trace.check_that_all_is_read()
