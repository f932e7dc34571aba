"""Who gets into a group, how a generation comes about, and what each member is told."""

from __future__ import annotations

import pytest

from strandline.broker.coordination.values.group_offsets import (
    CommittedOffset,
    GroupOffsets,
    find_expired,
)
from strandline.broker.coordination.values.group_values import GroupState
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
        committed = CommittedOffset(offset=5, leader_epoch=-1, metadata="", committed_ms=0)
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


def test_a_member_id_fits_a_string_of_the_protocol_whatever_the_client_is_called() -> None:
    trace = GroupTrace()
    trace.join("c" * 32_767)
    assert trace.lines[-1].split()[-2:] == ["MEMBER_ID_REQUIRED", "c" * 255 + "-1"]
