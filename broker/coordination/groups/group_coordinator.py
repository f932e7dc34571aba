"""The group coordinator: connects the groups with the log, the clock and the requests.

    request --> shard (pure) --> records --> append to the partition --> replay --> answer

Each partition of `__consumer_offsets` is a *slot* (`slots.py`): the log, and a `GroupShard` with
the state replayed from it. An append is synchronous and in the page cache when it returns; with
`flush.messages` on the topic the answer waits for the disk. A failed append changes nothing.

Groups of the new protocol (KIP-848) are in `consumer_coordinator`; requests of the classic protocol
that name such a group are passed on to it. Committed offsets are in `offset_coordinator`.

There is one loop for all timers (`run`), woken by the earliest deadline of all groups. It also
detects deleted topics by comparing images, as each change does before it reads a group, and deletes
their offsets.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from strandline.broker.cluster.metadata.controller_messages import Controller, NewTopic
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.consumer.consumer_group import ConsumerGroup
from strandline.broker.coordination.consumer.heartbeats import (
    check_heartbeat,
    preferred_assignor,
)
from strandline.broker.coordination.groups.consumer_coordinator import ConsumerCoordinator
from strandline.broker.coordination.groups.group_effects import carry_out
from strandline.broker.coordination.groups.group_shard import GroupEffects, GroupShard, GroupSlot
from strandline.broker.coordination.groups.group_writes import (
    in_batches,
    write_offsets,
)
from strandline.broker.coordination.groups.offset_coordinator import (
    OffsetCoordinator,
    check_group_id,
)
from strandline.broker.coordination.groups.offset_expiry import OffsetExpiry
from strandline.broker.coordination.model.classic_messages import (
    Answer,
    CoordinatorFault,
    GroupDescription,
    GroupState,
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
    Ticket,
)
from strandline.broker.coordination.model.consumer_messages import (
    DEFAULT_TIMES,
    JOIN_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    HeartbeatAnswer,
    MemberTimes,
)
from strandline.broker.coordination.model.group_config import GroupConfig
from strandline.broker.coordination.model.member_memory import MemberMemory
from strandline.broker.coordination.records.offset_records import decode_records
from strandline.broker.coordination.runtime.deadlines import GroupDeadlines
from strandline.broker.coordination.runtime.parked_requests import ParkedRequests
from strandline.broker.coordination.runtime.runtime import POLL_S, CoordinatorRuntime
from strandline.broker.coordination.runtime.slots import Slots
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage import entropy
from strandline.storage.clock import Clock
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.model import TimestampMs

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatistics:
    """Counts of groups and offsets; for operators and tests."""

    groups_by_state: Mapping[GroupState, int]
    offset_count: int
    loaded_partitions: int
    parked_requests: int


class GroupCoordinator:
    """The group coordinator of this broker. Used on the event loop only."""

    def __init__(
        self,
        config: GroupConfig,
        metadata: MetadataView,
        controller: Controller,
        replicas: ReplicaManager,
        *,
        node_id: int,
        clock: Clock,
        reads: Executor,
        times_of: Callable[[str], MemberTimes] = lambda _group_id: DEFAULT_TIMES,
        believed_ms: Callable[[], TimestampMs] | None = None,
    ) -> None:
        """`reads` runs the blocking part of loading.

        `believed_ms` is the time used for offset expiry, by default the clock's. `times_of` returns
        the timeouts for the members of a group of the new protocol.
        """
        self._config = config
        self._metadata = metadata
        self._clock = clock
        self._consumer_rules = replace(
            config.consumer, times_of=times_of, classic_size_max=config.classic.size_max
        )
        slots = Slots(
            NewTopic(
                name=OFFSETS_TOPIC,
                partition_count=config.offsets_partition_count,
                replication_factor=config.offsets_replicas_max,
                properties={
                    "cleanup.policy": "compact",
                    "segment.bytes": str(config.offsets_segment_bytes),
                },
            ),
            partial(
                GroupShard,
                rules=replace(config.classic, room=MemberMemory()),
                make_id=lambda: str(entropy.new_id()),
                offset_metadata_length_max=config.offset_metadata_length_max,
                retention_ms=config.offsets_retention_ms,
                topics_at_start=metadata.image.topics,
                consumer_rules=self._consumer_rules,
            ),
            decode_records,
            metadata,
            controller,
            replicas,
            node_id=node_id,
            clock=clock,
            reads=reads,
            content="groups",
        )
        self._slots = slots
        self._runtime = CoordinatorRuntime(slots, clock)
        self.now = self._runtime.now
        self.partition_of = slots.partition_of
        self.offsets = OffsetCoordinator(self._runtime, self.arm)
        self.commit = self.offsets.commit
        self.commit_in_transaction = self.offsets.commit_in_transaction
        self.read_offsets = self.offsets.read_offsets
        self.delete_offsets = self.offsets.delete_offsets
        self.offsets_of = self.offsets.offsets_of
        self._waiting = ParkedRequests()
        self._consumers = ConsumerCoordinator(self, reads)
        self._alarms = GroupDeadlines()
        self._forgetting = OffsetExpiry(
            self._slots,
            lambda: metadata.image.topics,
            interval_ms=config.offsets_retention_check_interval_ms,
            now=self.now(),
            believed_ms=believed_ms or clock.now_ms,
        )

    def __repr__(self) -> str:
        return f"<GroupCoordinator {self.statistics()}>"

    def statistics(self) -> CoordinatorStatistics:
        slots = self._slots.present()
        return CoordinatorStatistics(
            groups_by_state=Counter(
                group.state for slot in slots for group in (*slot.shard, *slot.shard.consumers)
            ),
            offset_count=sum(slot.shard.offset_count for slot in slots),
            loaded_partitions=sum(slot.is_loaded for slot in slots),
            parked_requests=len(self._waiting),
        )

    @property
    def image(self) -> MetadataImage:
        return self._metadata.image

    # --- members -----------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """Waits for the others to join. Raises CoordinatorFault."""
        config = self._config
        check_group_id(group_id)
        if not (
            config.session_timeout_ms_min
            <= request.session_timeout_ms
            <= config.session_timeout_ms_max
        ):
            raise CoordinatorFault(ErrorCode.INVALID_SESSION_TIMEOUT)

        def joined(slot: GroupSlot, ticket: Ticket) -> None:
            group = slot.shard.consumers.get(group_id)
            if group is not None and not group.is_empty:
                self._waiting.answer((self._consumers.join(slot, group, request, ticket),))
                return
            if group is not None:
                self._consumers.clear_empty(slot, group)
            self.carry_out(slot, slot.shard.join(group_id, request, ticket, self.now()))

        answer = await self._parked(await self._slots.made_for(group_id), joined)
        assert isinstance(answer, JoinAnswer), answer
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Waits for the leader's assignment. Raises CoordinatorFault."""
        check_group_id(group_id)

        def synced(slot: GroupSlot, ticket: Ticket) -> None:
            group = slot.shard.any_group(group_id)
            if group is None:
                raise CoordinatorFault(ErrorCode.UNKNOWN_MEMBER_ID)
            if isinstance(group, ConsumerGroup):
                self._waiting.answer((self._consumers.sync(group, request, ticket),))
                return
            effects = group.sync(request, ticket, self.now())
            self.carry_out(slot, GroupEffects(group=group, effects=effects))

        slot = self._slots.of(group_id)
        if slot is None:
            raise CoordinatorFault(ErrorCode.UNKNOWN_MEMBER_ID)
        answer = await self._parked(slot, synced)
        assert isinstance(answer, SyncAnswer), answer
        return answer

    async def _parked(self, slot: GroupSlot, act: Callable[[GroupSlot, Ticket], None]) -> Answer:
        """Acts on a slot, and waits for the answer of its ticket."""
        try:
            with self._waiting.park() as (ticket, answered):
                act(slot, ticket)
                return await answered
        finally:
            await slot.journal.settled()

    async def heartbeat(
        self, group_id: str, *, member_id: str, group_instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Returns the error code that answers a member's heartbeat."""

        def beat(shard: GroupShard) -> ErrorCode:
            group = shard.any_group(group_id)
            if group is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if isinstance(group, ConsumerGroup):
                return self._consumers.classic_heartbeat(
                    group,
                    member_id=member_id,
                    group_instance_id=group_instance_id,
                    generation=generation,
                )
            code = group.heartbeat(
                member_id=member_id,
                group_instance_id=group_instance_id,
                generation=generation,
                now=self.now(),
            )
            self.arm(group)
            return code

        try:
            check_group_id(group_id)
            return await self._runtime.read(group_id, beat)
        except CoordinatorFault as fault:
            # Sessions start only when the group is loaded, so until then all is well.
            if fault.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return ErrorCode.NONE
            return fault.error_code

    async def leave(
        self, group_id: str, leaving: Sequence[LeavingMember]
    ) -> tuple[LeaveResult, ...]:
        """Returns a result for each member in order. Raises CoordinatorFault."""
        check_group_id(group_id)

        def left(slot: GroupSlot) -> tuple[LeaveResult, ...]:
            group = slot.shard.any_group(group_id)
            if group is None:
                return unknown
            if isinstance(group, ConsumerGroup):
                return self._consumers.leave(slot, group, leaving)
            results, effects = group.leave(leaving, self.now())
            self.carry_out(slot, GroupEffects(group=group, effects=effects))
            return results

        unknown = tuple(
            LeaveResult(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
            for member in leaving
        )
        if self._slots.topic() is None:
            return unknown
        return await self._runtime.write(group_id, left)

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> HeartbeatAnswer:
        """Handles the only member request of the new protocol. Raises CoordinatorFault."""
        check_heartbeat(request, self._consumer_rules)
        joins = request.member_epoch == JOIN_EPOCH
        return await self._runtime.write(
            request.group_id,
            lambda slot: self._consumers.heartbeat(slot, request),
            absent=None if joins else ErrorCode.GROUP_ID_NOT_FOUND,
        )

    # --- groups ------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> GroupDescription | None:
        """Returns the classic group, None if there is none. Raises CoordinatorFault."""

        def described(shard: GroupShard) -> GroupDescription | None:
            if group_id in shard.consumers:
                raise CoordinatorFault(
                    ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group."
                )
            group = shard.group(group_id)
            return None if group is None else group.describe()

        return await self._runtime.read(group_id, described)

    async def describe_consumers(self, group_id: str) -> ConsumerGroupDescription:
        """Returns the group of the new protocol. Raises CoordinatorFault."""
        check_group_id(group_id)

        def described(shard: GroupShard) -> ConsumerGroupDescription:
            group = shard.any_group(group_id)
            if not isinstance(group, ConsumerGroup):
                what = "not found" if group is None else "is not a consumer group"
                raise CoordinatorFault(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
            return group.describe(preferred_assignor(group.roster, shard.consumers.rules))

        return await self._runtime.read(group_id, described)

    async def read_groups(self, look: Callable[[Group | ConsumerGroup], T]) -> list[T]:
        """Returns what `look` makes of each group. Raises CoordinatorFault while any is loaded."""
        return await self._runtime.read_all(
            lambda shards: [look(group) for shard in shards for group in (*shard, *shard.consumers)]
        )

    def groups(self) -> list[Group | ConsumerGroup]:
        """Returns all groups as of now, for the metrics. Raises CoordinatorFault while loading."""
        slots = self._slots.loaded()
        return [group for slot in slots for group in (*slot.shard, *slot.shard.consumers)]

    async def delete(self, group_id: str) -> ErrorCode:
        """Deletes a group without members, and its offsets."""

        def deleted(slot: GroupSlot) -> ErrorCode:
            deletion = slot.shard.delete_group(group_id)
            for records in in_batches(deletion.records):
                write_offsets(slot, records, self.now())
            return deletion.error_code

        try:
            return await self._runtime.write(group_id, deleted, absent=ErrorCode.GROUP_ID_NOT_FOUND)
        except CoordinatorFault as fault:
            return fault.error_code

    # --- writing -----------------------------------------------------------------------------

    def carry_out(self, slot: GroupSlot, step: GroupEffects) -> None:
        """Writes records, sends answers, and arms the timer."""
        carry_out(slot, step, answer=self._waiting.answer, now=self.now)
        if step.group is not None:
            self.arm(step.group)

    def _begin_sessions(self, slot: GroupSlot) -> None:
        self._forgetting.note_loaded(slot, self.now())
        for step in slot.shard.loaded(self.now()):
            self.carry_out(slot, step)
        for group in slot.shard.consumers:
            self.arm(group)

    # --- following the metadata --------------------------------------------------------------

    def follow(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        """Leads and resigns partitions; deletes the offsets of deleted topics."""
        for slot in self._slots.follow(delta):
            for step in slot.shard.unload(ErrorCode.NOT_COORDINATOR, self.now()):
                self._waiting.answer(step.effects.answers)
        gone = {topic.name for topic in delta.topics.gone()}
        if gone:
            self._forgetting.follow(gone, self.now())

    # --- time --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Loads unloaded partitions and handles all deadlines; never returns."""
        await self._runtime.run(self._begin_sessions, self._pass_time)

    async def _pass_time(self) -> float:
        await self._ring_alarms()
        await self._forgetting.expire_if_due(self.now())
        next_ms = self._alarms.next_ms
        return POLL_S if next_ms is None else (next_ms - self.now().monotonic_ms) / 1000

    def arm(self, group: Group | ConsumerGroup) -> None:
        """Arms the timer with the group's next deadline."""
        deadline_ms = group.next_deadline_ms
        if deadline_ms is not None and self._alarms.arm(group.group_id, deadline_ms):
            self._runtime.wake()

    async def _ring_alarms(self) -> None:
        now = self.now()
        # The sessions of all groups may end together, after a network failure.
        async for group_id in in_turns(self._alarms.ring(now.monotonic_ms)):
            try:
                slot = self._slots.of(group_id)
            except CoordinatorFault:
                # The group was unloaded with its partition.
                continue
            group = None if slot is None else slot.shard.any_group(group_id)
            if slot is None or group is None:
                continue
            if isinstance(group, ConsumerGroup):
                self._consumers.tick(slot, group)
            else:
                self.carry_out(slot, GroupEffects(group=group, effects=group.tick(now)))
