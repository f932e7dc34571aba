"""One step of one member from what it has towards what it is to have (CurrentAssignmentBuilder).

                 has partitions to give back                 says that it gave them back
    STABLE  ----------------------------------> UNREVOKED  ---------------------------+
      ^                                          in its old epoch                     |
      |                                                                               v
      +------------- everything it is to have is free, or nothing is missing ------ target epoch
      |                                                                               |
      +--- the last of it became free ---  UNRELEASED  <--- some is still others' ----+

A partition is never assigned while another member has it or has not given it back: that is why no
record is read twice across a clean rebalance.

A partition that the member keeps keeps its assignment epoch, also while it is to be given back; one
that comes, or comes back, has that of the target. So a commit in an older epoch tells whether the
member has had the partition ever since (`CurrentAssignment.assignment_epoch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from strandline.broker.coordination.values.consumer_values import (
    NOTHING_HELD,
    CurrentAssignment,
    HeldPartitions,
    MemberState,
    Partitions,
    held_since,
)
from strandline.storage.model import TopicId

# Whether nobody has the partition.
IsFree: TypeAlias = Callable[[TopicId, int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Where the member is to go. `topic_ids` are those it subscribes to now."""

    epoch: int
    target: Partitions
    topic_ids: Set[TopicId]
    is_free: IsFree
    # The topics it subscribes to changed with this request.
    has_new_subscription: bool = False


def reconcile(
    current: CurrentAssignment, goal: Goal, owned: Partitions | None
) -> CurrentAssignment:
    """The next step, or `current` itself if it cannot move.

    `owned` is what the member says it has; None if it does not say.
    """
    if current.state is MemberState.STABLE:
        if current.epoch != goal.epoch:
            return _step(current, goal, owned)
        return _shrink(current, goal, owned) if goal.has_new_subscription else current
    if current.state is MemberState.UNREVOKED and _has_any(owned, current.revoking):
        return _shrink(current, goal, owned) if goal.has_new_subscription else current
    return _step(current, goal, owned)


def _has_any(owned: Partitions | None, wanted: HeldPartitions) -> bool:
    """Whether the member still has one of these; as long as it does not say, it may."""
    if owned is None:
        return True
    return any(not found.isdisjoint(wanted.get(topic_id, ())) for topic_id, found in owned.items())


def _shrink(current: CurrentAssignment, goal: Goal, owned: Partitions | None) -> CurrentAssignment:
    """Takes away topics that the member does not subscribe to any more, without a new target."""
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
    has = _united(assigned, held_since(coming, goal.epoch))
    return _moved(current, goal.epoch, state, has, NOTHING_HELD)


def _united(some: HeldPartitions, others: HeldPartitions) -> HeldPartitions:
    """What is in either of them; no partition is in both."""
    return {t: {**some.get(t, {}), **others.get(t, {})} for t in {**some, **others}}


def _moved(
    current: CurrentAssignment,
    epoch: int,
    state: MemberState,
    assigned: HeldPartitions,
    revoking: HeldPartitions,
) -> CurrentAssignment:
    """`current` itself if nothing would change: then there is nothing to write either."""
    moved = replace(current, epoch=epoch, state=state, assigned=assigned, revoking=revoking)
    return current if moved == current else replace(moved, previous_epoch=current.epoch)
