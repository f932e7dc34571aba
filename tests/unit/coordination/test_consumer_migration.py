"""Groups that change their protocol while they work, and classic members in the new one."""

from __future__ import annotations

from strandline.broker.coordination.consumer_values import ConsumerRules, MigrationPolicy
from strandline.broker.coordination.group_values import GroupState
from strandline.broker.protocol.consumer_protocol import decode_assignment
from tests.unit.coordination.consumer_trace import ConsumerTrace


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


def test_a_cooperative_member_gives_partitions_back_between_two_joins() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1,2,3"})
    trace.join("n")
    trace.classic_join("a")
    trace.classic_sync("a")
    trace.classic_beat("a")
    trace.classic_join("a")
    trace.classic_sync("a")
    trace.classic_beat("a")
    trace.beat("n")
    trace.shows("""
        join n            n: epoch 4 has -
        classic join a    a: generation 3
        classic sync a    a: has t:0-1
        classic beat a    join again
        classic join a    a: generation 4
        classic sync a    a: has t:0-1
        classic beat a    -
        beat n            n: epoch 4 has t:2-3
    """)


def test_the_group_is_classic_again_when_its_last_member_of_the_new_protocol_leaves() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1", "b": "t:2,3"})
    trace.join("n")
    trace.leave("n")
    assert trace.shard.consumers.get("g") is None
    group = trace.classic_group
    assert group.state is GroupState.STABLE
    assert group.generation == 4
    assert [member.member_id for member in group.members] == ["a", "b"]
    effects = group.taken_over(trace.now, must_rejoin=True)
    assert group.state is GroupState.PREPARING_REBALANCE
    assert effects.answers == ()
    assert group.next_deadline_ms is not None


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


def test_a_classic_member_that_does_not_join_again_is_fenced() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1,2,3"})
    trace.join("n")
    trace.classic_beat("a")
    trace.skip()
    for _ in range(7):
        trace.after(9_000)
        trace.beat("n")
        if "a" in trace.clients:
            trace.classic_beat("a")
    assert "at 60000 fenced a" in trace.lines
    assert trace.lines[-1] == "beat n n: epoch 5 has t:0-3"


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


def test_a_classic_member_joins_a_group_of_the_new_protocol() -> None:
    trace = ConsumerTrace()
    trace.join("n")
    trace.ack("n")
    trace.classic_join("new", is_new=True)
    trace.classic_join("id-1")
    trace.classic_sync("id-1")
    trace.beat("n")
    trace.ack("n")
    trace.classic_beat("id-1")
    trace.classic_join("id-1")
    trace.classic_sync("id-1")
    trace.classic_leave("n")
    trace.classic_leave("id-1")
    trace.shows("""
        join n               n: epoch 1 has t:0-3
        ack n                n: epoch 1
        classic join new     MEMBER_ID_REQUIRED id-1
        classic join id-1    id-1: generation 2
        classic sync id-1    id-1: has -
        beat n               n: epoch 1 has t:0-1
        ack n                n: epoch 2
        classic beat id-1    join again
        classic join id-1    id-1: generation 2
        classic sync id-1    id-1: has t:2-3
        classic leave n      UNKNOWN_MEMBER_ID
        classic leave id-1   NONE
    """)


def test_a_classic_member_that_shares_no_protocol_with_the_others_is_refused() -> None:
    trace = ConsumerTrace()
    trace.join("n")
    trace.classic_join("a", protocols="range sticky")
    trace.classic_join("b", protocols="mine")
    trace.classic_join("c", protocols="mine sticky")
    assert trace.lines[-2:] == [
        "classic join b INCONSISTENT_GROUP_PROTOCOL",
        "classic join c c: generation 3",
    ]


def test_a_static_member_changes_its_protocol_and_back() -> None:
    trace = ConsumerTrace()
    trace.join("n", instance="i")
    trace.join("m")
    trace.leave("n", for_a_while=True)
    trace.skip()
    trace.classic_join("old", instance="i", is_new=True)
    assert trace.lines[-1] == "classic join old id-1: generation 2"
    assert trace.group.roster.subscriptions["id-1"].classic is not None
    trace.clients.pop("id-1")
    trace.join("n2", instance="i")
    assert trace.group.roster.subscriptions["n2"].classic is None
    assert "id-1" not in trace.group.roster.subscriptions


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
