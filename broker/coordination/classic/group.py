"""One classic group as a state machine: events and the time in, answers and records out.

              join of the first member                       the leader's assignment is written
    EMPTY ---------------------------> PREPARING_REBALANCE      +-----------------------> STABLE
      ^                                  |     ^   |            |                           |
      |      everybody has left          |     |   | all have   |                           |
      +----------------------------------+     |   v joined     |                           |
                                               |  COMPLETING_REBALANCE                      |
                                               |            |                               |
                                               +------------+-------------------------------+
                              join, leave or silence of a member; the leader joins again

                          any state --- the group is unloaded ---> DEAD

PREPARING waits for the joins of all members, COMPLETING for the assignment of the leader. Both are
bounded by the longest rebalance timeout of the members. The first rebalance of an empty group
waits a little longer than it must, since members of a new application come in a bunch.

Three kinds of deadline drive it: one per member (session), one for the joins, one for the syncs.
`next_deadline_ms` is never later than the earliest of them; `tick` does what is due. A heartbeat
only moves a deadline back, which leaves `next_deadline_ms` as it is, so it costs nothing.

Invariants: a ticket is answered exactly once; a generation number never comes twice; the leader is
a member; nobody learns an assignment before it is written (`AssignmentWrite`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from strandline.broker.coordination.classic.group_core import (
    COMPLETING,
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
)
from strandline.broker.coordination.classic.group_members import Member
from strandline.broker.coordination.classic.group_rebalance import RebalancingGroup
from strandline.broker.coordination.values.group_values import (
    NO_EFFECTS,
    NO_MEMBER_ID,
    AssignmentWrite,
    Effects,
    GroupRules,
    GroupSnapshot,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    Moment,
    PreviousMember,
    ReplacementWrite,
    SyncAnswer,
    SyncRequest,
    Ticket,
)
from strandline.broker.coordination.values.member_room import Lack, member_bytes
from strandline.broker.protocol.schema.errors import ErrorCode

log = logging.getLogger(__name__)

# A client id may have 32,767 bytes; member ids begin with it so that people know whose they are.
MEMBER_ID_PREFIX_MAX = 255


class Group(RebalancingGroup):
    """One group; see the top of this file. Not thread-safe, never waits."""

    @classmethod
    def restored(
        cls,
        group_id: str,
        snapshot: GroupSnapshot,
        now: Moment,
        *,
        rules: GroupRules,
        make_id: Callable[[], str],
    ) -> Group:
        """The group as it was written; `loaded` must follow once all records are read."""
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

    # --- joining -----------------------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: Ticket, now: Moment) -> Effects:
        """A member wants to be in the next generation; it may have to wait for the others."""
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
                # Ids are kept ready for dynamic members only.
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
            # Those who wait count, not those who are members: when the limit was lowered, the
            # last to come back are the ones who lose their place.
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

    def _lack_of_bytes(self, request: JoinRequest) -> Lack | None:
        """What has no room for all that this request brings."""
        known_id = request.member_id
        if known_id == NO_MEMBER_ID and request.group_instance_id is not None:
            known_id = self._members.static_member_id(request.group_instance_id) or NO_MEMBER_ID
        known = self._members.get(known_id)
        wanted = member_bytes(request.protocols, request.client_id, request.group_instance_id)
        return self._members.share.lack_of(wanted - (0 if known is None else known.held_bytes))

    def _refuse_bytes(self, lack: Lack, request: JoinRequest, ticket: Ticket) -> None:
        room = self._rules.room
        room.quiet_log.say(
            logging.WARNING,
            "no room for what a group member brings, it is refused",
            lack,
            {
                "group": self.group_id,
                "client": request.client_id,
                "group_bytes": self._members.share.held_bytes,
                "all_groups_bytes": room.held_bytes,
                "full": lack.name.lower(),
            },
        )
        if lack is Lack.GROUP:
            self._turn_away(request.member_id)
            self._refuse_join(ticket, NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
        else:
            self._refuse_join(ticket, request.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is EMPTY:
            return bool(request.protocol_type and request.protocols)
        return request.protocol_type == self.protocol_type and self._members.have_in_common(
            request.protocols
        )

    def _join_new(self, request: JoinRequest, ticket: Ticket) -> None:
        instance_id = request.group_instance_id
        # Cut: with the rest behind it, it has to fit a string of the protocol, as it is kept.
        prefix = (request.client_id if instance_id is None else instance_id)[:MEMBER_ID_PREFIX_MAX]
        member_id = f"{prefix}-{self._make_id()}"
        if instance_id is not None:
            existing = self._members.static_member_id(instance_id)
            if existing is not None:
                self._replace(self._members[existing], member_id, request, ticket)
            else:
                self._add(member_id, request, ticket)
        elif request.needs_member_id:
            # KIP-394: a client whose first answer is lost would otherwise leave a member behind
            # each time it tries again.
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
        # A stable leader joins again when something changed that only it sees, such as the
        # partitions of a topic. Followers without news only lost our answer.
        if (
            self.state is PREPARING
            or not is_unchanged
            or (self.state is STABLE and member_id == self.leader)
        ):
            self._update(member, request, ticket)
            self._rebalance(f"member {member_id} joins again")
        else:
            self._answer_join_of(member, ticket)

    def _update(self, member: Member, request: JoinRequest, ticket: Ticket) -> None:
        self._members.update(
            member,
            request.protocols,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
        )
        displaced = self._members.park_join(member, ticket)
        if displaced is not None:
            # The same member asked on another connection before; whoever still listens there
            # must not wait for ever.
            self._refuse_join(displaced, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)

    def _replace(
        self, member: Member, member_id: str, request: JoinRequest, ticket: Ticket
    ) -> None:
        """A static member is back without its member id: the new one takes the old one's place."""
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
            # COMPLETING: the leader may be assigning to the old member id at this moment.
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
        """The member keeps its assignment: no rebalance, only a record of its new id."""
        answer = self._join_answer(member, ticket)
        is_leader = member.member_id == self.leader
        if request.can_skip_assignment:
            answer = replace(answer, skip_assignment=is_leader)
        else:
            # Clients before v9 cannot be told to keep the assignment. They are told the old
            # leader's id, so that a returning leader takes itself for a follower.
            answer = replace(answer, leader=leader_before or "", members=())
        self._set_write(
            ReplacementWrite(
                snapshot=self._snapshot({m.member_id: m.assignment for m in self._members}),
                member_id=member.member_id,
                previous=previous,
                answer=answer,
            )
        )

    # --- syncing -----------------------------------------------------------------------------

    def sync(self, request: SyncRequest, ticket: Ticket, now: Moment) -> Effects:
        """A member asks for its assignment; the leader brings everybody's."""
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
            # Members that the leader forgot get nothing, and what it made up is dropped.
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
        # Clients before v5 do not say what they believe was chosen.
        if request.protocol_type not in (None, self.protocol_type) or (
            request.protocol_name not in (None, self.protocol_name)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is PREPARING else ErrorCode.NONE

    # --- staying and leaving -----------------------------------------------------------------

    def heartbeat(
        self, *, member_id: str, group_instance_id: str | None, generation: int, now: Moment
    ) -> ErrorCode:
        """A sign of life; the answer tells the member whether it must join again."""
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

    def note_commit(self, member_id: str, now: Moment) -> None:
        """A member that commits is alive."""
        member = self._members.get(member_id)
        if member is not None and self.state in (STABLE, PREPARING):
            self._now = now
            self._extend_session(member)

    def leave(
        self, leaving: Sequence[LeavingMember], now: Moment
    ) -> tuple[tuple[LeaveResult, ...], Effects]:
        """Members go, or are sent by an administrator."""
        self._begin(now)
        results = tuple(
            LeaveResult(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=self._let_go(member),
            )
            for member in leaving
        )
        if any(result.error_code is ErrorCode.NONE for result in results):
            if self.state in (STABLE, COMPLETING):
                self._prepare_rebalance("members left")
            else:
                self._complete_join_if_ready()
        return results, self._end()

    def _let_go(self, leaving: LeavingMember) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        member_id = leaving.member_id
        if member_id == NO_MEMBER_ID:
            bound = self._members.static_member_id(leaving.group_instance_id or "")
            if leaving.group_instance_id is None or bound is None:
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

    def tick(self, now: Moment) -> Effects:
        """Does what is due; safe to call at any time."""
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
        log.info(
            "group member is silent",
            extra={"fields": {"group": self.group_id, "member": member.member_id}},
        )
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

    def loaded(self, now: Moment) -> Effects:
        """The log is read: sessions begin, and a group that is too large by now shrinks."""
        self._begin(now)
        for member in self._members:
            self._extend_session(member)
        if len(self._members) > self._rules.size_max:
            self._prepare_rebalance("the group is larger than group.max.size")
        return self._end()

    def taken_over(
        self, now: Moment, *, generations: Mapping[str, int], must_rejoin: bool
    ) -> Effects:
        """These were the classic members of a KIP-848 group that is no more: sessions begin.

        `generations` are the epochs that the members know; they go by them until they have joined.
        """
        self._begin(now)
        for member in self._members:
            member.former_generation = generations.get(member.member_id)
            self._extend_session(member)
        if must_rejoin:
            self._prepare_rebalance("the last member of the new protocol is gone")
        return self._end()

    def unload(self, error_code: ErrorCode, now: Moment) -> Effects:
        """The group ends here: everybody who waits is told `error_code`."""
        self._begin(now)
        for member in self._members:
            self._release(member, error_code)
        self._join_deadline_ms = self._sync_deadline_ms = self.next_deadline_ms = None
        self._become(DEAD)
        return self._end()
