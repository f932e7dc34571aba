"""How a generation of a classic group comes about and ends, and what silence does to it."""

from __future__ import annotations

import pytest

from strandline.broker.coordination.model.classic_messages import (
    GroupState,
    Instant,
)
from strandline.broker.coordination.model.group_offsets import (
    GroupOffsets,
    find_expired,
)
from strandline.broker.protocol.formats.offsets_topic import (
    GroupMember,
    GroupMetadataValue,
    OffsetCommitValue,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.coordination.group_trace import GroupTrace, short_subscription, subscription


def test_a_new_member_is_told_its_id_first_and_leads_the_group_it_is_alone_in() -> None:
    trace = GroupTrace()
    trace.join("a")
    trace.join("a-1")
    trace.after(3000)
    trace.sync("a-1", {"a-1": "all"})
    trace.shows("""
        join a      a: MEMBER_ID_REQUIRED a-1
        join a-1    -
        at 3000     a-1: joined generation 1 as leader of a-1
        sync a-1    writes generation 1; a-1: synced 'all'
    """)
    assert trace.group.state is GroupState.STABLE


def test_clients_before_join_v4_are_let_in_without_the_second_visit() -> None:
    trace = GroupTrace()
    trace.join("a", version=3)
    trace.after(3000)
    trace.shows("""
        join a      -
        at 3000     a: joined a-1 generation 1 as leader of a-1
    """)


def test_followers_get_their_part_when_the_leader_has_brought_it() -> None:
    trace = GroupTrace()
    for name in "abc":
        trace.join(name, version=3)
    trace.after(6000)
    trace.sync("c-3")
    trace.sync("a-1", {"a-1": "x", "c-3": "z", "stranger": "?"})
    trace.sync("b-2")
    trace.shows("""
        join a      -
        join b      -
        join c      -
        at 6000     a: joined a-1 generation 1 as leader of a-1 b-2 c-3;
        |           b: joined b-2 generation 1 led by a-1; c: joined c-3 generation 1 led by a-1
        sync c-3    -
        sync a-1    writes generation 1; a-1: synced 'x'; c-3: synced 'z'
        sync b-2    b-2: synced ''
    """)
    assert [m.member_id for m in trace.written[-1].members] == ["a-1", "b-2", "c-3"]
    assert [m.assignment for m in trace.written[-1].members] == [b"x", b"", b"z"]


def test_the_first_rebalance_waits_on_while_members_come_within_the_rebalance_timeout() -> None:
    trace = GroupTrace()
    trace.join("a", version=3, rebalance_ms=7000)
    trace.after(2500)
    trace.join("b", version=3, rebalance_ms=7000)
    trace.after(2500)
    trace.join("c", version=3, rebalance_ms=7000)
    trace.after(5000)
    trace.shows("""
        join a     -
        join b     -
        join c     -
        at 7000    a: joined a-1 generation 1 as leader of a-1 b-2 c-3;
        |          b: joined b-2 generation 1 led by a-1; c: joined c-3 generation 1 led by a-1
    """)


def test_a_member_joining_a_stable_group_makes_the_others_join_again() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")
    trace.join("c", version=3)
    trace.beat("a-1")
    trace.join("a-1")
    trace.beat("b-2")
    trace.join("b-2")
    trace.shows("""
        join c      -
        beat a-1    REBALANCE_IN_PROGRESS
        join a-1    -
        beat b-2    REBALANCE_IN_PROGRESS
        join b-2    a-1: joined generation 2 as leader of a-1 b-2 c-3;
        |           b-2: joined generation 2 led by a-1; c: joined c-3 generation 2 led by a-1
    """)


def test_a_stable_follower_without_news_is_told_the_current_generation() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")
    trace.join("b-2")
    trace.sync("b-2")
    trace.shows("""
        join b-2    b-2: joined generation 1 led by a-1
        sync b-2    b-2: synced 'of b-2'
    """)


def test_a_stable_follower_with_another_subscription_starts_a_rebalance() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")
    trace.join("b-2", topics=("t", "u"))
    trace.join("a-1")
    trace.shows("""
        join b-2    -
        join a-1    a-1: joined generation 2 as leader of a-1 b-2;
        |           b-2: joined generation 2 led by a-1
    """)
    assert trace.group.subscribed_topics == {"t", "u"}


def test_a_stable_leader_that_joins_again_starts_a_rebalance() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")
    trace.join("a-1")
    assert trace.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_lost_its_answer_gets_it_again_while_the_leader_assigns() -> None:
    trace = GroupTrace()
    trace.join("a", version=3)
    trace.join("b", version=3)
    trace.after(6000)
    trace.skip()
    trace.join("b-2")
    trace.join("a-1")
    trace.shows("""
        join b-2    b-2: joined generation 1 led by a-1
        join a-1    a-1: joined generation 1 as leader of a-1 b-2
    """)


def test_another_generation_is_refused() -> None:
    trace = GroupTrace()
    trace.stabilise("a")
    trace.sync("a-1", generation=7)
    trace.beat("a-1", generation=0)
    trace.shows("""
        sync a-1    a-1: ILLEGAL_GENERATION
        beat a-1    ILLEGAL_GENERATION
    """)


def test_a_sync_that_believes_in_another_protocol_is_refused() -> None:
    trace = GroupTrace()
    trace.stabilise("a")
    trace.sync("a-1", protocol_type="connect", protocol_name="range")
    trace.sync("a-1", protocol_type="consumer", protocol_name="sticky")
    trace.sync("a-1", protocol_type="consumer", protocol_name="range")
    trace.shows("""
        sync a-1    a-1: INCONSISTENT_GROUP_PROTOCOL
        sync a-1    a-1: INCONSISTENT_GROUP_PROTOCOL
        sync a-1    a-1: synced 'of a-1'
    """)


def test_a_sync_during_the_joins_says_that_a_rebalance_is_under_way() -> None:
    trace = GroupTrace()
    trace.stabilise("a", "b")
    trace.join("c", version=3)
    trace.sync("a-1")
    trace.shows_last("sync a-1 a-1: REBALANCE_IN_PROGRESS")


def test_a_join_during_the_syncs_sends_those_who_wait_back_to_join() -> None:
    trace = GroupTrace()
    trace.join("a", version=3)
    trace.join("b", version=3)
    trace.after(6000)
    trace.sync("b-2")
    trace.join("c", version=3)
    trace.shows_last("join c b-2: REBALANCE_IN_PROGRESS")


def test_a_full_group_refuses_further_members_and_keeps_its_own() -> None:
    trace = GroupTrace(size_max=2)
    trace.stabilise("a", "b")
    trace.join("c")
    trace.join("b-2", topics=("u",))
    trace.join("a-1")
    trace.shows("""
        join c      c: GROUP_MAX_SIZE_REACHED
        join b-2    -
        join a-1    a-1: joined generation 2 as leader of a-1 b-2;
        |           b-2: joined generation 2 led by a-1
    """)


def test_members_beyond_the_limit_are_refused_while_the_first_rebalance_waits() -> None:
    trace = GroupTrace(size_max=2)
    for name in "abc":
        trace.join(name, version=3)
    trace.shows("""
        join a    -
        join b    -
        join c    c: GROUP_MAX_SIZE_REACHED
    """)


def test_a_failed_write_of_the_assignment_is_told_and_begins_a_rebalance() -> None:
    trace = GroupTrace()
    trace.join("a", version=3)
    trace.join("b", version=3)
    trace.after(6000)
    trace.sync("b-2")
    trace.write_fails_with = ErrorCode.NOT_COORDINATOR
    trace.sync("a-1", {"a-1": "x", "b-2": "y"})
    trace.shows_last(
        "sync a-1 fails to write generation 1; a-1: NOT_COORDINATOR; b-2: NOT_COORDINATOR"
    )
    assert trace.group.state is GroupState.PREPARING_REBALANCE


def test_an_assignment_that_is_written_after_the_group_moved_on_is_not_told() -> None:
    trace = GroupTrace()
    trace.join("a", version=3)
    trace.join("b", version=3)
    trace.after(6000)
    trace.writes_are_slow = True
    trace.sync("a-1", {"a-1": "x", "b-2": "y"})
    trace.join("b-2", topics=("u",))
    trace.write_arrives()
    assert trace.lines[-3:] == [
        "sync a-1 -",
        "join b-2 a-1: REBALANCE_IN_PROGRESS",
        "written -",
    ]


def test_members_that_are_no_consumers_may_send_any_bytes() -> None:
    trace = GroupTrace()
    trace.stabilise("a", protocol_type="connect", metadata=b"\xff")
    assert trace.group.subscribed_topics is None
    assert not trace.group.is_subscribed_to("t")


@pytest.mark.parametrize("version", [-1, 0, 1, 2, 3, 9])
def test_topics_are_known_of_metadata_that_ends_before_what_its_version_brought(
    version: int,
) -> None:
    trace = GroupTrace()
    trace.stabilise("a", metadata=short_subscription("t", version=version))
    assert trace.group.subscribed_topics == {"t"}
    offsets = GroupOffsets()
    for topic in ("t", "u"):
        committed = OffsetCommitValue(offset=5, leader_epoch=-1, metadata="", committed_ms=0)
        offsets.put(topic, 0, committed)
    expiry = find_expired(trace.group, offsets, now_ms=10_000, retention_ms=1_000)
    assert [offset.topic for offset in expiry.offsets] == ["u"]


def test_consumers_that_cannot_be_read_are_taken_to_read_everything() -> None:
    trace = GroupTrace()
    trace.stabilise("a", metadata=b"\x00")
    assert trace.group.subscribed_topics is None
    assert trace.group.is_subscribed_to("anything")


def test_a_group_is_described_with_what_its_members_said_once_it_is_stable() -> None:
    trace = GroupTrace()
    trace.stabilise("a")
    described = trace.group.describe()
    assert (described.protocol_type, described.protocol_name) == ("consumer", "range")
    (member,) = described.members
    assert member.client_id == "a"
    assert member.client_host == "/10.0.0.1"
    assert member.metadata == subscription("t")
    assert member.assignment == b"of a-1"
    trace.join("a-1")
    described = trace.group.describe()
    assert described.state is GroupState.COMPLETING_REBALANCE
    assert described.protocol_name == ""
    assert described.members[0].metadata == b""


def test_a_member_id_fits_a_string_of_the_protocol_whatever_the_client_is_called() -> None:
    trace = GroupTrace()
    trace.join("c" * 32_767)
    assert trace.lines[-1].split()[-2:] == ["MEMBER_ID_REQUIRED", "c" * 255 + "-1"]


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


def snapshot(*names: str, state_since_ms: int = 1) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=5,
        protocol_name="range",
        leader=names[0] if names else None,
        state_since_ms=state_since_ms,
        members=tuple(
            GroupMember(
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
    trace = GroupTrace(restored=snapshot("a-1").replaced(leader="gone"))
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
    effects = trace.group.tick(Instant(trace.now.wall_ms, trace.now.monotonic_ms + 1))
    assert effects.answers == ()


def test_a_group_without_a_leader_is_not_due_at_once_whatever_timeout_its_members_named() -> None:
    trace = GroupTrace()
    for name in "ab":
        trace.join(name, instance=name)
    trace.after(6000)
    for member_id in ("a-1", "b-2"):
        trace.sync(member_id, instance=member_id[0])
    for name in "ab":
        # Static members that come back keep the group stable.
        trace.join(name, instance=name, rebalance_ms=0)
    assert trace.group.state is GroupState.STABLE
    trace.leave("", instance="b")
    trace.after(1)
    assert trace.group.state is GroupState.PREPARING_REBALANCE
    assert trace.group.next_deadline_ms is not None
    assert trace.group.next_deadline_ms > trace.now.monotonic_ms
    trace.after(10_000)
    assert trace.group.state is GroupState.EMPTY
