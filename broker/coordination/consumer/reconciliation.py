"""Reconciles one member's assignment with its target, step by step (CurrentAssignmentBuilder).

                 has partitions to revoke                    confirms the revocation
    STABLE  ----------------------------------> UNREVOKED  ---------------------------+
      ^                                          in its old epoch                     |
      |                                                                               v
      +------------- the whole target is free, or owned already ------------------- target epoch
      |                                                                               |
      +--- the last of it became free ---  UNRELEASED  <--- some is still owned ------+

A partition is never assigned while another member owns it or has not revoked it: so no record is
read twice across a clean rebalance.

A partition keeps its assignment epoch while the member owns it, also during revocation; a newly
assigned one gets the target's epoch. So a commit in an older epoch shows whether the member has
owned the partition ever since (`CurrentAssignment.assignment_epoch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace

from strandline.broker.coordination.model.consumer_messages import (
    NOTHING_HELD,
    CurrentAssignment,
    HeldPartitions,
    MemberState,
    Partitions,
    with_assignment_epoch,
)
from strandline.storage.model import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A member's target. `topic_ids` are its current subscription."""

    epoch: int
    target: Partitions
    topic_ids: Set[TopicId]
    # Whether no member owns the partition.
    is_free: Callable[[TopicId, int], bool]
    # This request changed the topics that the member subscribes to.
    has_new_subscription: bool = False


def reconcile(
    current: CurrentAssignment, goal: Goal, owned: Partitions | None
) -> CurrentAssignment:
    """Returns the next step, or `current` itself if there is none.

    `owned` are the partitions that the member reports; None if it does not report them.
    """
    if current.state is MemberState.STABLE:
        if current.epoch != goal.epoch:
            return _step(current, goal, owned)
        return _shrink(current, goal, owned) if goal.has_new_subscription else current
    if current.state is MemberState.UNREVOKED and _has_any(owned, current.revoking):
        return _shrink(current, goal, owned) if goal.has_new_subscription else current
    return _step(current, goal, owned)


def _has_any(owned: Partitions | None, wanted: HeldPartitions) -> bool:
    """Returns whether the member may still own one of these; True if it does not report them."""
    if owned is None:
        return True
    return any(not found.isdisjoint(wanted.get(topic_id, ())) for topic_id, found in owned.items())


def _shrink(current: CurrentAssignment, goal: Goal, owned: Partitions | None) -> CurrentAssignment:
    """Revokes topics that the member has unsubscribed from, without a new target."""
    gone = {t: epochs for t, epochs in current.assigned.items() if t not in goal.topic_ids}
    if not gone:
        return current
    assigned = {t: epochs for t, epochs in current.assigned.items() if t not in gone}
    revoking = _united(current.revoking, gone)
    if _has_any(owned, revoking):
        return _moved(current, current.epoch, MemberState.UNREVOKED, assigned, revoking)
    return _moved(current, current.epoch, current.state, assigned, current.revoking)


def _step(current: CurrentAssignment, goal: Goal, owned: Partitions | None) -> CurrentAssignment:
    assigned: dict[TopicId, Mapping[int, int]] = {}
    revoking: dict[TopicId, Mapping[int, int]] = {}
    coming: dict[TopicId, frozenset[int]] = {}
    must_wait = False
    for topic_id in {**goal.target, **current.assigned}:
        had = current.assigned.get(topic_id, {})
        target = goal.target.get(topic_id, frozenset())
        if topic_id not in goal.topic_ids:
            target = frozenset()
        mine = current.revoking.get(topic_id, {})
        missing = target - had.keys()
        free = frozenset(p for p in missing if p in mine or goal.is_free(topic_id, p))
        must_wait = must_wait or len(free) < len(missing)
        if kept := {p: epoch for p, epoch in had.items() if p in target}:
            assigned[topic_id] = kept
        if lost := {p: epoch for p, epoch in had.items() if p not in target}:
            revoking[topic_id] = lost
        if free:
            coming[topic_id] = free
    if revoking and _has_any(owned, revoking):
        return _moved(current, current.epoch, MemberState.UNREVOKED, assigned, revoking)
    state = MemberState.UNRELEASED if must_wait else MemberState.STABLE
    has = _united(assigned, with_assignment_epoch(coming, goal.epoch))
    return _moved(current, goal.epoch, state, has, NOTHING_HELD)


def _united(some: HeldPartitions, others: HeldPartitions) -> HeldPartitions:
    """Returns the union of both; no partition is in both."""
    return {t: {**some.get(t, {}), **others.get(t, {})} for t in {**some, **others}}


def _moved(
    current: CurrentAssignment,
    epoch: int,
    state: MemberState,
    assigned: HeldPartitions,
    revoking: HeldPartitions,
) -> CurrentAssignment:
    """Returns `current` itself if nothing would change: then nothing needs to be written."""
    moved = replace(current, epoch=epoch, state=state, assigned=assigned, revoking=revoking)
    return current if moved == current else replace(moved, previous_epoch=current.epoch)
