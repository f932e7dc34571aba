"""The groups and offsets of one partition of `__consumer_offsets`, as pure state.

    replay(record)                     while the log is read, and after records were written
    commit / delete... -> records      the caller writes them, then replays them: an offset is
                                       seen only when it is in the log
    join -> group, effects             the state of members changes at once; effects mark the
                                       answers that must wait for a write

Groups of the new protocol (KIP-848) are in `consumers`; a group id is of one of the two kinds.

A group that only commits offsets (a *simple* group) has no record of its own: it exists as long as
one of its offsets does, and is restored by replaying those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from strandline.broker.cluster.metadata.image import TopicImage
from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.consumer.consumer_group import ConsumerGroup
from strandline.broker.coordination.consumer.consumer_shard import ConsumerGroups
from strandline.broker.coordination.model.classic_messages import (
    NO_MEMBER_ID,
    CreationWrite,
    Effects,
    GroupRules,
    GroupState,
    Instant,
    JoinAnswer,
    JoinRequest,
    Ticket,
)
from strandline.broker.coordination.model.consumer_messages import (
    ConsumerRecord,
    ConsumerRules,
    is_tombstone,
)
from strandline.broker.coordination.model.group_offsets import (
    GroupOffsets,
    find_expired,
    is_of,
)
from strandline.broker.coordination.model.offset_messages import (
    NO_RETENTION,
    CommitDecision,
    CommitRequest,
    CoordinatorRecord,
    GroupDeletion,
    GroupRecord,
    OffsetDeletion,
    OffsetRecord,
    OffsetToCommit,
    OffsetToDelete,
)
from strandline.broker.coordination.model.pending_offsets import PendingOffsets
from strandline.broker.coordination.records.offset_records import (
    LoadedMarker,
    LoadedRecord,
    TransactionalRecord,
)
from strandline.broker.coordination.runtime.slots import Slot, Slots
from strandline.broker.protocol.formats.offsets_topic import NO_TIMESTAMP, OffsetCommitValue
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.log_config import LONG_MAX
from strandline.storage.model import ZERO_TOPIC_ID
from strandline.storage.records.batch.marker import MarkerType


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEffects:
    """The effects of an event in a group. `group` is None if there is no such group."""

    group: Group | None
    effects: Effects


class GroupShard:
    """The groups and offsets of one partition. Not thread-safe, never waits."""

    def __init__(
        self,
        *,
        rules: GroupRules,
        make_id: Callable[[], str],
        offset_metadata_length_max: int,
        retention_ms: int,
        topics_at_start: Mapping[str, TopicImage],
        consumer_rules: ConsumerRules | None = None,
    ) -> None:
        self.consumers = ConsumerGroups(consumer_rules or ConsumerRules(), make_id)
        self._rules = rules
        self._make_id = make_id
        self._offset_metadata_length_max = offset_metadata_length_max
        self._retention_ms = retention_ms
        self._topics_at_start = topics_at_start
        # Offsets (group, topic, partition) whose last record lacks the topic's id.
        self._incomplete: set[tuple[str, str, int]] = set()
        # Offsets committed in open transactions.
        self.pending = PendingOffsets()
        self._groups: dict[str, Group] = {}
        self._offsets: dict[str, GroupOffsets] = {}

    def __repr__(self) -> str:
        return f"<GroupShard {len(self._groups)} groups, {self.offset_count} offsets>"

    def __iter__(self) -> Iterator[Group]:
        """Iterates over the classic groups."""
        return iter(self._groups.values())

    @property
    def group_count(self) -> int:
        return len(self._groups) + len(self.consumers)

    @property
    def offset_count(self) -> int:
        return sum(len(offsets) for offsets in self._offsets.values())

    def group(self, group_id: str) -> Group | None:
        """Returns the classic group of this name."""
        return self._groups.get(group_id)

    def any_group(self, group_id: str) -> Group | ConsumerGroup | None:
        return self._groups.get(group_id) or self.consumers.get(group_id)

    def offsets_of(self, group_id: str) -> GroupOffsets | None:
        """Returns the group's offsets; None if it has none or does not exist."""
        return self._offsets.get(group_id)

    def counts(self) -> Mapping[str, int]:
        return {"groups": self.group_count, "offsets": self.offset_count}

    # --- replaying ---------------------------------------------------------------------------

    def take(self, record: LoadedRecord, now: Instant) -> None:
        """Applies one record of the log; those of a transaction when it is committed."""
        if isinstance(record, TransactionalRecord):
            if isinstance(record.record, OffsetRecord):
                self.pending.add(record.producer_id, self._with_topic_id(record.record))
                self._ensure_group(record.record.group_id, now)
        elif isinstance(record, LoadedMarker):
            is_commit = record.end is MarkerType.COMMIT
            for counting in self.pending.end(record.producer_id, is_commit=is_commit):
                self._replay_offset(counting, now)
        else:
            self.replay(record, now)

    def replay(self, record: CoordinatorRecord, now: Instant) -> None:
        """Applies one record of the log."""
        if isinstance(record, OffsetRecord):
            self.pending.overtake(record)
            self._replay_offset(record, now)
        elif isinstance(record, ConsumerRecord):
            if not is_tombstone(record):
                # Created as a simple group by an offset before this record.
                self._groups.pop(record.group_id, None)
            self.consumers.replay(record, now)
        elif record.snapshot is None:
            self._groups.pop(record.group_id, None)
        else:
            self.consumers.forget(record.group_id)
            self._groups[record.group_id] = Group.restored(
                record.group_id,
                record.snapshot,
                now,
                rules=self._rules,
                make_id=self._make_id,
            )

    def _replay_offset(self, record: OffsetRecord, now: Instant) -> None:
        offsets = self._offsets.get(record.group_id)
        place = record.group_id, record.topic, record.partition
        self._incomplete.discard(place)
        if record.committed is None:
            if offsets is not None:
                offsets.remove(record.topic, record.partition)
                if not offsets.topics:
                    del self._offsets[record.group_id]
            return
        if offsets is None:
            offsets = self._offsets[record.group_id] = GroupOffsets()
        completed = self._with_topic_id(record)
        if completed is not record:
            self._incomplete.add(place)
        assert completed.committed is not None
        offsets.put(record.topic, record.partition, completed.committed)
        self._ensure_group(record.group_id, now)

    def _with_topic_id(self, record: OffsetRecord) -> OffsetRecord:
        """Commits of old states lack the id of the topic, and those with their own retention.

        They were made before the start, to the topic that had the name then: a partition that is
        not loaded accepts no commits.
        """
        if record.committed is None or record.committed.topic_id != ZERO_TOPIC_ID:
            return record
        topic = self._topics_at_start.get(record.topic)
        if topic is None:
            return record
        return replace(record, committed=record.committed.replaced(topic_id=topic.topic_id))

    def _ensure_group(self, group_id: str, now: Instant) -> None:
        """Whoever commits offsets without being a member has a simple group.

        It is there before the transaction ends: administrators delete what is pending with it.
        """
        if group_id not in self._groups and group_id not in self.consumers:
            self._groups[group_id] = self._new_group(group_id, now)

    def loaded(self, now: Instant) -> list[GroupEffects]:
        """The log is read to its end: starts the sessions of all members."""
        self.consumers.loaded(now)
        return [
            GroupEffects(group=group, effects=group.loaded(now)) for group in self._groups.values()
        ]

    def unload(self, error_code: ErrorCode, now: Instant) -> list[GroupEffects]:
        """This broker stops coordinating these groups."""
        groups, self._groups, self._offsets = self._groups, {}, {}
        self.pending = PendingOffsets()
        self._incomplete.clear()
        self.consumers.clear()
        return [
            GroupEffects(group=group, effects=group.unload(error_code, now))
            for group in groups.values()
        ]

    def _new_group(self, group_id: str, now: Instant) -> Group:
        return Group(group_id, now, rules=self._rules, make_id=self._make_id)

    # --- members -----------------------------------------------------------------------------

    def join(
        self, group_id: str, request: JoinRequest, ticket: Ticket, now: Instant
    ) -> GroupEffects:
        """A join creates the group if necessary; see `Group.join`.

        The answers beside a `CreationWrite` must be sent only after it is written.
        """
        group = self._groups.get(group_id)
        if group is not None:
            return GroupEffects(group=group, effects=group.join(request, ticket, now))
        if request.member_id != NO_MEMBER_ID:
            refusal = JoinAnswer(
                ticket=ticket,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                member_id=request.member_id,
            )
            return GroupEffects(group=None, effects=Effects(answers=(refusal,)))
        group = self._new_group(group_id, now)
        effects = group.join(request, ticket, now)
        if not group.member_count and not group.has_pending_members:
            # It was refused. Kafka keeps the empty group until it expires; we keep nothing.
            return GroupEffects(group=None, effects=effects)
        self._groups[group_id] = group
        assert effects.write is None, effects
        return GroupEffects(
            group=group,
            effects=replace(effects, write=CreationWrite(snapshot=group.creation_snapshot())),
        )

    def forget(self, group_id: str) -> None:
        """Removes a group whose creation could not be written."""
        self._groups.pop(group_id, None)

    # --- offsets -----------------------------------------------------------------------------

    def check_commit(self, group_id: str, request: CommitRequest) -> ErrorCode:
        """Returns whether the sender may commit for this group now."""
        consumers = self.consumers.get(group_id)
        if consumers is not None:
            # A commit that is too large has its own error, and is not checked further.
            offsets = (offset for offset in request.offsets if self._has_room_for(offset))
            return self.consumers.check_commit(consumers, request, offsets)
        group = self._groups.get(group_id)
        if group is not None:
            return group.check_commit(
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                generation=request.generation,
                is_transactional=request.is_transactional,
            )
        return ErrorCode.NONE if request.generation < 0 else request.missing_group_code

    def commit(self, group_id: str, request: CommitRequest, now: Instant) -> CommitDecision:
        """Returns the records of a commit; changes nothing but the member's session."""
        fault = self.check_commit(group_id, request)
        if fault is not ErrorCode.NONE:
            return CommitDecision(records=(), error_codes=(fault,) * len(request.offsets))
        group = self._groups.get(group_id)
        if group is not None:
            group.note_commit(request.member_id, now)
        expires_ms = (
            NO_TIMESTAMP
            if request.retention_ms == NO_RETENTION
            # Clients that never want it to expire send the largest retention.
            else min(now.wall_ms + request.retention_ms, LONG_MAX)
        )
        records = []
        codes = []
        for wanted in request.offsets:
            if not self._has_room_for(wanted):
                codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            codes.append(ErrorCode.NONE)
            records.append(_commit_record(group_id, wanted, now.wall_ms, expires_ms))
        return CommitDecision(records=tuple(records), error_codes=tuple(codes))

    def _has_room_for(self, offset: OffsetToCommit) -> bool:
        return len(offset.metadata or "") <= self._offset_metadata_length_max

    def delete_offsets(self, group_id: str, wanted: Sequence[OffsetToDelete]) -> OffsetDeletion:
        """Returns tombstones of offsets, except of topics that members read."""
        group = self.any_group(group_id)
        if group is None or group.state is GroupState.DEAD:
            return OffsetDeletion(group_code=ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
            return OffsetDeletion(group_code=ErrorCode.NON_EMPTY_GROUP)
        offsets = self._offsets.get(group_id)
        records = []
        codes = []
        for entry in wanted:
            if group.is_subscribed_to(entry.topic):
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            codes.append(ErrorCode.NONE)
            is_pending = self.pending.has(group_id, entry.topic, entry.partition)
            if is_pending or (
                offsets is not None and offsets.get(entry.topic, entry.partition) is not None
            ):
                records.append(OffsetRecord(group_id, entry.topic, entry.partition, None))
        return OffsetDeletion(records=tuple(records), error_codes=tuple(codes))

    def delete_group(self, group_id: str) -> GroupDeletion:
        """Returns tombstones of a group without members, and of all its offsets."""
        group = self.any_group(group_id)
        if group is None or group.state is GroupState.DEAD:
            return GroupDeletion(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY:
            return GroupDeletion(error_code=ErrorCode.NON_EMPTY_GROUP)
        return GroupDeletion(records=(*self._tombstones(group_id), *self._end_of(group)))

    def _end_of(self, group: Group | ConsumerGroup) -> tuple[CoordinatorRecord, ...]:
        """Returns tombstones of a group, but not of its offsets."""
        if isinstance(group, ConsumerGroup):
            return self.consumers.tombstones(group)
        return (GroupRecord(group.group_id, None),)

    def _tombstones(self, group_id: str) -> Iterator[OffsetRecord]:
        for topic, partition, _ in self._offsets.get(group_id, ()):
            yield OffsetRecord(group_id, topic, partition, None)
        yield from self.pending.tombstones(lambda record: record.group_id == group_id)

    def committed_topics(self) -> set[str]:
        """Returns the topics that any group has an offset of."""
        committed = {topic for offsets in self._offsets.values() for topic in offsets.topics}
        return committed | self.pending.topics()

    def topic_tombstones(
        self, names: Set[str], topics: Mapping[str, TopicImage]
    ) -> list[CoordinatorRecord]:
        """Returns tombstones of the offsets under these names whose topic is not in `topics`."""
        return [
            *(
                OffsetRecord(group_id, name, partition, None)
                for group_id, offsets in self._offsets.items()
                for name in names & offsets.topics.keys()
                for partition, committed in offsets.topics[name].items()
                if not is_of(committed, topics.get(name))
            ),
            *self.pending.tombstones(
                lambda record: (
                    record.topic in names
                    and record.committed is not None
                    and not is_of(record.committed, topics.get(record.topic))
                )
            ),
        ]

    def completed_offsets(self) -> list[CoordinatorRecord]:
        """Returns the offsets whose record lacks the topic's id, to be written once with it."""
        completed: list[CoordinatorRecord] = []
        for group_id, topic, partition in self._incomplete:
            committed = self._offsets[group_id].topics[topic][partition]
            # A record now would overtake what a transaction commits. The version of the record with
            # an own retention has no field for the id.
            if committed.expires_ms == NO_TIMESTAMP and not self.pending.has(
                group_id, topic, partition
            ):
                completed.append(OffsetRecord(group_id, topic, partition, committed))
        self._incomplete.clear()
        return completed

    def expire(self, now: Instant) -> list[CoordinatorRecord]:
        """Returns tombstones of expired offsets, and of groups that then have none."""
        records: list[CoordinatorRecord] = []
        for group in (*self._groups.values(), *self.consumers):
            group_id = group.group_id
            expiry = find_expired(
                group,
                self._offsets.get(group_id) or GroupOffsets(),
                now_ms=now.wall_ms,
                retention_ms=self._retention_ms,
            )
            records += (
                OffsetRecord(group_id, entry.topic, entry.partition, None)
                for entry in expiry.offsets
                if not self.pending.has(group_id, entry.topic, entry.partition)
            )
            if (
                expiry.leaves_nothing
                and not self.pending.has_group(group_id)
                and group.state is GroupState.EMPTY
                and not (isinstance(group, Group) and group.has_pending_members)
            ):
                records += self._end_of(group)
        return records


def _commit_record(
    group_id: str, wanted: OffsetToCommit, now_ms: int, expires_ms: int
) -> OffsetRecord:
    return OffsetRecord(
        group_id,
        wanted.topic,
        wanted.partition,
        OffsetCommitValue(
            offset=wanted.offset,
            leader_epoch=wanted.leader_epoch,
            metadata=wanted.metadata or "",
            committed_ms=now_ms,
            expires_ms=expires_ms,
            topic_id=wanted.topic_id,
        ),
    )


GroupSlot: TypeAlias = Slot[GroupShard]
GroupSlots: TypeAlias = Slots[GroupShard]
