"""What silence does to a group, and that nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.broker.coordination.values.group_values import (
    GroupSnapshot,
    GroupState,
    MemberSnapshot,
    Moment,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.coordination.group_trace import GroupTrace, subscription


def test_a_silent_member_is_removed_when_its_session_ends() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")
    trace.beat("a-1")
    trace.after(9999)
    trace.beat("a-1")
    trace.after(1)
    trace.beat("a-1")
    trace.join("a-1")
    trace.shows("""
        beat a-1    NONE
        beat a-1    NONE
        beat a-1    REBALANCE_IN_PROGRESS
        join a-1    a-1: joined generation 2 as leader of a-1
    """)
    assert trace.group.describe().members[0].member_id == "a-1"


def test_heartbeats_keep_a_group_stable_for_ever() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")
    for _ in range(20):
        trace.after(9000)
        trace.beat("a-1")
        trace.beat("b-2")
    assert set(trace.lines[-40:]) == {"beat a-1 NONE", "beat b-2 NONE"}


def test_a_commit_is_a_sign_of_life() -> None:
    trace = GroupTrace()
    trace.stabilise("a")
    for _ in range(5):
        trace.after(9000)
        trace.group.note_commit("a-1", trace.now)
    assert trace.group.state is GroupState.STABLE


def test_a_group_whose_members_are_all_silent_becomes_empty() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")
    trace.after(10_000)
    assert trace.group.state is GroupState.EMPTY
    assert trace.written[-1].members == ()
    assert trace.written[-1].generation == 2
    assert trace.group.next_deadline_ms is None


def test_members_that_do_not_rejoin_in_time_are_left_behind() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b", session_ms=300_000, rebalance_ms=20_000)
    trace.join("a-1", session_ms=300_000, rebalance_ms=20_000)
    trace.after(25_000)
    trace.shows("""
        join a-1    -
        at 26000    a-1: joined generation 2 as leader of a-1
    """)


def test_the_longest_rebalance_timeout_counts() -> None:
    trace = GroupTrace()
    trace.stabilise("a", session_ms=300_000, rebalance_ms=40_000)
    trace.join("b", version=3, session_ms=300_000, rebalance_ms=10_000)
    trace.after(39_999)
    assert trace.waiting == ["b"]
    trace.after(1)
    trace.shows_last("at 43000 b: joined b-2 generation 2 as leader of b-2")


def test_another_member_leads_if_the_leader_does_not_rejoin() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b", session_ms=300_000)
    trace.join("b-2", topics=("u",), session_ms=300_000)
    trace.after(60_000)
    trace.shows_last("at 66000 b-2: joined generation 2 as leader of b-2")


def test_members_that_never_ask_for_their_assignment_are_removed() -> None:
    trace = GroupTrace()
    trace.join("a", version=3, session_ms=300_000, rebalance_ms=20_000)
    trace.join("b", version=3, session_ms=300_000, rebalance_ms=20_000)
    trace.after(6000)
    trace.sync("a-1", {"a-1": "x"})
    trace.skip()
    trace.after(20_000)
    trace.beat("a-1")
    trace.beat("b-2")
    trace.shows("""
        beat a-1    REBALANCE_IN_PROGRESS
        beat b-2    UNKNOWN_MEMBER_ID
    """)


def test_a_leader_that_never_assigns_is_removed_and_the_others_sent_back() -> None:
    trace = GroupTrace()
    trace.join("a", version=3, session_ms=300_000, rebalance_ms=20_000)
    trace.join("b", version=3, session_ms=300_000, rebalance_ms=20_000)
    trace.after(6000)
    trace.sync("b-2")
    trace.skip()
    trace.after(20_000)
    trace.join("b-2")
    trace.shows("""
        at 26000    b-2: REBALANCE_IN_PROGRESS
        join b-2    b-2: joined generation 2 as leader of b-2
    """)


def test_a_member_that_waits_for_us_is_not_silent() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b", session_ms=10_000)
    trace.join("b-2", topics=("u",))
    for _ in range(5):
        trace.after(9000)
        trace.beat("a-1")
    assert trace.waiting == ["b-2"]
    trace.join("a-1")
    assert trace.waiting == []
    assert trace.group.member_count == 2


def test_a_new_member_waits_for_five_minutes_at_most() -> None:
    trace = GroupTrace()
    trace.stabilise("a", session_ms=10_000, rebalance_ms=1_800_000)
    trace.join("b", version=3, rebalance_ms=1_800_000)
    for _ in range(34):
        trace.after(9000)
        trace.beat("a-1")
    assert trace.waiting == []
    assert any(line.endswith("b: UNKNOWN_MEMBER_ID") for line in trace.lines)


def test_an_id_that_is_never_used_is_forgotten_and_holds_nobody_up() -> None:
    trace = GroupTrace()
    trace.stabilise("a")
    trace.join("b", session_ms=6000)
    trace.join("a-1")
    trace.after(6000)
    trace.shows("""
        join b       b: MEMBER_ID_REQUIRED b-2
        join a-1     -
        at 9000      a-1: joined generation 2 as leader of a-1
    """)
    trace.join("b-2")
    trace.shows("join b-2 b-2: UNKNOWN_MEMBER_ID")


def test_the_last_member_to_leave_empties_the_group() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")
    trace.leave("a-1", "x-7")
    trace.leave("b-2")
    trace.shows("""
        leave a-1 x-7    NONE UNKNOWN_MEMBER_ID -
        leave b-2        NONE writes generation 2
    """)
    assert trace.group.state is GroupState.EMPTY
    assert trace.group.protocol_name is None


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    trace = GroupTrace()
    trace.join("a", version=3)
    trace.leave("a-1")
    trace.join("b")
    trace.leave("b-2")
    trace.shows("""
        join a       -
        leave a-1    NONE a: UNKNOWN_MEMBER_ID
        join b       b: MEMBER_ID_REQUIRED b-2
        leave b-2    NONE -
    """)


def test_a_follower_that_leaves_while_it_waits_for_its_assignment_is_answered() -> None:
    trace = GroupTrace()
    trace.join("a", version=3)
    trace.join("b", version=3)
    trace.after(6000)
    trace.sync("b-2")
    trace.leave("b-2")
    trace.shows_last("leave b-2 NONE b-2: UNKNOWN_MEMBER_ID")


def test_a_new_life_after_empty_goes_on_counting_generations() -> None:
    trace = GroupTrace()
    trace.stabilise("a")
    trace.leave("a-1")
    trace.join("b", version=3)
    trace.after(3000)
    trace.shows_last("at 6000 b: joined b-2 generation 3 as leader of b-2")


def test_a_group_without_a_delay_starts_at_once() -> None:
    trace = GroupTrace(delay_ms=0)
    trace.join("a", version=3)
    trace.after(1)
    trace.shows_last("at 1 a: joined a-1 generation 1 as leader of a-1")


def test_everybody_who_waits_is_told_when_the_group_is_unloaded() -> None:
    trace = GroupTrace()
    trace.join("a", version=3)
    trace.join("b", version=3)
    trace._note("unload", trace.group.unload(ErrorCode.NOT_COORDINATOR, trace.now))
    trace.join("c")
    trace.sync("a-1")
    trace.beat("a-1")
    trace.leave("a-1")
    assert trace.lines[2:] == [
        "unload a: NOT_COORDINATOR; b: NOT_COORDINATOR",
        "join c c: COORDINATOR_NOT_AVAILABLE",
        "sync a-1 a-1: COORDINATOR_NOT_AVAILABLE",
        "beat a-1 COORDINATOR_NOT_AVAILABLE",
        "leave a-1 COORDINATOR_NOT_AVAILABLE -",
    ]
    assert trace.group.next_deadline_ms is None


# --- after a restart -------------------------------------------------------------------------


def snapshot(*names: str, state_since_ms: int = 1) -> GroupSnapshot:
    return GroupSnapshot(
        protocol_type="consumer",
        generation=5,
        protocol_name="range",
        leader=names[0] if names else None,
        state_since_ms=state_since_ms,
        members=tuple(
            MemberSnapshot(
                member_id=name,
                group_instance_id=None,
                client_id=name,
                client_host="/10.0.0.1",
                rebalance_timeout_ms=60_000,
                session_timeout_ms=10_000,
                metadata=subscription("t"),
                assignment=f"of {name}".encode(),
            )
            for name in names
        ),
    )


def test_members_go_on_after_a_restart_as_if_nothing_had_been() -> None:
    trace = GroupTrace(restored=snapshot("a-1", "b-2"))
    trace.beat("b-2")
    trace.sync("b-2")
    trace.join("b-2")
    trace.shows("""
        loaded -
        beat b-2    NONE
        sync b-2    b-2: synced 'of b-2'
        join b-2    b-2: joined generation 5 led by a-1
    """)
    assert trace.group.subscribed_topics == {"t"}


def test_members_that_did_not_outlive_the_restart_are_missed() -> None:
    trace = GroupTrace(restored=snapshot("a-1", "b-2"))
    trace.after(10_000)
    assert trace.group.state is GroupState.EMPTY


def test_an_empty_group_is_empty_after_a_restart_and_knows_since_when() -> None:
    trace = GroupTrace(restored=snapshot(state_since_ms=77))
    assert trace.group.state is GroupState.EMPTY
    assert trace.group.state_since_ms == 77
    assert trace.group.generation == 5


def test_a_loaded_group_beyond_the_limit_shrinks_in_a_rebalance() -> None:
    trace = GroupTrace(restored=snapshot("a-1", "b-2", "c-3"), size_max=2)
    trace.beat("a-1")
    for member_id in ("a-1", "b-2", "c-3"):
        trace.join(member_id)
    trace.shows_last("""
        join c-3    a-1: joined generation 6 as leader of a-1 b-2;
        |           b-2: joined generation 6 led by a-1; c-3: GROUP_MAX_SIZE_REACHED
    """)


def test_a_leader_that_the_log_does_not_know_is_replaced() -> None:
    trace = GroupTrace(restored=replace(snapshot("a-1"), leader="gone"))
    assert trace.group.leader == "a-1"


# --- commits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member_id", "generation", "expected"),
    [
        ("a-1", 1, ErrorCode.NONE),
        ("a-1", 2, ErrorCode.ILLEGAL_GENERATION),
        ("a-1", -1, ErrorCode.ILLEGAL_GENERATION),
        ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_only_members_of_this_generation_commit(
    member_id: str, generation: int, expected: ErrorCode
) -> None:
    trace = GroupTrace()
    trace.stabilise("a")
    code = trace.group.check_commit(
        member_id=member_id, group_instance_id=None, generation=generation
    )
    assert code is expected


def test_commits_are_good_while_members_rejoin_but_not_before_their_assignment() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")

    def code() -> ErrorCode:
        return trace.group.check_commit(
            member_id="a-1", group_instance_id=None, generation=trace.group.generation
        )

    trace.join("b-2", topics=("u",))
    assert code() is ErrorCode.NONE
    trace.join("a-1")
    assert code() is ErrorCode.REBALANCE_IN_PROGRESS


def test_anybody_may_commit_for_a_group_without_members() -> None:
    trace = GroupTrace()
    for member_id in ("", "x"):
        code = trace.group.check_commit(member_id=member_id, group_instance_id=None, generation=-1)
        assert code is ErrorCode.NONE
    code = trace.group.check_commit(member_id="x", group_instance_id=None, generation=3)
    assert code is ErrorCode.UNKNOWN_MEMBER_ID


def test_ticking_early_does_nothing() -> None:
    trace = GroupTrace()
    trace.join("a", version=3)
    effects = trace.group.tick(Moment(trace.now.wall_ms, trace.now.monotonic_ms + 1))
    assert effects.answers == ()
