"""The KIP-848 groups of one partition of `__consumer_offsets`.

    decision = groups.heartbeat(...)     records and an answer; nothing has changed yet
    groups.replay(record)                while the log is read, and after records were written

A decision may convert a group to the other protocol (`migration.py`); its records are then of both
kinds, and the caller answers requests still waiting in the classic group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.consumer import classic_members as classic
from strandline.broker.coordination.consumer import heartbeats
from strandline.broker.coordination.consumer.consumer_group import ConsumerGroup
from strandline.broker.coordination.consumer.heartbeats import DecisionContext
from strandline.broker.coordination.consumer.migration import (
    classic_snapshot,
    may_downgrade,
    may_upgrade,
    upgrade,
)
from strandline.broker.coordination.consumer.roster import Draft, Roster
from strandline.broker.coordination.model.classic_messages import (
    NO_GENERATION,
    NO_MEMBER_ID,
    CoordinatorFault,
    GroupState,
    Instant,
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    Ticket,
)
from strandline.broker.coordination.model.consumer_messages import (
    JOIN_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    ConsumerHeartbeat,
    ConsumerRecord,
    ConsumerRules,
    CurrentAssignment,
    EpochRecord,
    HeartbeatAnswer,
    is_tombstone,
)
from strandline.broker.coordination.model.offset_messages import (
    CommitRequest,
    CoordinatorRecord,
    GroupRecord,
    OffsetToCommit,
)
from strandline.broker.protocol.formats.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from strandline.broker.protocol.schema.errors import ErrorCode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDecision:
    """Records to write, and the answer to send once they are written.

    If the group becomes a classic one: `generations` are those that its members know, by id, and
    `must_rejoin` tells whether they have to rejoin.
    """

    records: tuple[CoordinatorRecord, ...] = ()
    heartbeat: HeartbeatAnswer | None = None
    join: JoinAnswer | None = None
    leave: tuple[LeaveResult, ...] = ()
    generations: Mapping[str, int] = field(default_factory=dict)
    must_rejoin: bool = False


class ConsumerGroups:
    """The KIP-848 groups of one partition. Not thread-safe, never waits."""

    def __init__(self, rules: ConsumerRules, make_id: Callable[[], str]) -> None:
        self.rules = rules
        self._make_id = make_id
        self._groups: dict[str, ConsumerGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(self._groups.values())

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    def forget(self, group_id: str) -> None:
        self._groups.pop(group_id, None)

    def clear(self) -> None:
        self._groups.clear()

    # --- replaying ---------------------------------------------------------------------------

    def replay(self, record: ConsumerRecord, now: Instant) -> None:
        """Applies one record of the log."""
        if isinstance(record, EpochRecord) and record.epoch is None:
            self.forget(record.group_id)
            return
        group = self._groups.get(record.group_id)
        if group is None:
            if is_tombstone(record):
                return
            group = self._groups[record.group_id] = ConsumerGroup(record.group_id, self.rules)
        group.apply(record, now)

    def loaded(self, now: Instant) -> None:
        for group in self._groups.values():
            group.loaded(now)

    # --- the new protocol --------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerHeartbeat, other: Group | None, image: MetadataImage, now: Instant
    ) -> ConsumerDecision:
        """Handles ConsumerGroupHeartbeat; `other` is a classic group of the same name.

        Call `check_heartbeat` first. Raises CoordinatorFault.
        """
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(request, image, now)
        prelude: list[CoordinatorRecord] = []
        group = self._groups.get(request.group_id)
        if group is not None:
            draft = Draft(group.roster)
        elif request.member_epoch != JOIN_EPOCH:
            raise _not_found(request.group_id)
        else:
            draft = Draft(Roster(request.group_id))
            if other is not None:
                prelude.append(GroupRecord(request.group_id, None))
                if other.state is not GroupState.EMPTY:
                    if not may_upgrade(other, self.rules):
                        raise _not_found(request.group_id)
                    upgrade(draft, other, image)
        if not request.member_id:
            request = replace(request, member_id=self._make_id())
        answer = heartbeats.heartbeat(draft, request, self._occasion(group, image))
        return ConsumerDecision(records=(*prelude, *draft.records), heartbeat=answer)

    def _occasion(self, group: ConsumerGroup | None, image: MetadataImage) -> DecisionContext:
        return DecisionContext(
            image=image,
            rules=self.rules,
            is_metadata_new=group is None or group.has_new_metadata(image),
        )

    def _leave(
        self, request: ConsumerHeartbeat, image: MetadataImage, now: Instant
    ) -> ConsumerDecision:
        group = self._groups.get(request.group_id)
        if group is None:
            raise _not_found(request.group_id)
        member_id = request.member_id
        heartbeats.check_identity(group.roster, member_id, request.instance_id)
        answer = heartbeats.leave_answer(member_id, request.member_epoch)
        if request.member_epoch == LEAVE_FOR_A_WHILE_EPOCH:
            draft = Draft(group.roster)
            heartbeats.leave_temporarily(draft, member_id)
            return ConsumerDecision(records=tuple(draft.records), heartbeat=answer)
        return replace(self.fence(group, [member_id], image, now), heartbeat=answer)

    def fence(
        self, group: ConsumerGroup, member_ids: Sequence[str], image: MetadataImage, now: Instant
    ) -> ConsumerDecision:
        """Fences members; if only classic members remain, the group becomes a classic group."""
        draft = Draft(group.roster)
        heartbeats.fence(draft, member_ids, image)
        if _has_new_protocol(group.roster) and may_downgrade(draft.roster, self.rules):
            return self._downgrade(group, draft.roster, image, now, must_rejoin=True)
        return ConsumerDecision(records=tuple(draft.records))

    def _downgrade(
        self,
        group: ConsumerGroup,
        remaining: Roster,
        image: MetadataImage,
        now: Instant,
        *,
        must_rejoin: bool,
    ) -> ConsumerDecision:
        log.info(
            "consumer group becomes a classic group",
            extra={"fields": {"group": group.group_id, "members": len(remaining.subscriptions)}},
        )
        # No member knows this generation, so members that must rejoin do so also after a
        # restart, which does not keep `must_rejoin`.
        generation = group.roster.epoch + 1 if must_rejoin else group.roster.epoch
        snapshot = classic_snapshot(remaining, image, generation=generation, now_ms=now.wall_ms)
        return ConsumerDecision(
            records=(*self.tombstones(group), GroupRecord(group.group_id, snapshot)),
            generations={
                member_id: remaining.current_of(member_id).epoch
                for member_id in remaining.subscriptions
            },
            must_rejoin=must_rejoin,
        )

    def tombstones(self, group: ConsumerGroup) -> tuple[CoordinatorRecord, ...]:
        """Returns the records that delete the group, but not its offsets."""
        draft = Draft(group.roster)
        draft.add_group_tombstones()
        return tuple(draft.records)

    def found_topics(
        self,
        group: ConsumerGroup,
        found: dict[str, frozenset[str]],
        image: MetadataImage,
        now: Instant,
    ) -> ConsumerDecision:
        """Applies the topics that the group's regular expressions match in `image`."""
        draft = Draft(group.roster)
        heartbeats.apply_regexes(draft, found, image, now.wall_ms)
        return ConsumerDecision(records=tuple(draft.records))

    # --- members of the classic protocol -----------------------------------------------------

    def classic_join(
        self,
        group: ConsumerGroup,
        request: JoinRequest,
        ticket: Ticket,
        image: MetadataImage,
        now: Instant,
    ) -> ConsumerDecision:
        """Handles JoinGroup of a classic member in a KIP-848 group. Raises CoordinatorFault."""
        classic.check_join(group.roster, request, self.rules.size_max)
        member_id = request.member_id or self._make_id()
        if (
            request.member_id == NO_MEMBER_ID
            and request.needs_member_id
            and request.group_instance_id is None
        ):
            refusal = JoinAnswer(
                ticket=ticket, error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id
            )
            return ConsumerDecision(join=refusal)
        draft = Draft(group.roster)
        current = classic.join(draft, request, member_id, self._occasion(group, image))
        answer = JoinAnswer(
            ticket=ticket,
            member_id=member_id,
            generation=current.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
        )
        if _has_new_protocol(group.roster) and may_downgrade(draft.roster, self.rules):
            # A static member, the last one of the new protocol, rejoined with the classic one.
            # While any member has partitions to revoke, targets are not assignments yet.
            is_settled = draft.roster.state is GroupState.STABLE
            has_changed = draft.roster.epoch != group.roster.epoch
            decision = self._downgrade(
                group, draft.roster, image, now, must_rejoin=has_changed or not is_settled
            )
            return replace(decision, join=answer)
        return ConsumerDecision(records=tuple(draft.records), join=answer)

    def classic_leave(
        self,
        group: ConsumerGroup,
        leaving: Sequence[LeavingMember],
        image: MetadataImage,
        now: Instant,
    ) -> ConsumerDecision:
        """Handles LeaveGroup, for members of either protocol.

        Returns a result for each of them, in order and named as in the request: Java's admin client
        matches them by these names, and names static members by their instance alone.
        """
        results, gone = [], []
        for member in leaving:
            code = ErrorCode.NONE
            try:
                gone.append(classic.leaving_member_id(group.roster, member))
            except CoordinatorFault as fault:
                code = fault.error_code
            results.append(
                LeaveResult(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=code,
                )
            )
        if not gone:
            return ConsumerDecision(leave=tuple(results))
        return replace(
            self.fence(group, tuple(dict.fromkeys(gone)), image, now), leave=tuple(results)
        )

    # --- offsets -----------------------------------------------------------------------------

    def check_commit(
        self, group: ConsumerGroup, request: CommitRequest, offsets: Iterable[OffsetToCommit]
    ) -> ErrorCode:
        """Whether this member may commit these offsets of its request now: all of them or none.

        A member may not know yet that its epoch was raised. So it may commit in an older epoch
        partitions that it has owned since then (KIP-1251).
        """
        epoch, member_id = request.generation, request.member_id
        if epoch < 0 and group.is_empty:
            return ErrorCode.NONE
        if (
            request.is_transactional
            and epoch == NO_GENERATION
            and not member_id
            and request.group_instance_id is None
        ):
            # A transactional producer need not say for which member it commits.
            return ErrorCode.NONE
        member = group.roster.subscriptions.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if (
            member.classic is None
            and not request.knows_member_epochs
            and not request.is_transactional
        ):
            # Such a request carries a generation; a member of the new protocol never sends it.
            return ErrorCode.UNSUPPORTED_VERSION
        current = group.roster.current_of(member_id)
        if epoch < current.epoch and all(_has_had(current, offset, epoch) for offset in offsets):
            return ErrorCode.NONE
        code = _epoch_code(group.roster, member_id, epoch)
        if code is ErrorCode.STALE_MEMBER_EPOCH and not request.knows_member_epochs:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    def check_fetch(
        self, group: ConsumerGroup, *, member_id: str | None, member_epoch: int
    ) -> ErrorCode:
        """Whether this member may read the offsets; a client that is no member sends no id."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        if member_id is None or member_id not in group.roster.subscriptions:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return _epoch_code(group.roster, member_id, member_epoch)


def _has_had(current: CurrentAssignment, offset: OffsetToCommit, epoch: int) -> bool:
    """Returns whether the member has owned the partition since this epoch."""
    since = current.assignment_epoch(offset.topic_id, offset.partition)
    return since is not None and since <= epoch


def _epoch_code(roster: Roster, member_id: str, epoch: int) -> ErrorCode:
    if roster.current_of(member_id).epoch == epoch:
        return ErrorCode.NONE
    if roster.subscriptions[member_id].classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH


def _has_new_protocol(roster: Roster) -> bool:
    return any(member.classic is None for member in roster.subscriptions.values())


def _not_found(group_id: str) -> CoordinatorFault:
    return CoordinatorFault(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
