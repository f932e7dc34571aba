"""Members of a classic group in virtual time, who commit what nobody else may commit meanwhile.

Each owned partition has a counter: its committed offset. An owner reads it when it gets the
partition, and then commits one more each time. So an offset that is acknowledged twice shows two
owners at one time, and one that is read again smaller shows a lost commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from strandline.broker.protocol.formats.consumer_protocol import ConsumerProtocolSubscription
from strandline.broker.protocol.messages.heartbeat import HeartbeatRequest
from strandline.broker.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from strandline.broker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from strandline.broker.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.sim.client import RETRY_S, Refused, Unanswered, VirtualClient, check
from tests.sim.cluster import World
from tests.support.subscriptions import encode_subscription

SESSION_MS = 6_000
REBALANCE_MS = 10_000
FORGOTTEN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


@dataclass
class Commits:
    """What all members together were told of one group, by partition."""

    group: str
    topic: str
    acknowledged: dict[int, list[int]] = field(default_factory=dict)

    def read(self, partition: int, offset: int) -> None:
        """An owner found this offset."""
        told = self.acknowledged.get(partition, [])
        assert not told or offset >= max(told), (partition, offset, told[-3:], "lost")

    def note(self, partition: int, offset: int) -> None:
        """A commit was acknowledged."""
        told = self.acknowledged.setdefault(partition, [])
        assert offset not in told, (partition, offset, "two owners")
        told.append(offset)


class Member:
    """One member, which joins again and again; now and then it is silent, or leaves."""

    def __init__(
        self, world: World, client: VirtualClient, commits: Commits, partition_count: int
    ) -> None:
        self._world = world
        self._client = client
        self._commits = commits
        self._partition_count = partition_count
        self._member_id = ""
        self._generation = -1

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            try:
                await self._own(await self._join())
                if self._world.random.random() < 0.3:
                    await self._leave()
            except Refused as refused:
                self._world.note("member", self._member_id, refused.code.name)
                if refused.code in FORGOTTEN:
                    self._member_id = ""
                await asyncio.sleep(RETRY_S)
            except Unanswered:
                await asyncio.sleep(RETRY_S)

    async def _join(self) -> Sequence[int]:
        """The partitions that it owns from now on."""
        joined = await self._ask_to_join()
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            joined = await self._ask_to_join()
        check(joined.error_code)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        members = [one.member_id for one in joined.members]
        assignments = [
            SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=bytes(range(place, self._partition_count, len(members))),
            )
            for place, member_id in enumerate(members)
        ]
        request = SyncGroupRequest(
            group_id=self._commits.group,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        synced = await self._client.ask(request, 5)
        check(synced.error_code)
        self._world.note("owns", self._member_id, self._generation, bytes(synced.assignment))
        return list(bytes(synced.assignment))

    async def _ask_to_join(self) -> JoinGroupResponse:
        metadata = encode_subscription(ConsumerProtocolSubscription(topics=[self._commits.topic]))
        request = JoinGroupRequest(
            group_id=self._commits.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        answer: JoinGroupResponse = await self._client.ask(request, 9)
        return answer

    async def _own(self, partitions: Sequence[int]) -> None:
        """Commits one more for each partition, until it is told or decides to stop."""
        offsets = {one: await self._committed(one) for one in partitions}
        for _ in range(self._world.random.randint(1, 8)):
            silence_s = self._world.random.uniform(0.1, 3.0)
            if self._world.random.random() < 0.1:
                silence_s = 3 * SESSION_MS / 1000
            await asyncio.sleep(silence_s)
            for partition in partitions:
                offsets[partition] += 1
                await self._commit(partition, offsets[partition])
            beat = HeartbeatRequest(
                group_id=self._commits.group,
                generation_id=self._generation,
                member_id=self._member_id,
            )
            check((await self._client.ask(beat, 4)).error_code)

    async def _committed(self, partition: int) -> int:
        request = OffsetFetchRequest(
            group_id=self._commits.group,
            topics=[
                OffsetFetchRequestTopic(name=self._commits.topic, partition_indexes=[partition])
            ],
        )
        answer = await self._client.ask(request, 7)
        check(answer.error_code)
        ((found,),) = (topic.partitions for topic in answer.topics)
        check(found.error_code)
        self._commits.read(partition, found.committed_offset)
        return max(0, found.committed_offset)

    async def _commit(self, partition: int, offset: int) -> None:
        part = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=self._commits.group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(name=self._commits.topic, partitions=[part])],
        )
        answer = await self._client.ask(request, 8)
        check(answer.topics[0].partitions[0].error_code)
        self._commits.note(partition, offset)

    async def _leave(self) -> None:
        request = LeaveGroupRequest(
            group_id=self._commits.group, members=[MemberIdentity(member_id=self._member_id)]
        )
        await self._client.ask(request, 5)
        self._member_id = ""
