"""Who the members of a classic group are, and what all of them support; static ones come back."""

from __future__ import annotations

import pytest

from strandline.broker.coordination.model.classic_messages import GroupState
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.coordination.group_trace import GroupTrace


def static_pair(*, protocols: str = "range") -> GroupTrace:
    """A stable group of the static members `a` (instance ia, leader) and `b` (instance ib)."""
    trace = GroupTrace()
    trace.join("a", instance="ia", protocols=protocols)
    trace.join("b", instance="ib", protocols=protocols)
    trace.after(6000)
    trace.sync("ia-1", {"ia-1": "x", "ib-2": "y"}, instance="ia")
    trace.sync("ib-2", instance="ib")
    assert trace.group.state is GroupState.STABLE
    trace.skip()
    return trace


def test_a_static_member_is_let_in_at_once_under_an_id_made_of_its_instance() -> None:
    trace = GroupTrace()
    trace.join("a", instance="ia")
    trace.after(3000)
    trace.shows("""
        join a     -
        at 3000    a: joined ia-1 generation 1 as leader of ia-1
    """)


def test_a_static_member_that_returns_gets_its_part_without_a_rebalance() -> None:
    trace = static_pair()
    trace.join("b", instance="ib")
    trace.sync("ib-3", instance="ib")
    trace.beat("ia-1", instance="ia")
    trace.shows("""
        join b       writes generation 1; b: joined ib-3 generation 1 led by ia-1
        sync ib-3    ib-3: synced 'y'
        beat ia-1    NONE
    """)
    assert [m.member_id for m in trace.written[-1].members] == ["ia-1", "ib-3"]
    assert [m.assignment for m in trace.written[-1].members] == [b"x", b"y"]


def test_a_static_leader_that_returns_is_told_to_keep_the_assignment() -> None:
    trace = static_pair()
    trace.join("a", instance="ia")
    trace.shows("""
        join a    writes generation 1;
        |         a: joined ia-3 generation 1 keeping the assignment as leader of ia-3 ib-2
    """)
    assert trace.group.leader == "ia-3"


def test_a_static_leader_of_an_old_client_takes_itself_for_a_follower_when_it_returns() -> None:
    trace = static_pair()
    trace.join("a", instance="ia", version=8)
    trace.shows("""
        join a    writes generation 1; a: joined ia-3 generation 1 led by ia-1
    """)


def test_the_former_id_of_a_static_member_is_fenced() -> None:
    trace = static_pair()
    trace.join("b", instance="ib")
    trace.skip()
    trace.beat("ib-2", instance="ib")
    trace.sync("ib-2", instance="ib")
    trace.join("ib-2", instance="ib")
    trace.leave("ib-2", instance="ib")
    trace.beat("ib-2")
    trace.shows("""
        beat ib-2     FENCED_INSTANCE_ID
        sync ib-2     ib-2: FENCED_INSTANCE_ID
        join ib-2     ib-2: FENCED_INSTANCE_ID
        leave ib-2    FENCED_INSTANCE_ID -
        beat ib-2     UNKNOWN_MEMBER_ID
    """)
    assert (
        trace.group.check_commit(member_id="ib-2", group_instance_id="ib", generation=1)
        is ErrorCode.FENCED_INSTANCE_ID
    )


def test_a_duplicate_instance_fences_the_one_that_waits() -> None:
    trace = GroupTrace()
    trace.join("a", instance="ia")
    trace.join("b", instance="ia")
    trace.after(3000)
    trace.shows("""
        join a     -
        join b     a: FENCED_INSTANCE_ID ia-1
        at 3000    b: joined ia-2 generation 1 as leader of ia-2
    """)


def test_a_static_member_that_returns_while_the_leader_assigns_begins_a_rebalance() -> None:
    trace = GroupTrace()
    trace.join("a", instance="ia")
    trace.join("b", instance="ib")
    trace.after(6000)
    trace.sync("ia-1", instance="ia", generation=9)
    trace.sync("ib-2", instance="ib")
    trace.skip()
    trace.join("b", instance="ib")
    trace.join("ia-1", instance="ia")
    trace.shows("""
        join b       ib-2: FENCED_INSTANCE_ID
        join ia-1    ia-1: joined generation 2 as leader of ia-1 ib-3;
        |            b: joined ib-3 generation 2 led by ia-1
    """)


def test_a_static_member_that_returns_with_other_protocols_begins_a_rebalance() -> None:
    trace = static_pair(protocols="range sticky")
    trace.join("b", instance="ib", protocols="sticky")
    assert trace.group.state is GroupState.PREPARING_REBALANCE
    trace.join("ia-1", instance="ia", protocols="range sticky")
    assert trace.group.protocol_name == "sticky"


def test_a_return_that_cannot_be_written_is_undone() -> None:
    trace = static_pair()
    trace.write_fails_with = ErrorCode.NOT_COORDINATOR
    trace.join("b", instance="ib")
    trace.beat("ib-2", instance="ib")
    trace.sync("ib-2", instance="ib")
    trace.shows("""
        join b       fails to write generation 1; b: NOT_COORDINATOR
        beat ib-2    NONE
        sync ib-2    ib-2: synced 'y'
    """)


def test_a_static_member_keeps_its_place_while_the_others_rebalance_without_it() -> None:
    trace = static_pair()
    trace.join("c", version=3, session_ms=300_000)
    trace.join("ia-1", instance="ia", session_ms=300_000)
    trace.skip()
    trace.after(9000)
    assert trace.group.member_count == 3
    trace.beat("ib-2", instance="ib")
    trace.after(9000)
    trace.shows("beat ib-2 REBALANCE_IN_PROGRESS")
    # Its session ends at last, and nobody else is missing.
    trace.after(1000)
    trace.shows("""
        at 25000    ia-1: joined generation 2 as leader of ia-1 c-3;
        |           c: joined c-3 generation 2 led by ia-1
    """)


def test_static_members_that_all_fail_to_return_end_with_their_sessions() -> None:
    trace = static_pair()
    trace.after(10_000)
    trace.shows("at 16000 writes generation 2")
    assert trace.group.state is GroupState.EMPTY


def test_an_administrator_removes_a_static_member_by_its_instance() -> None:
    trace = static_pair()
    trace.leave("", instance="ib")
    trace.join("ia-1", instance="ia")
    trace.leave("", instance="nobody")
    trace.shows("""
        leave        NONE -
        join ia-1    ia-1: joined generation 2 as leader of ia-1
        leave        UNKNOWN_MEMBER_ID -
    """)


@pytest.mark.parametrize("member_id", ["", "ia-1"])
def test_an_instance_that_nobody_has_is_no_member(member_id: str) -> None:
    trace = static_pair()
    trace.leave(member_id, instance="nobody")
    trace.shows(f"leave {member_id} UNKNOWN_MEMBER_ID -")


def test_the_protocol_that_most_members_prefer_is_chosen_among_those_all_have() -> None:
    trace = GroupTrace()
    trace.join("a", version=3, protocols="mine range sticky")
    trace.join("b", version=3, protocols="sticky range")
    trace.join("c", version=3, protocols="sticky range")
    trace.after(6000)
    assert trace.group.protocol_name == "sticky"


def test_members_without_a_common_protocol_are_refused() -> None:
    trace = GroupTrace()
    trace.stabilise("a", protocols="range")
    trace.join("b", protocols="sticky")
    trace.join("b", protocol_type="connect")
    trace.join("b", protocols="")
    trace.shows("""
        join b    b: INCONSISTENT_GROUP_PROTOCOL
        join b    b: INCONSISTENT_GROUP_PROTOCOL
        join b    b: INCONSISTENT_GROUP_PROTOCOL
    """)
    assert trace.group.state is GroupState.STABLE


def test_an_empty_group_takes_any_protocol_but_none() -> None:
    trace = GroupTrace()
    trace.join("a", protocols="")
    trace.join("a", protocol_type="")
    trace.shows("""
        join a    a: INCONSISTENT_GROUP_PROTOCOL
        join a    a: INCONSISTENT_GROUP_PROTOCOL
    """)


def test_an_unknown_member_id_is_refused() -> None:
    trace = GroupTrace()
    trace.stabilise("a")
    trace.join("x-9")
    trace.sync("x-9")
    trace.beat("x-9")
    trace.leave("x-9")
    trace.shows("""
        join x-9    x-9: UNKNOWN_MEMBER_ID
        sync x-9    x-9: UNKNOWN_MEMBER_ID
        beat x-9    UNKNOWN_MEMBER_ID
        leave x-9   UNKNOWN_MEMBER_ID -
    """)


def test_the_same_member_asking_twice_has_its_first_request_answered() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")
    trace.join("b-2", topics=("u",))
    trace.join("b-2", topics=("v",))
    trace.shows("""
        join b-2    -
        join b-2    b-2: REBALANCE_IN_PROGRESS
    """)
    assert trace.waiting == ["b-2"]


def test_a_promised_id_cannot_be_used_by_a_static_member() -> None:
    trace = GroupTrace()
    trace.join("a")
    trace.join("a-1", instance="i")
    trace.shows_last("join a-1 a-1: INVALID_REQUEST")


def test_ids_that_nobody_comes_back_with_are_bounded_and_the_oldest_goes() -> None:
    trace = GroupTrace(pending_max=2)
    for name in "abc":
        trace.join(name)
    trace.skip()
    trace.join("a-1")
    trace.join("b-2")
    trace.join("a")
    trace.shows("""
        join a-1    a-1: UNKNOWN_MEMBER_ID
        join b-2    -
        join a      a: MEMBER_ID_REQUIRED a-4
    """)
    for number in range(100):
        trace.join(f"x{number}")
    assert "pending=2" in repr(trace.group)


def test_the_longest_rebalance_timeout_counts() -> None:
    trace = GroupTrace()
    trace.stabilise("a", session_ms=300_000, rebalance_ms=40_000)
    trace.join("b", version=3, session_ms=300_000, rebalance_ms=10_000)
    trace.after(39_999)
    assert trace.waiting == ["b"]
    trace.after(1)
    trace.shows_last("at 43000 b: joined b-2 generation 2 as leader of b-2")
