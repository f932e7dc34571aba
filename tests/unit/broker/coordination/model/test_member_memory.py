"""What members bring to JoinGroup has room up to a bound, in a group and in the broker."""

from __future__ import annotations

import logging

import pytest

from strandline.broker.coordination.groups.group_shard import GroupShard
from strandline.broker.coordination.model.classic_messages import GroupRules, GroupState, Instant
from strandline.broker.coordination.model.member_memory import MEMBER_BYTES, MemberMemory
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.coordination.group_trace import GroupTrace, join_request

LARGE = b"x" * 10_000


def room_for(members: int, *, groups: int = 1) -> MemberMemory:
    # The name of client and protocol are a few bytes.
    group_bytes = members * (MEMBER_BYTES + len(LARGE) + 100)
    return MemberMemory(group_bytes_max=group_bytes, total_bytes_max=groups * group_bytes)


def test_a_group_whose_members_bring_too_much_takes_no_more_of_them() -> None:
    trace = GroupTrace(room=room_for(2, groups=9))
    for name in "abc":
        trace.join(name, version=3, metadata=LARGE)
    trace.shows_last("join c      c: GROUP_MAX_SIZE_REACHED")
    trace.join("d", version=3, metadata=b"little", topics=("t",))
    assert trace.waiting == ["a", "b"]


def test_who_goes_leaves_its_room_to_others() -> None:
    room = room_for(1)
    trace = GroupTrace(room=room)
    trace.join("a", version=3, metadata=LARGE)
    trace.leave("a-1")
    assert room.held_bytes == 0
    trace.join("b", version=3, metadata=LARGE)
    assert trace.waiting == ["b"]


def test_a_member_that_comes_again_is_counted_with_what_it_brings_now() -> None:
    room = room_for(1)
    trace = GroupTrace(room=room)
    trace.join("a", version=3, metadata=LARGE)
    held_bytes = room.held_bytes
    trace.after(3000)
    trace.join("a-1", metadata=LARGE[1:])
    assert room.held_bytes == held_bytes - 1
    trace.sync("a-1", {"a-1": "all"})
    trace.join("a-1", metadata=LARGE * 2)
    trace.shows_last("join a-1    a-1: GROUP_MAX_SIZE_REACHED; writes generation 3")
    assert trace.group.state is GroupState.EMPTY
    assert room.held_bytes == 0


def test_all_groups_together_have_a_bound_and_who_meets_it_may_try_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = room_for(2, groups=1)
    groups = [GroupTrace(room=room) for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        for trace in groups:
            trace.join("a", version=3, metadata=LARGE)
        groups[2].join("b", version=3, metadata=LARGE)
    groups[2].shows("""
        join a      a: COORDINATOR_NOT_AVAILABLE
        join b      b: COORDINATOR_NOT_AVAILABLE
    """)
    assert [record.message for record in caplog.records] == [
        "no room for the metadata of a group member, it is refused"
    ]


def test_groups_that_go_with_their_partition_give_their_room_back() -> None:
    room = room_for(1)
    shard = GroupShard(
        rules=GroupRules(room=room),
        make_id=lambda: "1",
        offset_metadata_length_max=10,
        retention_ms=1000,
        topics_at_start={},
    )
    now = Instant(0, 0)
    shard.join("g", join_request(metadata=LARGE), 1, now)
    assert room.held_bytes > len(LARGE)
    shard.unload(ErrorCode.NOT_COORDINATOR, now)
    assert room.held_bytes == 0
