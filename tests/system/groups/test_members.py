"""Classic groups over sockets: every version of every request, and members that come and go."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator

import pytest

from strandline.broker.protocol.messages.delete_groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from strandline.broker.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from strandline.broker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.group_calls import GroupMember, describe, listed

INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
FENCED_INSTANCE_ID = 82

MakeMember = Callable[..., GroupMember]
BROKER_SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "socket.request.max.bytes": "2097152",
    "queued.max.request.bytes": "2097152",
}


@pytest.fixture
def member(broker: BrokerProcess, group_id: str) -> Iterator[MakeMember]:
    """Makes members of the test's group, and hangs up for them in the end."""
    made: list[GroupMember] = []

    def make(**options: object) -> GroupMember:
        made.append(GroupMember(broker.port, group_id, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_syncs_and_is_alone_in_every_version(
    member: MakeMember, version: int
) -> None:
    alone = member()
    joined = alone.join(version=version)
    assert joined.error_code == 0
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id != ""
    assert [one.member_id for one in joined.members] == [joined.member_id]
    assert joined.protocol_name == "range"
    if version >= 7:
        assert joined.protocol_type == "consumer"
    synced = alone.sync({alone.member_id: b"everything"}, version=min(version, 5))
    assert synced.error_code == 0
    assert bytes(synced.assignment) == b"everything"
    assert alone.beat(version=min(version, 4)) == 0
    left = alone.leave(version=min(version, 5))
    assert left.error_code == 0
    assert [one.error_code for one in left.members] == ([0] if version >= 3 else [])
    assert alone.beat() == UNKNOWN_MEMBER_ID


def test_a_second_member_shares_after_a_rebalance(member: MakeMember) -> None:
    first, second = member(), member()
    assert first.join().error_code == 0
    assert first.sync({first.member_id: b"all"}).error_code == 0
    second.ask_to_join()
    assert eventually(lambda: first.beat() == REBALANCE_IN_PROGRESS)
    leading = first.join()
    following = second.joined()
    assert leading.generation_id == following.generation_id == 2
    assert following.leader == first.member_id
    assert {one.member_id for one in leading.members} == {first.member_id, second.member_id}
    assert not following.members
    second.ask_to_sync()
    assert (
        bytes(first.sync({first.member_id: b"left", second.member_id: b"right"}).assignment)
        == b"left"
    )
    assert bytes(second.synced().assignment) == b"right"


def test_a_member_that_vanishes_is_missed_and_its_share_given_away(member: MakeMember) -> None:
    first, second = member(), member()
    # A version without a round trip for an id: who comes after the delay is in the next generation.
    first.ask_to_join(version=3, session_timeout_ms=6000)
    second.ask_to_join(version=3, session_timeout_ms=1000)
    first.joined(version=3)
    second.joined(version=3)
    second.ask_to_sync()
    first.sync({})
    assert second.synced().error_code == 0
    second.close()
    assert eventually(lambda: first.beat() == REBALANCE_IN_PROGRESS)
    assert [one.member_id for one in first.join().members] == [first.member_id]


def test_a_static_member_returns_without_a_rebalance_and_fences_its_former_self(
    member: MakeMember,
) -> None:
    leader, old, new = member(instance_id="l"), member(instance_id="i"), member(instance_id="i")
    leader.ask_to_join()
    old.ask_to_join()
    leading, following = leader.joined(), old.joined()
    if not leading.members:
        leader, old, new.instance_id = old, leader, "l"
    assert {one.group_instance_id for one in (leading.members or following.members)} == {"l", "i"}
    old.ask_to_sync()
    leader.sync({leader.member_id: b"x", old.member_id: b"y"})
    old.synced()
    back = new.join()
    assert back.error_code == 0
    assert back.generation_id == leader.generation
    assert bytes(new.sync().assignment) == b"y"
    assert leader.beat() == 0
    assert old.beat() == FENCED_INSTANCE_ID


def test_an_administrator_removes_static_members_in_one_request(
    member: MakeMember, client: WireClient, group_id: str
) -> None:
    one = member(instance_id="one")
    one.join()
    request = LeaveGroupRequest(
        group_id=group_id,
        members=[
            MemberIdentity(member_id="", group_instance_id="one"),
            MemberIdentity(member_id="", group_instance_id="two"),
        ],
    )
    left = client.ask(request, LeaveGroupResponse, 5)
    assert [entry.error_code for entry in left.members] == [0, UNKNOWN_MEMBER_ID]
    assert [entry.group_instance_id for entry in left.members] == ["one", "two"]
    assert one.beat() == UNKNOWN_MEMBER_ID


def test_a_group_without_a_name_and_a_session_out_of_bounds_are_refused(
    broker: BrokerProcess, client: WireClient, member: MakeMember
) -> None:
    nameless = GroupMember(broker.port, "")
    assert nameless.join(version=3).error_code == INVALID_GROUP_ID
    assert nameless.beat() == INVALID_GROUP_ID
    assert nameless.leave().error_code == INVALID_GROUP_ID
    assert nameless.sync().error_code == INVALID_GROUP_ID
    nameless.close()
    for session_timeout_ms in (999, 1_800_001):
        refused = member().join(version=3, session_timeout_ms=session_timeout_ms)
        assert refused.error_code == INVALID_SESSION_TIMEOUT


def test_a_group_that_nobody_made_knows_nobody(client: WireClient, group_id: str) -> None:
    sync = SyncGroupRequest(
        group_id=group_id,
        generation_id=1,
        member_id="m",
        protocol_type="consumer",
        protocol_name="range",
    )
    assert client.ask(sync, SyncGroupResponse, 5).error_code == UNKNOWN_MEMBER_ID
    leave = LeaveGroupRequest(
        group_id=group_id, member_id="m", members=[MemberIdentity(member_id="m")]
    )
    assert client.ask(leave, LeaveGroupResponse, 2).error_code == UNKNOWN_MEMBER_ID
    (left,) = client.ask(leave, LeaveGroupResponse, 5).members
    assert left.error_code == UNKNOWN_MEMBER_ID


# --- operators -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_a_stable_group_is_described_in_every_version(
    member: MakeMember, client: WireClient, group_id: str, version: int
) -> None:
    alone = member(topics=["t"])
    alone.join()
    alone.sync({alone.member_id: b"all"})
    described = describe(client, group_id, version=version)
    assert described.error_code == 0
    assert described.group_state == "Stable"
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    (one,) = described.members
    assert one.member_id == alone.member_id
    assert (one.client_id, one.client_host) == ("test", "/127.0.0.1")
    assert bytes(one.member_assignment) == b"all"


def test_a_group_that_does_not_exist_is_dead_or_not_found_by_version(
    client: WireClient, group_id: str
) -> None:
    old, new = describe(client, group_id, version=5), describe(client, group_id, version=6)
    assert (old.error_code, old.group_state) == (0, "Dead")
    assert (new.error_code, new.group_state) == (GROUP_ID_NOT_FOUND, "Dead")


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(
    member: MakeMember, client: WireClient, group_id: str, version: int
) -> None:
    member().join()
    found = listed(client, version=version)[group_id]
    assert found.protocol_type == "consumer"
    if version >= 4:
        assert found.group_state == "CompletingRebalance"
    if version >= 5:
        assert found.group_type == "classic"


def test_lists_are_filtered_by_state_and_type_whatever_their_case(
    member: MakeMember, client: WireClient, group_id: str
) -> None:
    alone = member()
    alone.join()
    alone.sync({})
    assert group_id in listed(client, states=["stable"])
    assert group_id in listed(client, states=["Empty", "STABLE"], types=["classic"])
    assert group_id not in listed(client, states=["Empty"])
    assert listed(client, types=["consumer"]) == {}


@pytest.mark.parametrize("version", range(4))
def test_only_groups_without_members_are_deleted(
    member: MakeMember, client: WireClient, group_id: str, version: int
) -> None:
    alone = member()
    alone.join()
    request = DeleteGroupsRequest(groups_names=[group_id, group_id, "never-was"])

    def delete() -> list[int]:
        results = client.ask(request, DeleteGroupsResponse, version).results
        for result in results:
            has_reason = version >= 3 and result.error_code != 0
            assert (result.error_message is not None) == has_reason, result
        return [result.error_code for result in results]

    assert delete() == [NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND]
    alone.leave()
    assert delete() == [0, GROUP_ID_NOT_FOUND]
    assert describe(client, group_id).error_code == GROUP_ID_NOT_FOUND


def test_members_that_wait_for_a_rebalance_hold_no_memory_of_large_requests(
    member: MakeMember, broker: BrokerProcess, group_id: str
) -> None:
    """The first member does not come back, and the others wait for as long as it may take."""
    topics = [f"topic-{index:030}" for index in range(20_000)]
    member().join()
    waiting = [member(topics=topics) for _ in range(3)]
    for one in waiting:
        one.ask_to_join()
    other = GroupMember(broker.port, f"{group_id}-other", topics=topics)
    assert other.join().error_code == 0
    assert select.select([one.client for one in waiting], [], [], 0)[0] == [], "they still wait"
    other.close()
