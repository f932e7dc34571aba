"""A group member on a bare connection, and the requests about groups that tests send most."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from strandline.broker.protocol.formats.consumer_protocol import (
    ConsumerProtocolSubscription,
)
from strandline.broker.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from strandline.broker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from strandline.broker.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from strandline.broker.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from strandline.broker.protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from strandline.broker.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import ZERO_TOPIC_ID
from tests.support.broker import eventually
from tests.support.subscriptions import encode_subscription
from tests.support.wire import WireClient

SESSION_MS = 10_000
MEMBER_ID_REQUIRED = 79
COORDINATOR_LOADING = 14
COORDINATOR_NOT_AVAILABLE = 15


class GroupMember:
    """One connection that takes part in one group, step by step."""

    def __init__(
        self,
        port: int,
        group_id: str,
        *,
        instance_id: str | None = None,
        topics: Sequence[str] = (),
    ) -> None:
        self.client = WireClient(port)
        self.group_id = group_id
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self._metadata = encode_subscription(ConsumerProtocolSubscription(topics=list(topics)))
        self._pending = 0

    def close(self) -> None:
        self.client.close()

    # --- joining -----------------------------------------------------------------------------

    def ask_to_join(self, *, version: int = 9, session_timeout_ms: int = SESSION_MS) -> None:
        """Sends JoinGroup, and again if an id comes back; `joined` waits for the answer."""
        request = self._join_request(session_timeout_ms)
        if version >= 4 and not self.member_id and self.instance_id is None:

            def answered() -> JoinGroupResponse | None:
                found = self.client.ask(request, JoinGroupResponse, version)
                # On a slow disk it takes a while until the topic of the first group is there.
                return None if found.error_code == COORDINATOR_NOT_AVAILABLE else found

            answer = eventually(answered)
            assert isinstance(answer, JoinGroupResponse)
            assert answer.error_code == MEMBER_ID_REQUIRED, answer
            self.member_id = answer.member_id
            request = self._join_request(session_timeout_ms)
        self._pending = self.client.send(request, version)

    def joined(self, *, version: int = 9) -> JoinGroupResponse:
        answer = self.client.receive(JoinGroupResponse, version, self._pending)
        if answer.error_code == 0:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join(self, *, version: int = 9, session_timeout_ms: int = SESSION_MS) -> JoinGroupResponse:
        self.ask_to_join(version=version, session_timeout_ms=session_timeout_ms)
        return self.joined(version=version)

    def _join_request(self, session_timeout_ms: int) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=30_000,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=self._metadata)],
        )

    # --- the rest of its life ----------------------------------------------------------------

    def ask_to_sync(
        self, assignments: Mapping[str, bytes] | None = None, *, version: int = 5
    ) -> None:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        )
        self._pending = self.client.send(request, version)

    def synced(self, *, version: int = 5) -> SyncGroupResponse:
        return self.client.receive(SyncGroupResponse, version, self._pending)

    def sync(
        self, assignments: Mapping[str, bytes] | None = None, *, version: int = 5
    ) -> SyncGroupResponse:
        self.ask_to_sync(assignments, version=version)
        return self.synced(version=version)

    def beat(self, *, version: int = 4, generation: int | None = None) -> int:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation if generation is None else generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return self.client.ask(request, HeartbeatResponse, version).error_code

    def leave(self, *, version: int = 5) -> LeaveGroupResponse:
        request = LeaveGroupRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            members=[MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)],
        )
        return self.client.ask(request, LeaveGroupResponse, version)


def new_group() -> str:
    """A name that no other test has."""
    return f"g-{uuid.uuid4().hex[:12]}"


def commit(
    client: WireClient,
    group_id: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    version: int = 9,
    topic_ids: Mapping[str, uuid.UUID] | None = None,
    metadata: str | None = "m",
    member_id: str = "",
    generation: int = -1,
) -> list[int]:
    """OffsetCommit with a topic entry per offset; the codes in order."""
    ids = topic_ids or {}
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=ids.get(topic, ZERO_TOPIC_ID),
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=0,
                        committed_metadata=metadata,
                    )
                ],
            )
            for (topic, partition), offset in offsets.items()
        ],
    )
    answer = client.ask(request, OffsetCommitResponse, version)
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


def committed(
    client: WireClient, group_id: str, topic: str, partition: int = 0, *, version: int = 7
) -> int:
    """What OffsetFetch (up to v7) says of one partition: an offset, -1 for none."""
    request = OffsetFetchRequest(
        group_id=group_id,
        topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
    )

    def loaded() -> OffsetFetchResponse | None:
        answer = client.ask(request, OffsetFetchResponse, version)
        # A broker that has just started reads its groups first; clients ask again.
        return None if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else answer

    answer = eventually(loaded)
    assert isinstance(answer, OffsetFetchResponse)
    assert answer.error_code == 0, answer
    (found,) = answer.topics[0].partitions
    assert found.error_code == 0, answer
    return found.committed_offset


def fetch_groups(
    client: WireClient,
    groups: Mapping[str, Sequence[OffsetFetchRequestTopics] | None],
    *,
    version: int,
) -> OffsetFetchResponse:
    """OffsetFetch from v8 on; None asks for all topics of a group."""
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id=group_id, topics=topics)
            for group_id, topics in groups.items()
        ]
    )
    return client.ask(request, OffsetFetchResponse, version)


def describe(client: WireClient, group_id: str, *, version: int = 6) -> DescribedGroup:
    request = DescribeGroupsRequest(groups=[group_id])
    (described,) = client.ask(request, DescribeGroupsResponse, version).groups
    return described


def listed(
    client: WireClient,
    *,
    states: Sequence[str] = (),
    types: Sequence[str] = (),
    version: int = 5,
) -> dict[str, ListedGroup]:
    request = ListGroupsRequest(states_filter=states, types_filter=types)
    answer = client.ask(request, ListGroupsResponse, version)
    assert answer.error_code == 0
    return {group.group_id: group for group in answer.groups}


def wait_until_loaded(client: WireClient) -> None:
    """Returns when the coordinator has read every group."""

    def is_loaded() -> bool:
        answer = client.ask(ListGroupsRequest(), ListGroupsResponse, 4)
        return answer.error_code != COORDINATOR_LOADING

    assert eventually(is_loaded)
