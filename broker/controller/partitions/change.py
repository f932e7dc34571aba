"""What changes of a partition: its replicas in sync, its leader, and those that may lead next.

A leader is in sync, or, if nobody is, an eligible leader replica (KIP-966): one that left the set
when it had fewer than `min.insync.replicas`. Nothing was acknowledged since, so it has all of it,
until its broker ends without having synced its logs.

    PREFERRED   the first replica leads, if it can; else as ONLINE
    ONLINE      the leader stays if it can; else the first replica that can
    UNCLEAN     as ONLINE; else the first replica of an active broker, and records may be lost

If nobody can, the partition has no leader until somebody comes back. The last leader is noted then:
if all eligible replicas are gone, it leads again when it is back.

A leader that is named in a record has a new epoch, even if it is the same; so have readers whose
replica was taken away.

As Kafka's PartitionChangeBuilder, with eligible leader replicas and log folders always on. Beyond
it: whoever has an empty log, or is no replica any more, leads by no name that it had before.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from strandline.broker.cluster.metadata.image import NO_LEADER, PartitionImage
from strandline.broker.cluster.metadata.records import NodeId, Replicas
from strandline.broker.controller.partitions.reassigned import Reassignment
from strandline.broker.protocol.formats.metadata_records import (
    UNASSIGNED_DIRECTORY,
    PartitionChangeRecord,
)
from strandline.storage.model import TopicId

# States of a leader: one that was elected uncleanly recovers.
RECOVERED: Final = 0
RECOVERING: Final = 1


class Election(Enum):
    """Which replica is asked first, and which at all."""

    PREFERRED = auto()
    ONLINE = auto()
    UNCLEAN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What decides on a partition beside its own state.

    `may_lead` says whether a replica can be reached. `min_isr` may be more than the partition has
    replicas. `default_directory` is the log folder of a replica on that broker as long as nobody
    knows it.
    """

    may_lead: Callable[[NodeId], bool]
    min_isr: int
    default_directory: Callable[[NodeId], uuid.UUID] = lambda _: UNASSIGNED_DIRECTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTarget:
    """What a partition is to become; None leaves that as it is.

    `directories` has log folders of replicas that are known now. `crashed` is a broker that ended
    without a clean shutdown, `emptied` one whose replica was in a folder that is gone: what it has
    now begins with an empty log.
    """

    isr: Replicas | None = None
    replicas: Replicas | None = None
    adding: Replicas | None = None
    removing: Replicas | None = None
    leader_recovery_state: int | None = None
    directories: Mapping[NodeId, uuid.UUID] = field(default_factory=dict)
    crashed: NodeId | None = None
    emptied: NodeId | None = None
    election: Election = Election.ONLINE


def change_of(
    topic_id: TopicId, partition: PartitionImage, target: PartitionTarget, rules: Rules
) -> PartitionChangeRecord | None:
    """Returns the record that brings a partition there; None if nothing changes."""
    values = _Wanted(partition, target, rules).values()
    if not values:
        return None
    return PartitionChangeRecord(partition_id=partition.partition, topic_id=topic_id, **values)


class _Wanted:
    """The state that is wanted, in the steps that lead to a record."""

    def __init__(self, partition: PartitionImage, target: PartitionTarget, rules: Rules) -> None:
        self._partition, self._target, self._rules = partition, target, rules
        self._isr = self._without_emptied(_or(target.isr, partition.isr))
        self._last_known = self._without_emptied(partition.last_known_elr)
        reassignment = Reassignment(
            replicas=_or(target.replicas, partition.replicas),
            adding=_or(target.adding, partition.adding_replicas),
            removing=_or(target.removing, partition.removing_replicas),
        )
        completed = reassignment.complete(self._isr)
        if completed is not None:
            replicas, self._isr = completed
            reassignment = Reassignment(replicas=replicas)
        self._reassignment = reassignment
        self._eligible = self._eligible_replicas()

    def values(self) -> dict[str, Any]:
        """Returns the fields of the record."""
        partition, before = self._partition, self._partition.replicas
        values: dict[str, Any] = {}
        leader, is_unclean = self._elect()
        if leader != partition.leader:
            values["leader"] = leader
        elif not set(before) <= set(self._reassignment.replicas):
            values["leader"] = partition.leader
        isr, eligible = self._isr, self._eligible
        if is_unclean:
            isr, eligible = (leader,), ()
            if partition.leader_recovery_state != RECOVERING:
                values["leader_recovery_state"] = RECOVERING
        elif leader in eligible and leader != partition.leader:
            isr, eligible = (leader,), tuple(node for node in eligible if node != leader)
        recovery = self._target.leader_recovery_state
        if recovery not in (None, partition.leader_recovery_state):
            values["leader_recovery_state"] = recovery
        if values.get("leader") == NO_LEADER != partition.leader and not partition.last_known_elr:
            values["last_known_elr"] = (partition.leader,)
        elif values.get("leader", NO_LEADER) != NO_LEADER and partition.last_known_elr:
            values["last_known_elr"] = ()
        elif self._last_known != partition.last_known_elr:
            values["last_known_elr"] = self._last_known
        after = {
            "isr": isr,
            "eligible_leader_replicas": eligible,
            "replicas": self._reassignment.replicas,
            "adding_replicas": self._reassignment.adding,
            "removing_replicas": self._reassignment.removing,
        }
        values |= {name: new for name, new in after.items() if new != getattr(partition, name)}
        directories = self._directories()
        if directories != self._known_directories(before):
            values["directories"] = directories
        return values

    # --- eligible replicas -----------------------------------------------------------------------

    def _eligible_replicas(self) -> Replicas:
        """Returns who has all that was acknowledged beside those in sync.

        A leader waits for no more than all replicas of the partition. Who is no replica any more
        drops its log, and does not have it if it becomes one again. Kafka's builder takes the
        number of replicas from the first partition of the topic, and keeps whoever was eligible.
        """
        partition, replicas = self._partition, self._reassignment.replicas
        if len(self._isr) >= min(self._rules.min_isr, len(replicas)):
            return ()
        candidates = {*partition.eligible_leader_replicas, *partition.isr} & {*replicas}
        gone = {self._target.crashed, self._target.emptied}
        return tuple(sorted(candidates - {*self._isr, *gone}))

    def _without_emptied(self, replicas: Replicas) -> Replicas:
        return tuple(node for node in replicas if node != self._target.emptied)

    # --- the election ----------------------------------------------------------------------------

    def _elect(self) -> tuple[NodeId, bool]:
        """Returns the leader, and whether its election is an unclean one."""
        leader, replicas = self._partition.leader, self._reassignment.replicas
        preferred = replicas[:1] if self._target.election is Election.PREFERRED else ()
        for node in (*preferred, leader, *replicas):
            if self._is_valid(node):
                return node, False
        last_known = self._last_known
        # Several are those of a Kafka that did not note the last leader.
        if not self._isr and not self._eligible and len(last_known) == 1:
            (node,) = last_known
            if node in replicas and self._rules.may_lead(node):
                return node, True
        if self._target.election is Election.UNCLEAN:
            for node in replicas:
                if self._rules.may_lead(node):
                    return node, True
        return NO_LEADER, False

    def _is_valid(self, node: NodeId) -> bool:
        return node in (self._isr or self._eligible) and self._rules.may_lead(node)

    # --- log folders -----------------------------------------------------------------------------

    def _directories(self) -> tuple[uuid.UUID, ...]:
        known = self._known_directories(self._partition.replicas)
        folders = {
            **dict(zip(self._partition.replicas, known, strict=True)),
            **self._target.directories,
        }
        return tuple(
            folders[node] if node in folders else self._rules.default_directory(node)
            for node in self._reassignment.replicas
        )

    def _known_directories(self, replicas: Replicas) -> tuple[uuid.UUID, ...]:
        """Returns one for each replica; older records have none."""
        known = self._partition.directories
        return known or (UNASSIGNED_DIRECTORY,) * len(replicas)


def _or(wanted: Replicas | None, present: Replicas) -> Replicas:
    return present if wanted is None else wanted
