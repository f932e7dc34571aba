"""ConsumerGroupHeartbeat and ConsumerGroupDescribe on bare connections, and what they touch."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from strandline.broker.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import create_topic
from tests.system.group_calls import GroupMember, commit, describe, listed

UNKNOWN_MEMBER_ID = 25
UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42
GROUP_ID_NOT_FOUND = 69
FENCED_INSTANCE_ID = 82
FENCED_MEMBER_EPOCH = 110
UNSUPPORTED_ASSIGNOR = 112
STALE_MEMBER_EPOCH = 113
INVALID_REGULAR_EXPRESSION = 128
BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def topic(client: WireClient, topic_name: str) -> str:
    create_topic(client, topic_name, 3)
    return topic_name


def beat(
    client: WireClient, group_id: str, member_id: str, epoch: int, *, version: int = 1
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id, member_id=member_id, member_epoch=epoch
    )
    return client.ask(request, ConsumerGroupHeartbeatResponse, version)


def join(
    client: WireClient,
    group_id: str,
    topics: Sequence[str] | None,
    *,
    member_id: str | None = None,
    version: int = 1,
    regex: str | None = None,
    assignor: str | None = None,
    instance_id: str | None = None,
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=uuid.uuid4().hex if member_id is None else member_id,
        member_epoch=0,
        instance_id=instance_id,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=topics,
        subscribed_topic_regex=regex,
        server_assignor=assignor,
        topic_partitions=[],
    )
    return client.ask(request, ConsumerGroupHeartbeatResponse, version)


def describe_consumers(
    client: WireClient, group_id: str, *, version: int = 1
) -> DescribedConsumerGroup:
    request = ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=True)
    (found,) = client.ask(request, ConsumerGroupDescribeResponse, version).groups
    return found


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_beats_is_described_and_leaves_in_every_version(
    client: WireClient, topic: str, group_id: str, version: int
) -> None:
    # In v0 the broker may make the member's id.
    joined = join(
        client, group_id, [topic], member_id="" if version == 0 else None, version=version
    )
    assert joined.error_code == 0
    assert joined.member_id
    assert joined.member_epoch == 1
    assert joined.heartbeat_interval_ms == 5000
    assert joined.assignment is not None
    (row,) = joined.assignment.topic_partitions
    assert list(row.partitions) == [0, 1, 2]
    again = beat(client, group_id, joined.member_id, 1, version=version)
    assert (again.error_code, again.member_epoch, again.assignment) == (0, 1, None)
    found = describe_consumers(client, group_id, version=version)
    assert (found.error_code, found.group_state) == (0, "Stable")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (1, 1, "uniform")
    (member,) = found.members
    assert member.member_id == joined.member_id
    assert member.member_type == (1 if version else -1)
    assert list(member.subscribed_topic_names) == [topic]
    assert member.client_host == "/127.0.0.1"
    assert member.assignment == member.target_assignment
    assert member.assignment.topic_partitions[0].topic_name == topic
    assert beat(client, group_id, joined.member_id, -1, version=version).member_epoch == -1
    assert describe_consumers(client, group_id).group_state == "Empty"


def test_what_a_heartbeat_lacks_is_told(client: WireClient, topic: str, group_id: str) -> None:
    assert join(client, "", [topic]).error_code == INVALID_REQUEST
    assert join(client, group_id, [topic], member_id="").error_code == INVALID_REQUEST
    assert join(client, group_id, None).error_code == INVALID_REQUEST
    assert beat(client, group_id, "m", -3).error_code == INVALID_REQUEST
    unknown = join(client, group_id, [topic], assignor="mine")
    assert unknown.error_code == UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in (unknown.error_message or "")
    assert join(client, group_id, [], regex="(").error_code == INVALID_REGULAR_EXPRESSION
    assert beat(client, group_id, "m", 1).error_code == GROUP_ID_NOT_FOUND
    join(client, group_id, [topic], member_id="m")
    assert beat(client, group_id, "other", 1).error_code == UNKNOWN_MEMBER_ID
    assert beat(client, group_id, "m", 5).error_code == FENCED_MEMBER_EPOCH


def test_offsets_are_committed_and_fetched_in_the_members_epoch(
    client: WireClient, topic: str, group_id: str
) -> None:
    join(client, group_id, [topic], member_id="m")
    offsets = {(topic, 0): 7}
    assert commit(client, group_id, offsets, member_id="m", generation=1) == [0]
    for member_id, epoch, version, code in (
        ("m", 0, 9, STALE_MEMBER_EPOCH),
        ("x", 1, 9, UNKNOWN_MEMBER_ID),
        ("", -1, 9, UNKNOWN_MEMBER_ID),
        ("m", 1, 8, UNSUPPORTED_VERSION),
    ):
        codes = commit(
            client, group_id, offsets, member_id=member_id, generation=epoch, version=version
        )
        assert codes == [code]

    def fetch(member_id: str | None, epoch: int) -> tuple[int, list[int]]:
        wanted = OffsetFetchRequestGroup(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])],
        )
        answer = client.ask(OffsetFetchRequest(groups=[wanted]), OffsetFetchResponse, 9)
        (found,) = answer.groups
        rows = [p.committed_offset for t in found.topics for p in t.partitions]
        return found.error_code, rows

    assert fetch("m", 1) == (0, [7])
    assert fetch(None, -1) == (0, [7])
    assert fetch("m", 2) == (STALE_MEMBER_EPOCH, [])
    assert fetch("x", 1) == (UNKNOWN_MEMBER_ID, [])


def test_a_member_that_missed_an_answer_commits_what_it_kept_also_after_a_kill(
    tmp_path: Path, topic_name: str
) -> None:
    def codes(client: WireClient, partition: int, member_id: str, epoch: int) -> Sequence[int]:
        offsets = {(topic_name, partition): 7}
        return commit(client, "g", offsets, member_id=member_id, generation=epoch)

    with BrokerProcess(tmp_path) as broker:
        with WireClient(broker.port) as client:
            topic_id = create_topic(client, topic_name, 2)
            assert join(client, "g", [topic_name], member_id="m").member_epoch == 1
            join(client, "g", [topic_name], member_id="n")
            asked = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="m",
                member_epoch=1,
                topic_partitions=[HeartbeatTopicPartitions(topic_id=topic_id, partitions=[0])],
            )
            assert client.ask(asked, ConsumerGroupHeartbeatResponse, 1).member_epoch == 2
            assert codes(client, 0, "m", 1) == [0]
            assert codes(client, 1, "m", 1) == [STALE_MEMBER_EPOCH]
        broker.kill()
        broker.start()
        with WireClient(broker.port) as client:
            # Until the coordinator has read its log.
            assert eventually(lambda: codes(client, 0, "m", 1) == [0])
            assert codes(client, 1, "m", 1) == [STALE_MEMBER_EPOCH]


def test_groups_of_both_kinds_are_listed_by_type_and_state(
    broker: BrokerProcess, client: WireClient, topic: str, group_id: str
) -> None:
    join(client, group_id, [topic])
    commit(client, f"{group_id}-simple", {(topic, 0): 1})
    found = listed(client)[group_id]
    assert (found.group_type, found.group_state, found.protocol_type) == (
        "consumer",
        "Stable",
        "consumer",
    )
    assert group_id in listed(client, types=["consumer"])
    assert group_id not in listed(client, types=["Classic"])
    assert group_id in listed(client, types=["CONSUMER", "classic"], states=["stable"])
    assert group_id not in listed(client, states=["Assigning"])
    assert f"{group_id}-simple" not in listed(client, types=["consumer"])


def test_each_kind_is_described_by_its_own_request(
    broker: BrokerProcess, client: WireClient, topic: str, group_id: str
) -> None:
    join(client, group_id, [topic])
    answer = describe(client, group_id)
    assert (answer.error_code, answer.group_state) == (GROUP_ID_NOT_FOUND, "Dead")
    assert answer.error_message == f"Group {group_id} is not a classic group."
    assert describe(client, group_id, version=5).error_code == 0
    classic = GroupMember(broker.port, f"{group_id}-classic", topics=[topic])
    classic.join()
    missed = describe_consumers(client, f"{group_id}-classic")
    assert missed.error_code == GROUP_ID_NOT_FOUND
    assert missed.error_message == f"Group {group_id}-classic is not a consumer group."
    assert describe_consumers(client, "nobody").error_code == GROUP_ID_NOT_FOUND
    classic.close()


def test_a_classic_member_is_served_in_a_group_of_the_new_protocol(
    broker: BrokerProcess, client: WireClient, topic: str, group_id: str
) -> None:
    join(client, group_id, [topic], member_id="m")
    classic = GroupMember(broker.port, group_id, topics=[topic])
    try:
        joined = classic.join()
        assert (joined.error_code, joined.leader, list(joined.members)) == (0, "", [])
        assert joined.protocol_name == "range"
        assert classic.sync().error_code == 0
        assert classic.beat() == 0
        kinds = {m.member_id: m.member_type for m in describe_consumers(client, group_id).members}
        assert kinds == {"m": 1, classic.member_id: 0}
        (left,) = classic.leave().members
        assert left.error_code == 0
    finally:
        classic.close()


def test_an_administrator_takes_members_of_the_new_protocol_out_with_leave_group(
    client: WireClient, topic: str, group_id: str
) -> None:
    """Admin.removeMembersFromConsumerGroup names members by id, and static ones by instance."""
    join(client, group_id, [topic], member_id="m")
    join(client, group_id, [topic], member_id="s", instance_id="i")

    def take_out(member_id: str, instance_id: str | None, *, version: int = 5) -> int:
        request = LeaveGroupRequest(
            group_id=group_id,
            member_id=member_id,
            members=[MemberIdentity(member_id=member_id, group_instance_id=instance_id)],
        )
        answer = client.ask(request, LeaveGroupResponse, version)
        return answer.members[0].error_code if version >= 3 else answer.error_code

    assert take_out("nobody", None) == UNKNOWN_MEMBER_ID
    assert take_out("", "j") == UNKNOWN_MEMBER_ID
    assert take_out("m", "i") == FENCED_INSTANCE_ID
    assert len(describe_consumers(client, group_id).members) == 2
    assert take_out("", "i") == 0
    assert beat(client, group_id, "s", 2).error_code == UNKNOWN_MEMBER_ID
    assert take_out("m", None, version=0) == 0
    assert beat(client, group_id, "m", 1).error_code == UNKNOWN_MEMBER_ID
    assert describe_consumers(client, group_id).group_state == "Empty"


def test_a_member_that_was_taken_out_is_named_in_the_answer_as_in_the_request(
    client: WireClient, topic: str, group_id: str
) -> None:
    """Java's admin looks its members up by both fields: a found id is one it never asked for."""
    join(client, group_id, [topic], member_id="s", instance_id="i")
    named = [
        MemberIdentity(member_id="", group_instance_id="i"),
        MemberIdentity(member_id="", group_instance_id="j"),
    ]
    request = LeaveGroupRequest(group_id=group_id, members=named)
    taken_out, unknown = client.ask(request, LeaveGroupResponse, 5).members
    assert (taken_out.member_id, taken_out.group_instance_id) == ("", "i")
    assert taken_out.error_code == 0
    assert (unknown.member_id, unknown.group_instance_id) == ("", "j")
    assert unknown.error_code == UNKNOWN_MEMBER_ID
