"""The runtime of KIP-848 groups: decides, writes, replays, answers; runs timers and regexes.

    request --> ConsumerGroups (pure) --> records --> one batch in the log --> replay --> answer

No request waits: a heartbeat is answered with the member's current assignment. A worker thread
evaluates regular expressions, however many topics there are; the result is written afterwards, and
members learn of it with their next heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.consumer import classic_members as classic
from strandline.broker.coordination.consumer.consumer_group import ConsumerGroup
from strandline.broker.coordination.consumer.consumer_shard import ConsumerDecision
from strandline.broker.coordination.groups.group_shard import GroupEffects, GroupSlot
from strandline.broker.coordination.groups.group_writes import in_batches, write_members
from strandline.broker.coordination.model.classic_messages import (
    CoordinatorFault,
    Instant,
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
    Ticket,
)
from strandline.broker.coordination.model.consumer_messages import (
    ConsumerHeartbeat,
    EpochRecord,
    HeartbeatAnswer,
)
from strandline.broker.coordination.model.topic_regex import find_topics
from strandline.broker.protocol.formats.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import OutOfResources

log = logging.getLogger(__name__)

# Delay until members whose fencing could not be written are fenced again.
FENCE_RETRY_MS = 1000


class Surroundings(Protocol):
    """The part of the coordinator that is common to all kinds of groups."""

    @property
    def image(self) -> MetadataImage: ...

    def now(self) -> Instant: ...

    def arm(self, group: Group | ConsumerGroup) -> None:
        """Arms the timer with the group's next deadline."""

    def carry_out(self, slot: GroupSlot, step: GroupEffects) -> None:
        """Writes and answers the effects of an event in a classic group."""


class ConsumerCoordinator:
    """Runs the KIP-848 groups. Used on the event loop only."""

    def __init__(self, surroundings: Surroundings, reads: Executor) -> None:
        """`reads` evaluates regular expressions."""
        self._surroundings = surroundings
        self._reads = reads

    # --- the new protocol --------------------------------------------------------------------

    def heartbeat(self, slot: GroupSlot, request: ConsumerHeartbeat) -> HeartbeatAnswer:
        """Handles a heartbeat. Raises CoordinatorFault."""
        now, image = self._surroundings.now(), self._surroundings.image
        group_id = request.group_id
        other = slot.shard.group(group_id)
        decision = slot.shard.consumers.heartbeat(request, other, image, now)
        answer = decision.heartbeat
        assert answer is not None, decision
        self._carry_out(slot, group_id, decision, now)
        group = slot.shard.consumers.get(group_id)
        if group is not None:
            if request.member_epoch >= 0:
                group.touch(answer.member_id, now)
                group.note_image(image)
            self._search(slot, group, image, now, request.shows_topic)
            self._surroundings.arm(group)
        return answer

    # --- members of the classic protocol -----------------------------------------------------

    def join(
        self, slot: GroupSlot, group: ConsumerGroup, request: JoinRequest, ticket: Ticket
    ) -> JoinAnswer:
        """Handles JoinGroup of a classic member. Raises CoordinatorFault."""
        now, image = self._surroundings.now(), self._surroundings.image
        decision = slot.shard.consumers.classic_join(group, request, ticket, image, now)
        answer = decision.join
        assert answer is not None, decision
        self._carry_out(slot, group.group_id, decision, now)
        if answer.error_code is ErrorCode.NONE and self._is_current(slot, group):
            group.touch(answer.member_id, now)
            group.await_sync(answer.member_id, now)
            group.note_image(image)
            self._surroundings.arm(group)
        return answer

    def sync(self, group: ConsumerGroup, request: SyncRequest, ticket: Ticket) -> SyncAnswer:
        """Handles SyncGroup of a classic member. Raises CoordinatorFault."""
        now = self._surroundings.now()
        try:
            assignment = classic.sync(group.roster, request, self._surroundings.image)
        except CoordinatorFault as fault:
            if fault.error_code is ErrorCode.REBALANCE_IN_PROGRESS:
                group.await_join(request.member_id, now)
                self._surroundings.arm(group)
            raise
        group.synced(request.member_id)
        group.touch(request.member_id, now)
        self._surroundings.arm(group)
        return SyncAnswer(
            ticket=ticket,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocol_name,
            assignment=assignment,
        )

    def classic_heartbeat(
        self,
        group: ConsumerGroup,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
    ) -> ErrorCode:
        """Returns whether the member must rejoin. Raises CoordinatorFault."""
        now = self._surroundings.now()
        classic.classic_membership(group.roster, member_id, group_instance_id, generation)
        group.touch(member_id, now)
        code = ErrorCode.NONE
        if classic.must_join_again(group.roster, member_id):
            group.await_join(member_id, now)
            code = ErrorCode.REBALANCE_IN_PROGRESS
        self._surroundings.arm(group)
        return code

    def leave(
        self, slot: GroupSlot, group: ConsumerGroup, leaving: Sequence[LeavingMember]
    ) -> tuple[LeaveResult, ...]:
        """Handles LeaveGroup. Raises CoordinatorFault."""
        now, image = self._surroundings.now(), self._surroundings.image
        decision = slot.shard.consumers.classic_leave(group, leaving, image, now)
        self._carry_out(slot, group.group_id, decision, now)
        return decision.leave

    def clear_empty(self, slot: GroupSlot, group: ConsumerGroup) -> None:
        """Deletes an empty group to make room for a classic one. Raises CoordinatorFault."""
        assert group.is_empty, group
        now = self._surroundings.now()
        for records in in_batches(slot.shard.consumers.tombstones(group)):
            write_members(slot, records, now)

    # --- time --------------------------------------------------------------------------------

    def tick(self, slot: GroupSlot, group: ConsumerGroup) -> None:
        """Fences members whose deadlines passed."""
        now = self._surroundings.now()
        over = group.due(now)
        if over:
            log.info(
                "group members are silent or do not rebalance",
                extra={"fields": {"group": group.group_id, "members": over}},
            )
            image = self._surroundings.image
            decision = slot.shard.consumers.fence(group, over, image, now)
            try:
                self._carry_out(slot, group.group_id, decision, now)
            except CoordinatorFault:
                # Also if the group has more members to fence, and is due at once.
                group.next_deadline_ms = now.monotonic_ms + FENCE_RETRY_MS
        if self._is_current(slot, group):
            self._surroundings.arm(group)

    # --- carrying out ------------------------------------------------------------------------

    def _is_current(self, slot: GroupSlot, group: ConsumerGroup) -> bool:
        return slot.shard.consumers.get(group.group_id) is group

    def _carry_out(
        self, slot: GroupSlot, group_id: str, decision: ConsumerDecision, now: Instant
    ) -> None:
        """Writes and replays. Raises CoordinatorFault; then nothing has changed."""
        if not decision.records:
            return
        before = slot.shard.group(group_id)
        write_members(slot, decision.records, now)
        _log_epoch(decision)
        after = slot.shard.group(group_id)
        if after is before:
            return
        if before is not None:
            # The group now has the new protocol; waiting requests are sent back to retry.
            effects = before.unload(ErrorCode.REBALANCE_IN_PROGRESS, now)
            self._surroundings.carry_out(slot, GroupEffects(group=None, effects=effects))
        if after is not None:
            effects = after.taken_over(
                now, generations=decision.generations, must_rejoin=decision.must_rejoin
            )
            self._surroundings.carry_out(slot, GroupEffects(group=after, effects=effects))

    # --- regular expressions -----------------------------------------------------------------

    def _search(
        self,
        slot: GroupSlot,
        group: ConsumerGroup,
        image: MetadataImage,
        now: Instant,
        shows_topic: Callable[[str], bool],
    ) -> None:
        """Evaluates the expressions of all members, as far as the member that asks may see.

        As in Kafka's TopicRegexResolver its rights decide for all that share an expression, until
        the next evaluation.
        """
        regexes = group.begin_search(image, now)
        if not regexes:
            return
        try:
            searching = asyncio.get_running_loop().run_in_executor(
                self._reads, find_topics, regexes, tuple(image.topics)
            )
        except (OutOfResources, RuntimeError, MemoryError):
            # No thread is available: retried later, as if it had matched nothing.
            group.end_search()
        else:
            searching.add_done_callback(partial(self._found, slot, group, image, shows_topic))

    def _found(
        self,
        slot: GroupSlot,
        group: ConsumerGroup,
        image: MetadataImage,
        shows_topic: Callable[[str], bool],
        searching: asyncio.Future[dict[str, frozenset[str]]],
    ) -> None:
        group.end_search()
        if searching.cancelled() or not self._is_current(slot, group):
            return
        now = self._surroundings.now()
        try:
            found = {
                regex: frozenset(filter(shows_topic, topics))
                for regex, topics in searching.result().items()
            }
            decision = slot.shard.consumers.found_topics(group, found, image, now)
            self._carry_out(slot, group.group_id, decision, now)
        except CoordinatorFault:
            # Retried later: an expression without a record is evaluated again after a while.
            return
        group.note_image(image)


def _log_epoch(decision: ConsumerDecision) -> None:
    """Logs the start of a rebalance: the last of several epochs in one decision."""
    for record in reversed(decision.records):
        if isinstance(record, EpochRecord) and record.epoch is not None:
            log.info(
                "group rebalances",
                extra={"fields": {"group": record.group_id, "epoch": record.epoch}},
            )
            return
