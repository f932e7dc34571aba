"""What a classic group is, and how it keeps its books; `group.py` has the whole picture.

Every event goes through the same frame: `_begin` takes the time, the event changes state and
collects answers and at most one write, `_end` hands them out. Deadlines are noted with `_due_in`,
which keeps `next_deadline_ms` at or before the earliest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from strandline.broker.coordination.classic.group_members import Member, Members
from strandline.broker.coordination.values.group_values import (
    NO_EFFECTS,
    NO_GENERATION,
    NO_MEMBER_ID,
    Answer,
    DescribedMember,
    Effects,
    GroupDescription,
    GroupRules,
    GroupSnapshot,
    GroupState,
    GroupWrite,
    JoinAnswer,
    JoinedMember,
    Moment,
    SyncAnswer,
    Ticket,
)
from strandline.broker.protocol.formats.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    decode_subscribed_topics,
)
from strandline.broker.protocol.schema.errors import ErrorCode, MalformedRequest

EMPTY = GroupState.EMPTY
PREPARING = GroupState.PREPARING_REBALANCE
COMPLETING = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD

_MAY_FOLLOW = {
    EMPTY: {PREPARING, DEAD},
    PREPARING: {EMPTY, COMPLETING, DEAD},
    COMPLETING: {PREPARING, STABLE, DEAD},
    STABLE: {PREPARING, DEAD},
    DEAD: {DEAD},
}


class GroupCore:
    """State, members, answers and deadlines of a group; what may be asked of it at any time."""

    kind: Final = "classic"

    def __init__(
        self,
        group_id: str,
        now: Moment,
        *,
        rules: GroupRules,
        make_id: Callable[[], str],
    ) -> None:
        """An empty group. `make_id` gives the unique part of member ids."""
        self.group_id = group_id
        self.state = EMPTY
        self.state_since_ms = now.wall_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        self.next_deadline_ms: int | None = None
        self._rules = rules
        self._make_id = make_id
        self._members = Members(rules.room)
        self._now = now
        self._answers: list[Answer] = []
        self._write: GroupWrite | None = None
        # The rebalance under way began with an empty group: it waits its delay out.
        self._is_initial = False
        self._initial_remaining_ms = 0
        self._initial_has_newcomers = False
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None

    def __repr__(self) -> str:
        return (
            f"<Group {self.group_id} {self.state.value} generation={self.generation}"
            f" members={len(self._members)} pending={len(self._members.pending)}>"
        )

    # --- asking ------------------------------------------------------------------------------

    @property
    def member_count(self) -> int:
        return len(self._members)

    @property
    def members(self) -> Iterator[Member]:
        return iter(self._members)

    @property
    def has_pending_members(self) -> bool:
        return bool(self._members.pending)

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def counts_from_commit(self) -> bool:
        """Whether offsets expire by their own age: only if nobody ever joined."""
        return self.protocol_type is None

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members read this topic; of consumers that cannot be read, all is assumed."""
        if self.subscribed_topics is not None:
            return topic in self.subscribed_topics
        return self.uses_consumer_protocol

    def describe(self) -> GroupDescription:
        is_stable = self.state is STABLE
        return GroupDescription(
            group_id=self.group_id,
            state=self.state,
            protocol_type=self.protocol_type or "",
            protocol_name=(self.protocol_name or "") if is_stable else "",
            members=tuple(
                DescribedMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata_for(self.protocol_name) if is_stable else b"",
                    assignment=member.assignment,
                )
                for member in self._members
            ),
        )

    def creation_snapshot(self) -> GroupSnapshot:
        """What is written of a group that was just made: that it exists."""
        return GroupSnapshot(
            protocol_type="",
            generation=0,
            protocol_name=None,
            leader=None,
            state_since_ms=self.state_since_ms,
        )

    def check_commit(
        self, *, member_id: str, group_instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Whether this member may commit offsets now."""
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is EMPTY:
            # A consumer that assigns its partitions itself, or an administrator.
            return ErrorCode.NONE
        if generation < 0 and member_id == NO_MEMBER_ID and group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        fault = self._members.identity_fault(member_id, group_instance_id)
        if fault is not ErrorCode.NONE:
            return fault
        if not self._is_generation_of(member_id, generation):
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is COMPLETING:
            # The member knows the new generation, but not yet what is its own in it.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _is_generation_of(self, member_id: str, generation: int) -> bool:
        """Whether the member may go by this generation now.

        One that comes from a KIP-848 group has what it had there until it has joined here.
        """
        if generation == self.generation:
            return True
        return self.state is PREPARING and self._members[member_id].former_generation == generation

    # --- the frame of an event ----------------------------------------------------------------

    def _begin(self, now: Moment) -> None:
        assert not self._answers, self._answers
        assert self._write is None, self._write
        self._now = now

    def _end(self) -> Effects:
        if not self._answers and self._write is None:
            return NO_EFFECTS
        effects = Effects(answers=tuple(self._answers), write=self._write)
        self._answers.clear()
        self._write = None
        return effects

    def _set_write(self, write: GroupWrite) -> None:
        assert self._write is None, (self._write, write)
        self._write = write

    def _become(self, state: GroupState) -> None:
        assert state in _MAY_FOLLOW[self.state], (self, state)
        self.state = state
        self.state_since_ms = self._now.wall_ms

    # --- deadlines ----------------------------------------------------------------------------

    def _is_due(self, deadline_ms: int | None) -> bool:
        return deadline_ms is not None and deadline_ms <= self._now.monotonic_ms

    def _due_in(self, delay_ms: int) -> int:
        deadline_ms = self._now.monotonic_ms + delay_ms
        if self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms
        return deadline_ms

    def _extend_session(self, member: Member) -> None:
        member.deadline_ms = self._due_in(member.session_timeout_ms)

    # --- parts --------------------------------------------------------------------------------

    def _remove(self, member: Member) -> None:
        """Takes a member out. Should it be alive after all, it joins again as a new one."""
        self._release(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._members.remove(member)
        if self.leader == member.member_id:
            self.leader = next((known.member_id for known in self._members), None)

    def _release(self, member: Member, error_code: ErrorCode) -> None:
        """Answers what the member waits for with an error."""
        ticket = self._members.take_join(member)
        if ticket is not None:
            is_fenced = error_code is ErrorCode.FENCED_INSTANCE_ID
            self._refuse_join(ticket, member.member_id if is_fenced else NO_MEMBER_ID, error_code)
        if member.sync_ticket is not None:
            self._answers.append(SyncAnswer(ticket=member.sync_ticket, error_code=error_code))
            member.sync_ticket = None

    def _find_subscribed_topics(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        topics: set[str] = set()
        for member in self._members:
            try:
                topics.update(decode_subscribed_topics(member.metadata_for(self.protocol_name)))
            except MalformedRequest:
                return None
        return frozenset(topics)

    def _snapshot(self, assignments: dict[str, bytes]) -> GroupSnapshot:
        return GroupSnapshot(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader=self.leader,
            state_since_ms=self.state_since_ms,
            members=tuple(
                member.snapshot(self.protocol_name, assignments[member.member_id])
                for member in self._members
            ),
        )

    def _refuse_join(self, ticket: Ticket, member_id: str, error_code: ErrorCode) -> None:
        self._answers.append(
            JoinAnswer(
                ticket=ticket,
                error_code=error_code,
                member_id=member_id,
                generation=NO_GENERATION,
            )
        )

    def _answer_join_of(self, member: Member, ticket: Ticket) -> None:
        self._answers.append(self._join_answer(member, ticket))

    def _join_answer(self, member: Member, ticket: Ticket) -> JoinAnswer:
        members: tuple[JoinedMember, ...] = ()
        # In a stable group only a returning leader needs the list; see `_write_replacement`.
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(
                    member_id=known.member_id,
                    group_instance_id=known.group_instance_id,
                    metadata=known.metadata_for(self.protocol_name),
                )
                for known in self._members
            )
        return JoinAnswer(
            ticket=ticket,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            members=members,
        )

    def _sync_answer(self, member: Member, ticket: Ticket) -> SyncAnswer:
        return SyncAnswer(
            ticket=ticket,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def _answer_syncs(self, error_code: ErrorCode) -> None:
        for member in self._members:
            ticket, member.sync_ticket = member.sync_ticket, None
            if ticket is None:
                continue
            if error_code is ErrorCode.NONE:
                self._answers.append(self._sync_answer(member, ticket))
            else:
                self._answers.append(SyncAnswer(ticket=ticket, error_code=error_code))
            # Sessions that ended while we waited were not looked at; they begin anew.
            self._extend_session(member)
