"""How one generation of a classic group follows another; `group.py` has the whole picture.

    PREPARING    members join; those who did not in time are left behind
    COMPLETING   everybody who joined was answered, the leader is assigning
    written      the assignment is in the log: STABLE, everybody gets its part

A record that cannot be written leaves nobody in the belief that it was: an assignment is told to be
lost and the members join again, a returning static member keeps its former id.
"""

from __future__ import annotations

import logging

from strandline.broker.coordination.classic.group_core import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    GroupCore,
)
from strandline.broker.coordination.values.group_values import (
    NO_MEMBER_ID,
    AssignmentWrite,
    CreationWrite,
    Effects,
    EmptyWrite,
    GroupWrite,
    JoinAnswer,
    Moment,
    ReplacementWrite,
)
from strandline.broker.protocol.schema.errors import ErrorCode

log = logging.getLogger(__name__)


class RebalancingGroup(GroupCore):
    """A group that makes generations of its members."""

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
        log.info(
            "group prepares to rebalance",
            extra={
                "fields": {
                    "group": self.group_id,
                    "generation": self.generation,
                    "reason": reason,
                }
            },
        )
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
        if self.state is PREPARING and not self._is_initial and self._members.all_joined:
            self._complete_join()

    def _complete_if_all_joined(self) -> None:
        """As `_complete_join_if_ready`, but does not wait for others in a first rebalance."""
        if self.state is PREPARING and self._members.all_joined:
            self._complete_join()

    def _on_join_deadline(self) -> None:
        if self._is_initial and self._initial_has_newcomers and self._initial_remaining_ms:
            # Members are still coming: wait once more, within what they all allow.
            self._initial_has_newcomers = False
            delay_ms = min(self._rules.initial_rebalance_delay_ms, self._initial_remaining_ms)
            self._initial_remaining_ms -= delay_ms
            self._join_deadline_ms = self._due_in(delay_ms)
        else:
            self._complete_join()

    def _complete_join(self) -> None:
        """The members that came are the next generation."""
        self._join_deadline_ms = None
        # A static member that did not come keeps its place until its session ends.
        for member in tuple(self._members):
            if not member.is_awaiting_join and not member.is_static:
                self._remove(member)
        if len(self._members) and not self._elect_leader():
            # Only static members are left, and none of them came. Their sessions will end.
            self._join_deadline_ms = self._due_in(self._members.rebalance_timeout_ms)
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
                self._answer_join_of(member, ticket)
            self._extend_session(member)
            member.is_new = False
            member.former_generation = None
            self._members.pending_sync.add(member.member_id)
        self._sync_deadline_ms = self._due_in(self._members.rebalance_timeout_ms)

    def _elect_leader(self) -> bool:
        """Keeps the leader if it came, else takes the first who did; False if nobody came."""
        assert self.leader is not None, self
        if self._members[self.leader].is_awaiting_join:
            return True
        for member in self._members:
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

    # --- records -----------------------------------------------------------------------------

    def written(self, write: GroupWrite, now: Moment) -> Effects:
        """The record is durable: whoever waited for it is told."""
        self._begin(now)
        if isinstance(write, AssignmentWrite):
            # The group may have moved on while the record was on its way.
            if self.state is COMPLETING and self.generation == write.snapshot.generation:
                for member in self._members:
                    member.assignment = write.assignments.get(member.member_id, b"")
                self._become(STABLE)
                self._answer_syncs(ErrorCode.NONE)
        elif isinstance(write, ReplacementWrite):
            self._finish_replacement(write, write.answer)
        return self._end()

    def write_failed(self, write: GroupWrite, error_code: ErrorCode, now: Moment) -> Effects:
        """The record is not in the log: nobody may go on as if it were."""
        self._begin(now)
        if isinstance(write, AssignmentWrite):
            if self.state is COMPLETING and self.generation == write.snapshot.generation:
                self._reset_assignments(error_code)
                self._prepare_rebalance("the assignment could not be written")
        elif isinstance(write, ReplacementWrite):
            self._finish_replacement(
                write,
                JoinAnswer(
                    ticket=write.answer.ticket, error_code=error_code, member_id=NO_MEMBER_ID
                ),
            )
            self._undo_replacement(write)
        else:
            # An empty generation that is not in the log harms nobody: it has no members, and
            # what the log says instead times out after a restart.
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
        self._members.update(
            member,
            previous.protocols,
            session_timeout_ms=previous.session_timeout_ms,
            rebalance_timeout_ms=previous.rebalance_timeout_ms,
        )
        self._extend_session(member)
