"""The group coordinator: the shell around the groups, with the log, the clock and the callers.

    request --> shard (pure) --> records --> append to the partition --> replay --> answer

Each partition of `__consumer_offsets` is a *slot*: the log, and a `GroupShard` with what the log
says. A group belongs to the partition that Java's hash of its id names, so the folders of a Kafka
broker can be taken over and Kafka's tools find what they look for.

    no topic yet      nothing is known of any group; the first join or commit creates it
    slot not loaded   COORDINATOR_LOAD_IN_PROGRESS, until `run` has replayed the log
    slot loaded       served; an append that fails leaves everything as it was

An append is synchronous and in memory of the machine when it returns; with `flush.messages` on
the topic the answer waits for the disk. There is one loop for all timers (`run`): a heap of the
earliest deadline of each group, in which entries that no longer hold are passed over.

Topics that are deleted are noticed by comparing images, before each change and once a second; the
offsets of their partitions go then.

Two gaps. Compaction is not served yet, so the topic is created with cleanup.policy=delete and
retention.ms=-1: nothing is lost, but it only grows, and loading reads all of it. Transactional
commits are understood when a log is loaded; nobody can write them yet.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from strandline.broker.cluster import controller
from strandline.broker.cluster.decisions import NewTopic, TopicDefaults
from strandline.broker.cluster.image import MetadataImage, TopicImage
from strandline.broker.cluster.metadata import Metadata
from strandline.broker.cluster.partition import Partition
from strandline.broker.cluster.replica_manager import ReplicaManager
from strandline.broker.coordination.group import Group
from strandline.broker.coordination.group_offsets import GroupOffsets
from strandline.broker.coordination.group_partitioning import coordinating_partition
from strandline.broker.coordination.group_values import (
    Answer,
    CreationWrite,
    Effects,
    GroupDescription,
    GroupRules,
    GroupState,
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    Moment,
    SyncAnswer,
    SyncRequest,
    Ticket,
)
from strandline.broker.coordination.offset_records import (
    LoadedRecord,
    TransactionalRecord,
    TransactionEnd,
    TransactionMarker,
    encode_records,
    read_chunk,
)
from strandline.broker.coordination.shard import GroupEffects, GroupShard
from strandline.broker.coordination.shard_values import (
    CommitRequest,
    CoordinatorRecord,
    GroupRecord,
    OffsetDeletion,
    OffsetToDelete,
)
from strandline.broker.protocol.errors import ErrorCode
from strandline.broker.protocol.offsets_topic import OFFSETS_TOPIC
from strandline.storage.clock import Clock
from strandline.storage.errors import (
    MessageTooLarge,
    RecordListTooLarge,
    RecordsRejected,
    StorageError,
    StrandlineError,
)
from strandline.storage.local.log import AppendOrigin
from strandline.storage.model import TopicId

log = logging.getLogger(__name__)

# The loop looks at the metadata this often even if no group has a deadline.
POLL_S = 1.0
# A partition that cannot be read is tried again after this.
LOAD_RETRY_S = 30.0
# Expiry and deleted topics may concern any number of offsets; a batch must stay below
# max.message.bytes, of which an offset's tombstone takes well under a thousandth.
TOMBSTONES_PER_BATCH_MAX = 500


class CoordinatorFault(StrandlineError):
    """The group cannot be served now; the client is told `error_code`."""

    def __init__(self, error_code: ErrorCode) -> None:
        super().__init__(error_code.name)
        self.error_code = error_code


class GroupConfiguration(Protocol):
    """The part of a broker's configuration that group coordination depends on."""

    @property
    def group_min_session_timeout_ms(self) -> int: ...

    @property
    def group_max_session_timeout_ms(self) -> int: ...

    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...

    @property
    def group_max_size(self) -> int: ...

    @property
    def offsets_topic_num_partitions(self) -> int: ...

    @property
    def offsets_topic_segment_bytes(self) -> int: ...

    @property
    def offsets_retention_minutes(self) -> int: ...

    @property
    def offsets_retention_check_interval_ms(self) -> int: ...

    @property
    def offset_metadata_max_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatistics:
    """What the coordinator holds; for operators and tests."""

    groups_by_state: Mapping[GroupState, int]
    offset_count: int
    loading_partitions: int
    loaded_partitions: int
    parked_requests: int


class _Slot:
    """One partition of the topic, and what is known of it."""

    __slots__ = ("is_loaded", "partition", "retry_s", "shard")

    def __init__(self, partition: Partition, shard: GroupShard, *, is_loaded: bool) -> None:
        self.partition = partition
        self.shard = shard
        self.is_loaded = is_loaded
        self.retry_s = 0.0

    def __repr__(self) -> str:
        return f"<_Slot {self.partition.topic_partition} loaded={self.is_loaded} {self.shard!r}>"


@dataclass(frozen=True, slots=True, order=True)
class _Alarm:
    """A group wants to be looked at then."""

    deadline_ms: int
    group_id: str


class GroupCoordinator:
    """See the top of this file. Used on the event loop only."""

    def __init__(
        self,
        config: GroupConfiguration,
        metadata: Metadata,
        replicas: ReplicaManager,
        *,
        node_id: int,
        topic_defaults: TopicDefaults,
        clock: Clock,
        reads: Executor,
    ) -> None:
        """`reads` runs the blocking part of loading."""
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._node_id = node_id
        self._topic_defaults = topic_defaults
        self._clock = clock
        self._reads = reads
        self._rules = GroupRules(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            size_max=config.group_max_size,
        )
        self._slots: dict[int, _Slot] = {}
        # The incarnation of the topic that the slots belong to.
        self._topic_id: TopicId | None = None
        self._seen: MetadataImage | None = None
        self._tickets = itertools.count(1)
        self._parked: dict[Ticket, asyncio.Future[Answer]] = {}
        self._alarms: list[_Alarm] = []
        # The alarm of each group that counts; others of it in the heap are passed over.
        self._armed: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._next_expiry_s = (
            clock.monotonic_s() + config.offsets_retention_check_interval_ms / 1000
        )

    def __repr__(self) -> str:
        return f"<GroupCoordinator {self.statistics()}>"

    def statistics(self) -> CoordinatorStatistics:
        slots = self._slots.values()
        return CoordinatorStatistics(
            groups_by_state=Counter(group.state for slot in slots for group in slot.shard),
            offset_count=sum(slot.shard.offset_count for slot in slots),
            loading_partitions=sum(not slot.is_loaded for slot in slots),
            loaded_partitions=sum(slot.is_loaded for slot in slots),
            parked_requests=len(self._parked),
        )

    # --- members -----------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """Waits for the others to join. Raises CoordinatorFault."""
        config = self._config
        _check_group_id(group_id)
        if not (
            config.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= config.group_max_session_timeout_ms
        ):
            raise CoordinatorFault(ErrorCode.INVALID_SESSION_TIMEOUT)
        slot = await self._slot_for_writing(group_id)
        ticket, answered = self._park()
        try:
            step = slot.shard.join(group_id, request, ticket, self._now())
            self._carry_out(slot, step)
            answer = await answered
        finally:
            self._parked.pop(ticket, None)
        await self._settle(slot)
        assert isinstance(answer, JoinAnswer), answer
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Waits for the leader's assignment. Raises CoordinatorFault."""
        _check_group_id(group_id)
        slot = self._slot_with(group_id)
        group = None if slot is None else slot.shard.group(group_id)
        if slot is None or group is None:
            raise CoordinatorFault(ErrorCode.UNKNOWN_MEMBER_ID)
        ticket, answered = self._park()
        try:
            effects = group.sync(request, ticket, self._now())
            self._carry_out(slot, GroupEffects(group=group, effects=effects))
            answer = await answered
        finally:
            self._parked.pop(ticket, None)
        await self._settle(slot)
        assert isinstance(answer, SyncAnswer), answer
        return answer

    def heartbeat(
        self, group_id: str, *, member_id: str, group_instance_id: str | None, generation: int
    ) -> ErrorCode:
        """What a member's sign of life is answered."""
        try:
            _check_group_id(group_id)
            slot = self._slot_with(group_id)
        except CoordinatorFault as fault:
            # The session begins only when the group is loaded, so all is well until then.
            if fault.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return ErrorCode.NONE
            return fault.error_code
        group = None if slot is None else slot.shard.group(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = group.heartbeat(
            member_id=member_id,
            group_instance_id=group_instance_id,
            generation=generation,
            now=self._now(),
        )
        self._arm(group)
        return code

    async def leave(
        self, group_id: str, leaving: Sequence[LeavingMember]
    ) -> tuple[LeaveResult, ...]:
        """A result for each member in order. Raises CoordinatorFault."""
        _check_group_id(group_id)
        slot = self._slot_with(group_id)
        group = None if slot is None else slot.shard.group(group_id)
        if slot is None or group is None:
            return tuple(
                LeaveResult(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for member in leaving
            )
        results, effects = group.leave(leaving, self._now())
        self._carry_out(slot, GroupEffects(group=group, effects=effects))
        await self._settle(slot)
        return results

    # --- offsets -----------------------------------------------------------------------------

    async def commit(self, group_id: str, request: CommitRequest) -> tuple[ErrorCode, ...]:
        """A code for each offset in order. Raises CoordinatorFault."""
        slot = await self._slot_for_writing(group_id)
        now = self._now()
        decision = slot.shard.commit(group_id, request, now)
        group = slot.shard.group(group_id)
        if group is not None:
            self._arm(group)
        if decision.records:
            self._write_or_refuse(slot, decision.records, now)
            await self._settle(slot)
        return decision.error_codes

    def offsets_of(self, group_id: str) -> GroupOffsets | None:
        """What the group has committed, None if nothing. Raises CoordinatorFault."""
        slot = self._slot_with(group_id)
        return None if slot is None else slot.shard.offsets_of(group_id)

    async def delete_offsets(
        self, group_id: str, wanted: Sequence[OffsetToDelete]
    ) -> OffsetDeletion:
        """Forgets offsets. Raises CoordinatorFault."""
        _check_group_id(group_id)
        slot = self._slot_with(group_id)
        if slot is None:
            raise CoordinatorFault(ErrorCode.GROUP_ID_NOT_FOUND)
        deletion = slot.shard.delete_offsets(group_id, wanted)
        if deletion.records:
            self._write_or_refuse(slot, deletion.records, self._now())
            await self._settle(slot)
        return deletion

    # --- groups ------------------------------------------------------------------------------

    def describe(self, group_id: str) -> GroupDescription | None:
        """The group, None if there is none. Raises CoordinatorFault."""
        slot = self._slot_with(group_id)
        group = None if slot is None else slot.shard.group(group_id)
        return None if group is None else group.describe()

    def groups(self) -> list[Group]:
        """Every group that this broker coordinates. Raises CoordinatorFault while it loads."""
        self._catch_up()
        for slot in self._all_slots():
            if not slot.is_loaded:
                raise CoordinatorFault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [group for slot in self._slots.values() for group in slot.shard]

    async def delete(self, group_id: str) -> ErrorCode:
        """Forgets a group without members, and what it committed."""
        try:
            slot = self._slot_with(group_id)
            if slot is None:
                return ErrorCode.GROUP_ID_NOT_FOUND
            deletion = slot.shard.delete_group(group_id)
            if deletion.error_code is not ErrorCode.NONE:
                return deletion.error_code
            for records in _in_batches(deletion.records):
                self._write_or_refuse(slot, records, self._now())
            await self._settle(slot)
        except CoordinatorFault as fault:
            return fault.error_code
        return ErrorCode.NONE

    # --- writing -----------------------------------------------------------------------------

    def _write(self, slot: _Slot, records: Sequence[CoordinatorRecord], now: Moment) -> None:
        """Appends one batch. Raises RecordsRejected, StorageError."""
        batch = encode_records(records, now.wall_ms)
        slot.partition.append(memoryview(batch), origin=AppendOrigin.COORDINATOR)

    def _write_or_refuse(
        self, slot: _Slot, records: Sequence[CoordinatorRecord], now: Moment
    ) -> None:
        """Appends and replays. Raises CoordinatorFault with what a committing client is told."""
        try:
            self._write(slot, records, now)
        except (MessageTooLarge, RecordListTooLarge) as error:
            raise CoordinatorFault(ErrorCode.INVALID_COMMIT_OFFSET_SIZE) from error
        except (RecordsRejected, StorageError) as error:
            self._log_failed_write(slot, error)
            raise CoordinatorFault(ErrorCode.NOT_COORDINATOR) from error
        for record in records:
            slot.shard.replay(record, now)

    def _carry_out(self, slot: _Slot, step: GroupEffects) -> None:
        """Writes what is to be written, and answers who is to be answered."""
        group, effects = step.group, step.effects
        if group is None:
            self._answer(effects.answers)
            return
        while effects.write is not None:
            write, now = effects.write, self._now()
            if not isinstance(write, CreationWrite):
                self._answer(effects.answers)
            try:
                self._write(slot, (GroupRecord(group.group_id, write.snapshot),), now)
            except (RecordsRejected, StorageError) as error:
                self._log_failed_write(slot, error)
                code = _group_write_code(error)
                if isinstance(write, CreationWrite):
                    self._undo_creation(slot, group, effects, code)
                    return
                effects = group.write_failed(write, code, now)
            else:
                if isinstance(write, CreationWrite):
                    self._answer(effects.answers)
                effects = group.written(write, now)
        self._answer(effects.answers)
        self._arm(group)

    def _undo_creation(
        self, slot: _Slot, group: Group, effects: Effects, error_code: ErrorCode
    ) -> None:
        """A group that is not in the log never was: whoever joined it is told so."""
        slot.shard.forget(group.group_id)
        self._answer(
            [JoinAnswer(ticket=answer.ticket, error_code=error_code) for answer in effects.answers]
        )
        self._answer(group.unload(error_code, self._now()).answers)

    def _log_failed_write(self, slot: _Slot, error: StrandlineError) -> None:
        log.warning(
            "group record not written",
            extra={
                "fields": {
                    "partition": str(slot.partition.topic_partition),
                    "error": str(error),
                }
            },
        )

    async def _settle(self, slot: _Slot) -> None:
        """Returns when what was written may be told. Raises CoordinatorFault."""
        if slot.partition.must_flush:
            try:
                await slot.partition.flush()
            except StorageError as error:
                raise CoordinatorFault(ErrorCode.NOT_COORDINATOR) from error

    # --- callers that wait -------------------------------------------------------------------

    def _park(self) -> tuple[Ticket, asyncio.Future[Answer]]:
        ticket = next(self._tickets)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._parked[ticket] = answered
        return ticket, answered

    def _answer(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            # Whoever gave up waiting is not told.
            answered = self._parked.pop(answer.ticket, None)
            if answered is not None and not answered.done():
                answered.set_result(answer)

    # --- slots -------------------------------------------------------------------------------

    def _slot_with(self, group_id: str) -> _Slot | None:
        """The loaded slot of a group, None while there is no topic. Raises CoordinatorFault."""
        self._catch_up()
        topic = self._offsets_topic()
        if topic is None:
            return None
        slot = self._slot(coordinating_partition(group_id, topic.partition_count))
        if slot is None:
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not slot.is_loaded:
            raise CoordinatorFault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return slot

    async def _slot_for_writing(self, group_id: str) -> _Slot:
        """As `_slot_with`, but creates the topic if need be."""
        if self._offsets_topic() is None:
            await self._create_topic()
        slot = self._slot_with(group_id)
        if slot is None:
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return slot

    def _offsets_topic(self) -> TopicImage | None:
        return self._metadata.image.topics.get(OFFSETS_TOPIC)

    def _slot(self, index: int) -> _Slot | None:
        slot = self._slots.get(index)
        if slot is not None:
            return slot
        partition = self._replicas.partition(OFFSETS_TOPIC, index)
        if partition is None:
            return None
        # An empty log is read already; so a topic that was just made is served at once.
        is_empty = partition.log.end_offset <= partition.log.log_start_offset
        slot = self._slots[index] = _Slot(partition, self._new_shard(), is_loaded=is_empty)
        if not is_empty:
            self._wake.set()
        return slot

    def _all_slots(self) -> list[_Slot]:
        topic = self._offsets_topic()
        if topic is None:
            return []
        slots = (self._slot(index) for index in range(topic.partition_count))
        return [slot for slot in slots if slot is not None]

    def _new_shard(self) -> GroupShard:
        config = self._config
        return GroupShard(
            rules=self._rules,
            make_id=lambda: str(uuid.uuid4()),
            offset_metadata_length_max=config.offset_metadata_max_bytes,
            retention_ms=config.offsets_retention_minutes * 60_000,
        )

    async def _create_topic(self) -> None:
        """Makes `__consumer_offsets`. Raises CoordinatorFault."""
        config = self._config
        new_topic = NewTopic(
            name=OFFSETS_TOPIC,
            partition_count=config.offsets_topic_num_partitions,
            properties={
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
        try:
            decision = await self._metadata.change(
                lambda image: controller.create_topics(
                    image,
                    [new_topic],
                    node_ids=(self._node_id,),
                    defaults=self._topic_defaults,
                )
            )
        except StorageError as error:
            log.warning("offsets topic not created", extra={"fields": {"error": str(error)}})
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        (result,) = decision.results
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            log.warning(
                "offsets topic not created", extra={"fields": {"error": result.error_message}}
            )
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # --- following the metadata --------------------------------------------------------------

    def _catch_up(self) -> None:
        """Forgets the offsets of topics that were deleted since the last look."""
        image, seen = self._metadata.image, self._seen
        if image is seen:
            return
        self._seen = image
        topic = image.topics.get(OFFSETS_TOPIC)
        topic_id = None if topic is None else topic.topic_id
        if topic_id != self._topic_id:
            self._topic_id = topic_id
            self._drop_slots()
        if seen is None:
            return
        gone = {
            known.name
            for known_id, known in seen.topics_by_id.items()
            if known_id not in image.topics_by_id
        }
        if gone:
            self._forget_topics(gone)

    def _drop_slots(self) -> None:
        slots, self._slots = self._slots, {}
        for slot in slots.values():
            for step in slot.shard.unload(ErrorCode.NOT_COORDINATOR, self._now()):
                self._answer(step.effects.answers)
        self._armed.clear()
        self._alarms.clear()

    def _forget_topics(self, topics: set[str]) -> None:
        now = self._now()
        for slot in self._slots.values():
            if slot.is_loaded:
                self._write_tombstones(slot, slot.shard.forget_topics(topics), now)

    def _write_tombstones(
        self, slot: _Slot, records: Sequence[CoordinatorRecord], now: Moment
    ) -> None:
        """Forgets what it can; what could not be written is tried again by the next expiry."""
        try:
            for batch in _in_batches(records):
                self._write_or_refuse(slot, batch, now)
        except CoordinatorFault as fault:
            log.warning(
                "offsets not forgotten",
                extra={
                    "fields": {
                        "partition": str(slot.partition.topic_partition),
                        "error": fault.error_code.name,
                    }
                },
            )

    # --- time --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Loads what is not loaded, and keeps all deadlines; never returns."""
        while True:
            self._catch_up()
            await self._load()
            self._ring_alarms()
            self._expire_if_due()
            try:
                async with asyncio.timeout(self._idle_s()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _idle_s(self) -> float:
        if not self._alarms:
            return POLL_S
        wait_ms = self._alarms[0].deadline_ms - self._now().monotonic_ms
        return max(0.0, min(wait_ms / 1000, POLL_S))

    def _now(self) -> Moment:
        return Moment(self._clock.now_ms(), int(self._clock.monotonic_s() * 1000))

    def _arm(self, group: Group) -> None:
        """Sees to it that the group is looked at in time."""
        deadline_ms = group.next_deadline_ms
        if deadline_ms is None:
            return
        armed_ms = self._armed.get(group.group_id)
        if armed_ms is not None and armed_ms <= deadline_ms:
            return
        self._armed[group.group_id] = deadline_ms
        heapq.heappush(self._alarms, _Alarm(deadline_ms, group.group_id))
        if self._alarms[0].deadline_ms == deadline_ms:
            self._wake.set()

    def _ring_alarms(self) -> None:
        now = self._now()
        topic = self._offsets_topic()
        while self._alarms and self._alarms[0].deadline_ms <= now.monotonic_ms:
            alarm = heapq.heappop(self._alarms)
            if self._armed.get(alarm.group_id) != alarm.deadline_ms or topic is None:
                continue
            del self._armed[alarm.group_id]
            index = coordinating_partition(alarm.group_id, topic.partition_count)
            slot = self._slots.get(index)
            group = None if slot is None else slot.shard.group(alarm.group_id)
            if slot is not None and group is not None:
                self._carry_out(slot, GroupEffects(group=group, effects=group.tick(now)))

    def _expire_if_due(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._next_expiry_s:
            return
        self._next_expiry_s = now_s + self._config.offsets_retention_check_interval_ms / 1000
        now = self._now()
        for slot in self._slots.values():
            if slot.is_loaded:
                records = slot.shard.expire(now)
                if records:
                    log.info(
                        "offsets expired",
                        extra={
                            "fields": {
                                "partition": str(slot.partition.topic_partition),
                                "records": len(records),
                            }
                        },
                    )
                self._write_tombstones(slot, records, now)

    # --- loading -----------------------------------------------------------------------------

    async def _load(self) -> None:
        for slot in self._all_slots():
            if slot.is_loaded or self._clock.monotonic_s() < slot.retry_s:
                continue
            try:
                await self._load_slot(slot)
            except (RecordsRejected, StorageError) as error:
                # Its groups stay unavailable: to forget what they committed would be worse.
                slot.retry_s = self._clock.monotonic_s() + LOAD_RETRY_S
                slot.shard = self._new_shard()
                log.error(
                    "groups not loaded",
                    extra={
                        "fields": {
                            "partition": str(slot.partition.topic_partition),
                            "error": str(error),
                            "retry_s": LOAD_RETRY_S,
                        }
                    },
                )

    async def _load_slot(self, slot: _Slot) -> None:
        """Replays the log of one partition. Raises RecordsRejected, StorageError."""
        began_s = self._clock.monotonic_s()
        unified_log = slot.partition.log
        offset, end_offset = unified_log.log_start_offset, slot.partition.high_watermark
        loop = asyncio.get_running_loop()
        replay = _Replay(slot.shard)
        while offset < end_offset:
            chunk = await loop.run_in_executor(
                self._reads, read_chunk, unified_log, offset, end_offset
            )
            now = self._now()
            for record in chunk.records:
                replay.take(record, now)
            offset = chunk.next_offset
        if self._slots.get(slot.partition.topic_partition.partition) is not slot:
            return
        slot.is_loaded = True
        for step in slot.shard.loaded(self._now()):
            self._carry_out(slot, step)
        log.info(
            "groups loaded",
            extra={
                "fields": {
                    "partition": str(slot.partition.topic_partition),
                    "groups": slot.shard.group_count,
                    "offsets": slot.shard.offset_count,
                    "ms": int((self._clock.monotonic_s() - began_s) * 1000),
                }
            },
        )


class _Replay:
    """Takes records in the order of the log; those of a transaction when it is committed."""

    def __init__(self, shard: GroupShard) -> None:
        self._shard = shard
        self._open: dict[int, list[CoordinatorRecord]] = {}

    def take(self, record: LoadedRecord, now: Moment) -> None:
        if isinstance(record, TransactionalRecord):
            self._open.setdefault(record.producer_id, []).append(record.record)
        elif isinstance(record, TransactionMarker):
            ended = self._open.pop(record.producer_id, [])
            if record.end is TransactionEnd.COMMIT:
                for kept in ended:
                    self._shard.replay(kept, now)
        else:
            self._shard.replay(record, now)


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise CoordinatorFault(ErrorCode.INVALID_GROUP_ID)


def _in_batches(records: Sequence[CoordinatorRecord]) -> list[Sequence[CoordinatorRecord]]:
    size = TOMBSTONES_PER_BATCH_MAX
    return [records[start : start + size] for start in range(0, len(records), size)]


def _group_write_code(error: StrandlineError) -> ErrorCode:
    """What members are told when their group could not be written."""
    if isinstance(error, RecordsRejected):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NOT_COORDINATOR
