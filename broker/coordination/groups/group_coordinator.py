"""The group coordinator: connects the groups with the log, the clock and the requests.

    request --> shard (pure) --> records --> append to the partition --> replay --> answer

Each partition of `__consumer_offsets` is a *slot* (`slots.py`): the log, and a `GroupShard` with
the state replayed from it. An append is synchronous and in the page cache when it returns; with
`flush.messages` on the topic the answer waits for the disk. A failed append changes nothing.

Groups of the new protocol (KIP-848) are in `consumer_coordinator`; requests of the classic protocol
that name such a group are passed on to it.

There is one loop for all timers (`run`), woken by the earliest deadline of all groups. It also
detects deleted topics by comparing images, as each change does before it reads a group, and deletes
their offsets.

Offsets that a transaction commits are pending in their shard until its marker is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

from strandline.broker.cluster.metadata.active_controller import ControllerClient
from strandline.broker.cluster.metadata.controller_messages import NewTopic
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
    write_pending,
)
from strandline.broker.coordination.groups.offset_expiry import OffsetExpiry
from strandline.broker.coordination.model.classic_messages import (
    CoordinatorFault,
    GroupDescription,
    GroupState,
    Instant,
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
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
from strandline.broker.coordination.model.group_offsets import GroupOffsets
from strandline.broker.coordination.model.member_memory import MemberMemory
from strandline.broker.coordination.model.offset_messages import (
    CommitRequest,
    OffsetDeletion,
    OffsetRecord,
    OffsetToDelete,
)
from strandline.broker.coordination.records.offset_records import LoadedMarker, decode_records
from strandline.broker.coordination.runtime.deadlines import GroupDeadlines
from strandline.broker.coordination.runtime.parked_requests import ParkedRequests
from strandline.broker.coordination.runtime.slots import Slots
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage import entropy
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import wait_within
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.model import TimestampMs, TopicPartition

log = logging.getLogger(__name__)

# The loop checks the metadata this often even if no group has a deadline.
POLL_S = 1.0


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
        controller: ControllerClient,
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
        self._wake = asyncio.Event()
        self._consumer_rules = replace(
            config.consumer, times_of=times_of, classic_size_max=config.classic.size_max
        )
        self._slots = Slots(
            NewTopic(
                name=OFFSETS_TOPIC,
                partition_count=config.offsets_partition_count,
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
            on_found=self._wake.set,
        )
        # Await these between a look at the state and an answer that tells of it.
        self.replicated = self._slots.replicated
        self.all_replicated = self._slots.all_replicated
        self.partition_of = self._slots.partition_of
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
        _check_group_id(group_id)
        if not (
            config.session_timeout_ms_min
            <= request.session_timeout_ms
            <= config.session_timeout_ms_max
        ):
            raise CoordinatorFault(ErrorCode.INVALID_SESSION_TIMEOUT)
        slot = await self._slot_for_writing(group_id)
        group = slot.shard.consumers.get(group_id)
        if group is not None and not group.is_empty:
            return await self._consumers.join(slot, group, request, self._waiting.next_ticket())
        if group is not None:
            self._consumers.clear_empty(slot, group)
        with self._waiting.park() as (ticket, answered):
            self.carry_out(slot, slot.shard.join(group_id, request, ticket, self.now()))
            answer = await answered
        await slot.journal.settled()
        assert isinstance(answer, JoinAnswer), answer
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Waits for the leader's assignment. Raises CoordinatorFault."""
        _check_group_id(group_id)
        slot = self._slots.of(group_id)
        group = None if slot is None else slot.shard.any_group(group_id)
        if slot is None or group is None:
            raise CoordinatorFault(ErrorCode.UNKNOWN_MEMBER_ID)
        if isinstance(group, ConsumerGroup):
            answer = self._consumers.sync(group, request, self._waiting.next_ticket())
            await slot.journal.settled(wrote=False)
            return answer
        with self._waiting.park() as (ticket, answered):
            effects = group.sync(request, ticket, self.now())
            self.carry_out(slot, GroupEffects(group=group, effects=effects))
            synced = await answered
        await slot.journal.settled()
        assert isinstance(synced, SyncAnswer), synced
        return synced

    def heartbeat(
        self, group_id: str, *, member_id: str, group_instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Returns the error code that answers a member's heartbeat."""
        try:
            _check_group_id(group_id)
            slot = self._slots.of(group_id)
            group = None if slot is None else slot.shard.any_group(group_id)
            if isinstance(group, ConsumerGroup):
                return self._consumers.classic_heartbeat(
                    group,
                    member_id=member_id,
                    group_instance_id=group_instance_id,
                    generation=generation,
                )
        except CoordinatorFault as fault:
            # Sessions start only when the group is loaded, so until then all is well.
            if fault.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return ErrorCode.NONE
            return fault.error_code
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = group.heartbeat(
            member_id=member_id,
            group_instance_id=group_instance_id,
            generation=generation,
            now=self.now(),
        )
        self.arm(group)
        return code

    async def leave(
        self, group_id: str, leaving: Sequence[LeavingMember]
    ) -> tuple[LeaveResult, ...]:
        """Returns a result for each member in order. Raises CoordinatorFault."""
        _check_group_id(group_id)
        slot = self._slots.of(group_id)
        group = None if slot is None else slot.shard.any_group(group_id)
        if slot is None or group is None:
            return tuple(
                LeaveResult(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for member in leaving
            )
        if isinstance(group, ConsumerGroup):
            return await self._consumers.leave(slot, group, leaving)
        results, effects = group.leave(leaving, self.now())
        self.carry_out(slot, GroupEffects(group=group, effects=effects))
        await slot.journal.settled()
        return results

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> HeartbeatAnswer:
        """Handles the only member request of the new protocol. Raises CoordinatorFault."""
        check_heartbeat(request, self._consumer_rules)
        if request.member_epoch == JOIN_EPOCH:
            slot: GroupSlot | None = await self._slot_for_writing(request.group_id)
        else:
            slot = self._slots.of(request.group_id)
        if slot is None:
            raise CoordinatorFault(ErrorCode.GROUP_ID_NOT_FOUND)
        return await self._consumers.heartbeat(slot, request)

    # --- offsets -----------------------------------------------------------------------------

    async def commit(self, group_id: str, request: CommitRequest) -> tuple[ErrorCode, ...]:
        """Returns a code for each offset in order. Raises CoordinatorFault."""
        slot = await self._slot_for_writing(group_id)
        return await self._commit(slot, group_id, request, write_offsets)

    async def _commit(
        self,
        slot: GroupSlot,
        group_id: str,
        request: CommitRequest,
        write: Callable[[GroupSlot, Sequence[OffsetRecord], Instant], None],
    ) -> tuple[ErrorCode, ...]:
        now = self.now()
        decision = slot.shard.commit(group_id, request, now)
        group = slot.shard.group(group_id)
        if group is not None:
            self.arm(group)
        if decision.records:
            write(slot, decision.records, now)
        await slot.journal.settled(wrote=bool(decision.records))
        return decision.error_codes

    async def commit_in_transaction(
        self,
        group_id: str,
        request: CommitRequest,
        producer: ProducerIdentity,
        confirm: Callable[[TopicPartition], ErrorCode],
    ) -> tuple[ErrorCode, ...]:
        """Commits offsets that count once the producer's transaction is committed.

        `confirm` asks the coordinator of the transaction whether the partition of the offsets is
        part of it. Returns a code for each offset in order. Raises CoordinatorFault.
        """
        _check_group_id(group_id)
        slot = await self._slot_for_writing(group_id)
        # No turn of the loop lies between this answer and the append: no marker can.
        code = confirm(slot.partition.topic_partition)
        if code is not ErrorCode.NONE:
            raise CoordinatorFault(code)
        write = partial(write_pending, producer)
        return await self._commit(slot, group_id, request, write)

    def ended_transaction(self, partition: TopicPartition, ended: LoadedMarker) -> None:
        """The marker of a transaction was written to a partition of the offsets."""
        slot = self._slots.at(partition.partition)
        if slot is not None and slot.is_loaded:
            slot.shard.take(ended, self.now())

    def may_end_transaction(self, partition: TopicPartition) -> bool:
        """Returns whether a marker may be written to this partition of the offsets.

        Not while it is loaded: a loading shard would miss what is appended behind its end.
        """
        slot = self._slots.at(partition.partition)
        return slot is not None and slot.is_loaded

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Returns whether an open transaction has an offset of this partition."""
        slot = self._slots.of(group_id)
        return slot is not None and slot.shard.pending.has(group_id, topic, partition)

    def offsets_of(
        self, group_id: str, *, member_id: str | None = None, member_epoch: int = -1
    ) -> GroupOffsets | None:
        """Returns the group's committed offsets, None if there are none. Raises CoordinatorFault.

        A member of the new protocol that sends its epoch must be in that epoch.
        """
        slot = self._slots.of(group_id)
        if slot is None:
            return None
        consumers = slot.shard.consumers.get(group_id)
        if consumers is not None:
            code = slot.shard.consumers.check_fetch(
                consumers, member_id=member_id, member_epoch=member_epoch
            )
            if code is not ErrorCode.NONE:
                raise CoordinatorFault(code)
        return slot.shard.offsets_of(group_id)

    async def delete_offsets(
        self, group_id: str, wanted: Sequence[OffsetToDelete]
    ) -> OffsetDeletion:
        """Deletes offsets. Raises CoordinatorFault."""
        _check_group_id(group_id)
        slot = self._slots.of(group_id)
        if slot is None:
            raise CoordinatorFault(ErrorCode.GROUP_ID_NOT_FOUND)
        deletion = slot.shard.delete_offsets(group_id, wanted)
        if deletion.records:
            write_offsets(slot, deletion.records, self.now())
            await slot.journal.settled()
        return deletion

    # --- groups ------------------------------------------------------------------------------

    def describe(self, group_id: str) -> GroupDescription | None:
        """Returns the classic group, None if there is none. Raises CoordinatorFault."""
        slot = self._slots.of(group_id)
        if slot is None:
            return None
        if group_id in slot.shard.consumers:
            raise CoordinatorFault(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group."
            )
        group = slot.shard.group(group_id)
        return None if group is None else group.describe()

    def describe_consumers(self, group_id: str) -> ConsumerGroupDescription:
        """Returns the group of the new protocol. Raises CoordinatorFault."""
        _check_group_id(group_id)
        slot = self._slots.of(group_id)
        group = None if slot is None else slot.shard.any_group(group_id)
        if slot is None or not isinstance(group, ConsumerGroup):
            what = "not found" if group is None else "is not a consumer group"
            raise CoordinatorFault(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
        return group.describe(preferred_assignor(group.roster, slot.shard.consumers.rules))

    def groups(self) -> list[Group | ConsumerGroup]:
        """Returns all groups of this coordinator. Raises CoordinatorFault while it loads."""
        slots = self._slots.all()
        for slot in slots:
            if not slot.is_loaded:
                raise CoordinatorFault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [group for slot in slots for group in (*slot.shard, *slot.shard.consumers)]

    async def delete(self, group_id: str) -> ErrorCode:
        """Deletes a group without members, and its offsets."""
        try:
            slot = self._slots.of(group_id)
            if slot is None:
                return ErrorCode.GROUP_ID_NOT_FOUND
            deletion = slot.shard.delete_group(group_id)
            if deletion.error_code is not ErrorCode.NONE:
                return deletion.error_code
            for records in in_batches(deletion.records):
                write_offsets(slot, records, self.now())
            await slot.journal.settled()
        except CoordinatorFault as fault:
            return fault.error_code
        return ErrorCode.NONE

    # --- writing -----------------------------------------------------------------------------

    def carry_out(self, slot: GroupSlot, step: GroupEffects) -> None:
        """Writes records, sends answers, and arms the timer."""
        carry_out(slot, step, answer=self._waiting.answer, now=self.now)
        if step.group is not None:
            self.arm(step.group)

    async def _slot_for_writing(self, group_id: str) -> GroupSlot:
        """Returns the loaded slot; creates the topic if necessary. Raises CoordinatorFault."""
        await self._slots.ensure_topic()
        slot = self._slots.of(group_id)
        if slot is None:
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return slot

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
        while True:
            await self._ring_alarms()
            slot = self._slots.next_to_load()
            if slot is not None:
                await self._slots.load(slot, self.now, self._begin_sessions)
                continue
            await self._forgetting.expire_if_due(self.now())
            await wait_within(self._wake, self._idle_s())
            self._wake.clear()

    def _idle_s(self) -> float:
        next_ms = self._alarms.next_ms
        if next_ms is None:
            return POLL_S
        return max(0.0, min((next_ms - self.now().monotonic_ms) / 1000, POLL_S))

    def now(self) -> Instant:
        return Instant(self._clock.now_ms(), int(self._clock.monotonic_s() * 1000))

    def arm(self, group: Group | ConsumerGroup) -> None:
        """Arms the timer with the group's next deadline."""
        deadline_ms = group.next_deadline_ms
        if deadline_ms is not None and self._alarms.arm(group.group_id, deadline_ms):
            self._wake.set()

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


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise CoordinatorFault(ErrorCode.INVALID_GROUP_ID)
