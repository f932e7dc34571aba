"""One classic group as a state machine: takes events and the time, returns answers and records.

              join of the first member                       the leader's assignment is written
    EMPTY ---------------------------> PREPARING_REBALANCE      +-----------------------> STABLE
      ^                                  |     ^   |            |                           |
      |      all members left            |     |   | all have   |                           |
      +----------------------------------+     |   v joined     |                           |
                                               |  COMPLETING_REBALANCE                      |
                                               |            |                               |
                                               +------------+-------------------------------+
                              join, leave or timeout of a member; the leader rejoins

                          any state --- the group is unloaded ---> DEAD

PREPARING waits for the joins of all members, COMPLETING for the assignment of the leader. Both are
bounded by the longest rebalance timeout of the members. The first rebalance of an empty group waits
a little longer than necessary, because members of a new application start together.

Every event runs in the same frame: `_begin` takes the time, the event changes the state and
collects answers and at most one record to write, `_end` returns them.

A generation is valid once its assignment is in the log: the group is then STABLE, and each member
gets its assignment. If the write fails, the members get an error and rejoin; a returning static
member keeps its former id.

Three kinds of deadline drive it: one per member (session), one for the joins, one for the syncs.
`next_deadline_ms` is never later than the earliest of them; `tick` handles expired ones. A
heartbeat only moves a deadline back, which leaves `next_deadline_ms` as it is, so it costs nothing.

Invariants: a ticket is answered exactly once; a generation number is never reused; the leader is a
member; no assignment is answered before it is written (`AssignmentWrite`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from strandline.broker.coordination.classic.members import Member, Members
from strandline.broker.coordination.model.classic_messages import (
    NO_EFFECTS,
    NO_MEMBER_ID,
    Answer,
    AssignmentWrite,
    CreationWrite,
    DescribedMember,
    Effects,
    EmptyWrite,
    GroupDescription,
    GroupRules,
    GroupState,
    GroupWrite,
    Instant,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    PreviousMember,
    ReplacementWrite,
    SyncAnswer,
    SyncRequest,
    Ticket,
)
from strandline.broker.coordination.model.member_memory import ExhaustedLimit, member_bytes
from strandline.broker.protocol.formats.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    decode_subscribed_topics,
)
from strandline.broker.protocol.formats.offsets_topic import GroupMetadataValue
from strandline.broker.protocol.schema.errors import ErrorCode, MalformedRequest

log = logging.getLogger(__name__)

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

# A client id may have 32,767 bytes; member ids begin with its head so that operators recognise it.
MEMBER_ID_PREFIX_MAX = 255
# A client may name a rebalance timeout of 0, which would be over as soon as it begins.
LEADERLESS_WAIT_MS_MIN = 1000


class Group:
    """A classic group as a state machine. Not thread-safe, never waits."""

    kind: Final = "classic"

    def __init__(
        self,
        group_id: str,
        now: Instant,
        *,
        rules: GroupRules,
        make_id: Callable[[], str],
    ) -> None:
        """Creates an empty group. `make_id` returns the unique part of member ids."""
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
        # The current rebalance began with an empty group: it waits for its full delay.
        self._is_initial = False
        self._initial_remaining_ms = 0
        self._initial_has_newcomers = False
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None

    @classmethod
    def restored(
        cls,
        group_id: str,
        snapshot: GroupMetadataValue,
        now: Instant,
        *,
        rules: GroupRules,
        make_id: Callable[[], str],
    ) -> Group:
        """Restores the group of a record; call `loaded` once all records are read."""
        group = cls(group_id, now, rules=rules, make_id=make_id)
        group.generation = snapshot.generation
        group.protocol_type = snapshot.protocol_type or None
        group.protocol_name = snapshot.protocol_name
        group.leader = snapshot.leader
        group.state_since_ms = snapshot.state_since_ms
        for member in snapshot.members:
            group._members.add(Member.restored(member, snapshot.protocol_name))
        if snapshot.members:
            group.state = STABLE
            if group.leader is None or group.leader not in group._members:
                group.leader = snapshot.members[0].member_id
        group.subscribed_topics = group._find_subscribed_topics()
        return group

    def __repr__(self) -> str:
        return (
            f"<Group {self.group_id} {self.state.value} generation={self.generation}"
            f" members={len(self._members)} pending={len(self._members.pending)}>"
        )

    # --- queries -----------------------------------------------------------------------------

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
        """Whether offsets expire by their own age: only in groups that never had members."""
        return self.protocol_type is None

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members read this topic; True if a member's subscription cannot be decoded."""
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

    def creation_snapshot(self) -> GroupMetadataValue:
        """Returns the record of a newly created group."""
        return GroupMetadataValue(
            protocol_type="", generation=0, state_since_ms=self.state_since_ms
        )

    def check_commit(
        self,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
        is_transactional: bool = False,
    ) -> ErrorCode:
        """Returns whether this member may commit offsets now."""
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is EMPTY:
            # A consumer with manual assignment, or an administrator.
            return ErrorCode.NONE
        if generation < 0 and member_id == NO_MEMBER_ID and group_instance_id is None:
            # A transactional producer need not say for which member it commits.
            return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
        fault = self._members.identity_fault(member_id, group_instance_id)
        if fault is not ErrorCode.NONE:
            return fault
        if not self._is_generation_of(member_id, generation):
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is COMPLETING and not is_transactional:
            # The member knows the new generation, but not yet its assignment in it.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _is_generation_of(self, member_id: str, generation: int) -> bool:
        """Returns whether this generation is valid for the member now.

        A member from a KIP-848 group keeps its former epoch until it has joined here.
        """
        if generation == self.generation:
            return True
        return self.state is PREPARING and self._members[member_id].former_generation == generation

    # --- joining -----------------------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: Ticket, now: Instant) -> Effects:
        """A member joins the next generation; it may have to wait for the others."""
        self._begin(now)
        member_id = request.member_id
        if self.state is DEAD:
            self._refuse_join(ticket, member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._has_room_for(member_id):
            self._turn_away(member_id)
            self._refuse_join(ticket, NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not self._supports(request):
            self._refuse_join(ticket, member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif (lack := self._lack_of_bytes(request)) is not None:
            self._refuse_bytes(lack, request, ticket)
        elif member_id == NO_MEMBER_ID:
            self._join_new(request, ticket)
        elif member_id in self._members.pending:
            if request.group_instance_id is not None:
                # Only dynamic members have pending ids.
                self._refuse_join(ticket, member_id, ErrorCode.INVALID_REQUEST)
            else:
                self._add(member_id, request, ticket)
        else:
            self._join_again(request, ticket)
        return self._end()

    def _has_room_for(self, member_id: str) -> bool:
        if self.state is EMPTY:
            return True
        member = self._members.get(member_id)
        if self.state is PREPARING:
            # The limit counts waiting members, not all: when it was lowered, the last to rejoin
            # lose their place.
            if member is not None and member.is_awaiting_join:
                return True
            return self._members.awaiting_join_count < self._rules.size_max
        return member is not None or len(self._members) < self._rules.size_max

    def _turn_away(self, member_id: str) -> None:
        self._members.pending.pop(member_id, None)
        member = self._members.get(member_id)
        if member is not None:
            self._remove(member)
            if self.state in (STABLE, COMPLETING):
                self._prepare_rebalance(f"member {member_id} was turned away")
        self._complete_join_if_ready()

    def _lack_of_bytes(self, request: JoinRequest) -> ExhaustedLimit | None:
        """Returns the limit that this request would exceed, if any."""
        known_id = request.member_id
        if known_id == NO_MEMBER_ID:
            known_id = self._members.static_member_id(request.group_instance_id) or NO_MEMBER_ID
        known = self._members.get(known_id)
        wanted = member_bytes(request.protocols, request.client_id, request.group_instance_id)
        return self._members.share.lack_of(wanted - (0 if known is None else known.held_bytes))

    def _refuse_bytes(self, lack: ExhaustedLimit, request: JoinRequest, ticket: Ticket) -> None:
        room = self._rules.room
        room.quiet_log.say(
            logging.WARNING,
            "no room for the metadata of a group member, it is refused",
            lack,
            {
                "group": self.group_id,
                "client": request.client_id,
                "group_bytes": self._members.share.held_bytes,
                "all_groups_bytes": room.held_bytes,
                "full": lack.name.lower(),
            },
        )
        if lack is ExhaustedLimit.GROUP:
            self._turn_away(request.member_id)
            self._refuse_join(ticket, NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
        else:
            self._refuse_join(ticket, request.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is EMPTY:
            return bool(request.protocol_type and request.protocols)
        return request.protocol_type == self.protocol_type and self._members.all_support(
            request.protocols
        )

    def _join_new(self, request: JoinRequest, ticket: Ticket) -> None:
        instance_id = request.group_instance_id
        # Truncated: the whole id has to fit a string of the protocol.
        prefix = (request.client_id if instance_id is None else instance_id)[:MEMBER_ID_PREFIX_MAX]
        member_id = f"{prefix}-{self._make_id()}"
        existing = self._members.static_member_id(instance_id)
        if existing is not None:
            self._replace(self._members[existing], member_id, request, ticket)
        elif instance_id is None and request.needs_member_id:
            # KIP-394: otherwise each retry of a client whose first answer is lost would leave a
            # member behind.
            self._members.expect(
                member_id,
                self._due_in(request.session_timeout_ms),
                pending_max=self._rules.pending_max,
            )
            self._refuse_join(ticket, member_id, ErrorCode.MEMBER_ID_REQUIRED)
        else:
            self._add(member_id, request, ticket)

    def _add(self, member_id: str, request: JoinRequest, ticket: Ticket) -> None:
        if self.state is PREPARING and self._is_initial:
            self._initial_has_newcomers = True
        if not len(self._members):
            self.protocol_type = request.protocol_type
        member = Member.joining(member_id, request)
        self._members.add(member)
        self._members.park_join(member, ticket)
        if self.leader is None:
            self.leader = member_id
        member.deadline_ms = self._due_in(self._rules.new_member_join_timeout_ms)
        self._rebalance(f"new member {member_id}")

    def _join_again(self, request: JoinRequest, ticket: Ticket) -> None:
        member_id = request.member_id
        fault = self._members.identity_fault(member_id, request.group_instance_id)
        if fault is ErrorCode.NONE and self.state is EMPTY:
            fault = ErrorCode.UNKNOWN_MEMBER_ID
        if fault is not ErrorCode.NONE:
            self._refuse_join(ticket, member_id, fault)
            return
        member = self._members[member_id]
        is_unchanged = member.protocols == request.protocols
        # A stable leader rejoins when something changed that only it sees, such as the
        # partitions of a topic. Followers without changes only lost our answer.
        if (
            self.state is PREPARING
            or not is_unchanged
            or (self.state is STABLE and member_id == self.leader)
        ):
            self._update(member, request, ticket)
            self._rebalance(f"member {member_id} joins again")
        else:
            self._answers.append(self._join_answer(member, ticket))

    def _update(self, member: Member, request: JoinRequest, ticket: Ticket) -> None:
        self._members.update(member, request)
        displaced = self._members.park_join(member, ticket)
        if displaced is not None:
            # The same member joined on another connection before; that request must not wait
            # for ever.
            self._refuse_join(displaced, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)

    def _replace(
        self, member: Member, member_id: str, request: JoinRequest, ticket: Ticket
    ) -> None:
        """A static member rejoins without its member id: the new id replaces the old one."""
        previous = PreviousMember(
            member_id=member.member_id,
            protocols=member.protocols,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
        )
        leader_before = self.leader
        self._release(member, ErrorCode.FENCED_INSTANCE_ID)
        self._members.rebind(member, member_id)
        if self.leader == previous.member_id:
            self.leader = member_id
        self._update(member, request, ticket)
        member.is_new = False
        self._extend_session(member)
        if self.state is STABLE and self._members.select_protocol() == self.protocol_name:
            self._write_replacement(member, previous, leader_before, request, ticket)
        elif self.state in (STABLE, COMPLETING):
            # COMPLETING: the leader may be assigning to the old member id right now.
            self._prepare_rebalance(f"static member {member_id} is back")
        else:
            self._complete_join_if_ready()

    def _write_replacement(
        self,
        member: Member,
        previous: PreviousMember,
        leader_before: str | None,
        request: JoinRequest,
        ticket: Ticket,
    ) -> None:
        """Keeps the member's assignment: no rebalance, only a record of its new id."""
        answer = self._join_answer(member, ticket)
        is_leader = member.member_id == self.leader
        if request.can_skip_assignment:
            answer = replace(answer, skip_assignment=is_leader)
        else:
            # Clients before v9 cannot be told to keep the assignment. They get the old leader's
            # id, so that a returning leader considers itself a follower.
            answer = replace(answer, leader=leader_before or "", members=())
        self._set_write(
            ReplacementWrite(
                snapshot=self._snapshot({m.member_id: m.assignment for m in self._members}),
                member_id=member.member_id,
                previous=previous,
                answer=answer,
            )
        )

    # --- one generation after another -----------------------------------------------------------

    def _rebalance(self, reason: str) -> None:
        if self.state in (STABLE, COMPLETING, EMPTY):
            self._prepare_rebalance(reason)
        else:
            self._complete_join_if_ready()

    def _prepare_rebalance(self, reason: str) -> None:
        if self.state is COMPLETING:
            self._reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS)
        self._members.pending_sync.clear()
        self._sync_deadline_ms = None
        self._is_initial = self.state is EMPTY
        self._become(PREPARING)
        fields = {"group": self.group_id, "generation": self.generation, "reason": reason}
        log.info("group prepares to rebalance", extra={"fields": fields})
        if self._is_initial:
            delay_ms = self._rules.initial_rebalance_delay_ms
            self._initial_remaining_ms = max(self._members.rebalance_timeout_ms - delay_ms, 0)
            self._initial_has_newcomers = False
            self._join_deadline_ms = self._due_in(delay_ms)
        elif self._members.all_joined:
            self._complete_join()
        else:
            self._join_deadline_ms = self._due_in(self._members.rebalance_timeout_ms)

    def _complete_join_if_ready(self) -> None:
        if not self._is_initial:
            self._complete_if_all_joined()

    def _complete_if_all_joined(self) -> None:
        """As `_complete_join_if_ready`, but without the delay of a first rebalance."""
        if self.state is PREPARING and self._members.all_joined:
            self._complete_join()

    def _on_join_deadline(self) -> None:
        if self._is_initial and self._initial_has_newcomers and self._initial_remaining_ms:
            # Members are still joining: wait once more, within the rebalance timeout.
            self._initial_has_newcomers = False
            delay_ms = min(self._rules.initial_rebalance_delay_ms, self._initial_remaining_ms)
            self._initial_remaining_ms -= delay_ms
            self._join_deadline_ms = self._due_in(delay_ms)
        else:
            self._complete_join()

    def _complete_join(self) -> None:
        """Forms the next generation from the members that joined."""
        self._join_deadline_ms = None
        # A static member that did not rejoin keeps its place until its session ends.
        for member in tuple(self._members):
            if not member.is_awaiting_join and not member.is_static:
                self._remove(member)
        if len(self._members) and not self._elect_leader():
            # Only static members are left, and none of them rejoined. Their sessions will end.
            wait_ms = max(self._members.rebalance_timeout_ms, LEADERLESS_WAIT_MS_MIN)
            self._join_deadline_ms = self._due_in(wait_ms)
            return
        self.generation += 1
        self._members.pending_sync.clear()
        if not len(self._members):
            self.protocol_name = None
            self._become(EMPTY)
            self.subscribed_topics = self._find_subscribed_topics()
            self._set_write(EmptyWrite(snapshot=self._snapshot({})))
            return
        self.protocol_name = self._members.select_protocol()
        self._become(COMPLETING)
        self.subscribed_topics = self._find_subscribed_topics()
        for member in self._members:
            ticket = self._members.take_join(member)
            if ticket is not None:
                self._answers.append(self._join_answer(member, ticket))
            self._extend_session(member)
            member.is_new = False
            member.former_generation = None
            self._members.pending_sync.add(member.member_id)
        self._sync_deadline_ms = self._due_in(self._members.rebalance_timeout_ms)

    def _elect_leader(self) -> bool:
        """Keeps the leader if it rejoined, else elects the first that did; False if none did."""
        assert self.leader is not None, self
        for member in (self._members[self.leader], *self._members):
            if member.is_awaiting_join:
                self.leader = member.member_id
                return True
        return False

    def _on_sync_deadline(self) -> None:
        self._sync_deadline_ms = None
        late = tuple(self._members.pending_sync)
        for member_id in late:
            self._remove(self._members[member_id])
        if late:
            self._prepare_rebalance(f"{len(late)} members did not ask for their assignment")

    def _reset_assignments(self, error_code: ErrorCode) -> None:
        for member in self._members:
            member.assignment = b""
        self._answer_syncs(error_code)

    # --- syncing -----------------------------------------------------------------------------

    def sync(self, request: SyncRequest, ticket: Ticket, now: Instant) -> Effects:
        """Answers a member that requests its assignment; the leader sends those of all."""
        self._begin(now)
        fault = self._sync_fault(request)
        if fault is not ErrorCode.NONE:
            self._answers.append(SyncAnswer(ticket=ticket, error_code=fault))
            return self._end()
        member = self._members[request.member_id]
        self._members.pending_sync.discard(member.member_id)
        if not self._members.pending_sync:
            self._sync_deadline_ms = None
        if self.state is STABLE:
            self._answers.append(self._sync_answer(member, ticket))
            return self._end()
        if member.sync_ticket is not None:
            self._answers.append(
                SyncAnswer(ticket=member.sync_ticket, error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            )
        member.sync_ticket = ticket
        if member.member_id == self.leader:
            # Members that the leader left out get nothing, and unknown ids are dropped.
            assignments = {
                known.member_id: request.assignments.get(known.member_id, b"")
                for known in self._members
            }
            self._set_write(
                AssignmentWrite(snapshot=self._snapshot(assignments), assignments=assignments)
            )
        return self._end()

    def _sync_fault(self, request: SyncRequest) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self.state is EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        fault = self._members.identity_fault(request.member_id, request.group_instance_id)
        if fault is not ErrorCode.NONE:
            return fault
        if not self._is_generation_of(request.member_id, request.generation):
            return ErrorCode.ILLEGAL_GENERATION
        # Clients before v5 do not send the protocol that they expect.
        if request.protocol_type not in (None, self.protocol_type) or (
            request.protocol_name not in (None, self.protocol_name)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is PREPARING else ErrorCode.NONE

    # --- heartbeats and leaves ----------------------------------------------------------------

    def heartbeat(
        self, *, member_id: str, group_instance_id: str | None, generation: int, now: Instant
    ) -> ErrorCode:
        """Extends the session; the returned code tells the member whether it must rejoin."""
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        fault = self._members.identity_fault(member_id, group_instance_id)
        if fault is not ErrorCode.NONE:
            return fault
        if not self._is_generation_of(member_id, generation):
            return ErrorCode.ILLEGAL_GENERATION
        self._now = now
        self._extend_session(self._members[member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is PREPARING else ErrorCode.NONE

    def note_commit(self, member_id: str, now: Instant) -> None:
        """A commit extends the member's session."""
        member = self._members.get(member_id)
        if member is not None and self.state in (STABLE, PREPARING):
            self._now = now
            self._extend_session(member)

    def leave(
        self, leaving: Sequence[LeavingMember], now: Instant
    ) -> tuple[tuple[LeaveResult, ...], Effects]:
        """Members leave, or an administrator removes them."""
        self._begin(now)
        results = tuple(
            LeaveResult(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=self._remove_leaving(member),
            )
            for member in leaving
        )
        if any(result.error_code is ErrorCode.NONE for result in results):
            if self.state in (STABLE, COMPLETING):
                self._prepare_rebalance("members left")
            else:
                self._complete_join_if_ready()
        return results, self._end()

    def _remove_leaving(self, leaving: LeavingMember) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        member_id = leaving.member_id
        if member_id == NO_MEMBER_ID:
            bound = self._members.static_member_id(leaving.group_instance_id)
            if bound is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = bound
        elif self._members.pending.pop(member_id, None) is not None:
            return ErrorCode.NONE
        else:
            fault = self._members.identity_fault(member_id, leaving.group_instance_id)
            if fault is not ErrorCode.NONE:
                return fault
        self._remove(self._members[member_id])
        return ErrorCode.NONE

    # --- time --------------------------------------------------------------------------------

    def tick(self, now: Instant) -> Effects:
        """Handles expired deadlines; safe to call at any time."""
        if self.next_deadline_ms is None or now.monotonic_ms < self.next_deadline_ms:
            return NO_EFFECTS
        self._begin(now)
        if self._is_due(self._join_deadline_ms):
            self._on_join_deadline()
        if self._is_due(self._sync_deadline_ms):
            self._on_sync_deadline()
        for member_id, deadline_ms in tuple(self._members.pending.items()):
            if self._is_due(deadline_ms):
                self._members.pending.pop(member_id, None)
                self._complete_if_all_joined()
        for member in tuple(self._members):
            if self._is_due(member.deadline_ms) and member.member_id in self._members:
                self._on_session_end(member)
        self.next_deadline_ms = min(self._deadlines(), default=None)
        return self._end()

    def _on_session_end(self, member: Member) -> None:
        member.deadline_ms = None
        if member.satisfies_session:
            return
        fields = {"group": self.group_id, "member": member.member_id}
        log.info("group member is silent", extra={"fields": fields})
        self._remove(member)
        if self.state in (STABLE, COMPLETING):
            self._prepare_rebalance(f"member {member.member_id} is silent")
        else:
            self._complete_if_all_joined()

    def _deadlines(self) -> list[int]:
        deadlines = [member.deadline_ms for member in self._members]
        deadlines += (self._join_deadline_ms, self._sync_deadline_ms)
        return [d for d in deadlines if d is not None] + list(self._members.pending.values())

    # --- loading and unloading ---------------------------------------------------------------

    def loaded(self, now: Instant) -> Effects:
        """The log is read: starts the sessions, and shrinks a group that exceeds the limits."""
        self._begin(now)
        for member in self._members:
            self._extend_session(member)
        if len(self._members) > self._rules.size_max:
            self._prepare_rebalance("the group is larger than group.max.size")
        return self._end()

    def taken_over(
        self, now: Instant, *, generations: Mapping[str, int], must_rejoin: bool
    ) -> Effects:
        """Takes over the classic members of a former KIP-848 group: starts their sessions.

        `generations` are their known epochs, which stay valid until they have joined.
        """
        self._begin(now)
        for member in self._members:
            member.former_generation = generations.get(member.member_id)
            self._extend_session(member)
        if must_rejoin:
            self._prepare_rebalance("the last member of the new protocol is gone")
        return self._end()

    def unload(self, error_code: ErrorCode, now: Instant) -> Effects:
        """Unloads the group: all waiting requests are answered with `error_code`."""
        self._begin(now)
        for member in self._members:
            self._release(member, error_code)
        self._join_deadline_ms = self._sync_deadline_ms = self.next_deadline_ms = None
        self._become(DEAD)
        return self._end()

    # --- records -----------------------------------------------------------------------------

    def written(self, write: GroupWrite, now: Instant) -> Effects:
        """The record is durable: sends the answers that waited for it."""
        self._begin(now)
        if isinstance(write, AssignmentWrite):
            # The group may have changed while the record was being written.
            if self.state is COMPLETING and self.generation == write.snapshot.generation:
                for member in self._members:
                    member.assignment = write.assignments.get(member.member_id, b"")
                self._become(STABLE)
                self._answer_syncs(ErrorCode.NONE)
        elif isinstance(write, ReplacementWrite):
            self._finish_replacement(write, write.answer)
        return self._end()

    def write_failed(self, write: GroupWrite, error_code: ErrorCode, now: Instant) -> Effects:
        """The record is not in the log: reverts the change and answers with the error."""
        self._begin(now)
        if isinstance(write, AssignmentWrite):
            if self.state is COMPLETING and self.generation == write.snapshot.generation:
                self._reset_assignments(error_code)
                self._prepare_rebalance("the assignment could not be written")
        elif isinstance(write, ReplacementWrite):
            refusal = JoinAnswer(ticket=write.answer.ticket, error_code=error_code)
            self._finish_replacement(write, refusal)
            self._undo_replacement(write)
        else:
            # An empty generation that is missing in the log does no harm: it has no members, and
            # the generation in the log times out after a restart.
            assert isinstance(write, EmptyWrite | CreationWrite), write
        return self._end()

    def _finish_replacement(self, write: ReplacementWrite, answer: JoinAnswer) -> None:
        member = self._members.get(write.member_id)
        if member is not None and member.join_ticket == answer.ticket:
            self._members.take_join(member)
            member.is_new = False
            self._answers.append(answer)

    def _undo_replacement(self, write: ReplacementWrite) -> None:
        member = self._members.get(write.member_id)
        if member is None:
            return
        previous = write.previous
        self._members.rebind(member, previous.member_id)
        if self.leader == write.member_id:
            self.leader = previous.member_id
        self._members.update(member, previous)
        self._extend_session(member)

    # --- the frame of an event ----------------------------------------------------------------

    def _begin(self, now: Instant) -> None:
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
        """Removes a member. If it is still alive, it rejoins as a new one."""
        self._release(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._members.remove(member)
        if self.leader == member.member_id:
            self.leader = next((known.member_id for known in self._members), None)

    def _release(self, member: Member, error_code: ErrorCode) -> None:
        """Answers the member's waiting requests with an error."""
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

    def _snapshot(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        return GroupMetadataValue(
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
        self._answers.append(JoinAnswer(ticket=ticket, error_code=error_code, member_id=member_id))

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
            # Sessions that ended during the wait were ignored; they restart.
            self._extend_session(member)
