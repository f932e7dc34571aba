"""The replicas of a partition that are in sync, and the change that the controller is asked for.

    committed ──propose──► pending, one at a time ──answered, or newer metadata──► committed
                                                    (a smaller set: newer metadata alone)

Until its answer a change may have been made or not. So the high watermark waits for the larger of
both sets, the maximal one: for a replica that is to join, and for one that is to leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strandline.broker.cluster.metadata.image import PartitionImage
from strandline.storage.model import Epoch


class SyncedReplica(NamedTuple):
    """A replica, and the epoch of its broker as the leader knows it."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proposal:
    """Another in-sync set, for the state of the partition with these epochs."""

    replicas: Sequence[SyncedReplica]
    leader_epoch: Epoch
    partition_epoch: int
    recovery_state: int
    # The replica that joins; none if replicas leave.
    joining: int | None = None

    @property
    def broker_ids(self) -> frozenset[int]:
        return frozenset(one.broker_id for one in self.replicas)


class InSyncSet:
    """The in-sync set of one partition. Used on the event loop only."""

    __slots__ = ("committed", "maximal", "partition_epoch", "pending", "recovery_state")

    def __init__(self) -> None:
        self.committed: frozenset[int] = frozenset()
        # The committed ones, and one that may have joined.
        self.maximal: frozenset[int] = frozenset()
        self.pending: Proposal | None = None
        self.partition_epoch = -1
        self.recovery_state = 0

    def __repr__(self) -> str:
        return (
            f"<InSyncSet {sorted(self.committed)} epoch={self.partition_epoch}"
            f" pending={self.pending}>"
        )

    def follow(self, image: PartitionImage) -> None:
        """Takes over the newest metadata; whatever was proposed is decided, or void."""
        self.commit(frozenset(image.isr), image.partition_epoch, image.leader_recovery_state)

    def commit(self, broker_ids: frozenset[int], partition_epoch: int, recovery_state: int) -> None:
        self.committed = self.maximal = broker_ids
        self.partition_epoch = partition_epoch
        self.recovery_state = recovery_state
        self.pending = None

    def propose(
        self,
        replicas: Sequence[SyncedReplica],
        *,
        leader_epoch: Epoch,
        joining: int | None = None,
    ) -> Proposal:
        assert self.pending is None, self
        self.pending = Proposal(
            replicas=replicas,
            leader_epoch=leader_epoch,
            partition_epoch=self.partition_epoch,
            # Whoever proposes has what there was to recover.
            recovery_state=0,
            joining=joining,
        )
        if joining is not None:
            self.maximal = self.committed | {joining}
        return self.pending

    def withdraw(self) -> None:
        """What was proposed has surely not been made."""
        self.pending, self.maximal = None, self.committed
