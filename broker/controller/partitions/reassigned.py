"""The replicas of a partition that is reassigned, while it is and afterwards (KIP-455).

    before      1 2 3        wanted   4 2 1

    meanwhile   4 2 1 3      adding 4, removing 3: all of them have the partition
    complete    4 2 1        as soon as all of them are in sync
    cancelled   2 1 3        those that were added are out again

As Kafka's PartitionReassignmentReplicas and PartitionReassignmentRevert.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import PartitionImage
from strandline.broker.cluster.metadata.records import Replicas
from strandline.broker.protocol.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """All replicas of a partition, with those that come and those that go."""

    replicas: Replicas
    adding: Replicas = ()
    removing: Replicas = ()

    @classmethod
    def towards(cls, current: Replicas, wanted: Replicas) -> Reassignment:
        """Returns the beginning of the way to the wanted replicas."""
        removing = tuple(sorted(set(current) - set(wanted)))
        return cls(
            replicas=wanted + removing,
            adding=tuple(sorted(set(wanted) - set(current))),
            removing=removing,
        )

    @classmethod
    def of(cls, partition: PartitionImage) -> Reassignment:
        return cls(
            replicas=partition.replicas,
            adding=partition.adding_replicas,
            removing=partition.removing_replicas,
        )

    @property
    def is_in_progress(self) -> bool:
        return bool(self.adding or self.removing)

    def complete(self, isr: Replicas) -> tuple[Replicas, Replicas] | None:
        """Returns the replicas at the end, and which are in sync; None while some are not."""
        if not self.is_in_progress:
            return None
        replicas = without(self.replicas, self.removing)
        left = without(isr, self.removing)
        is_complete = left and replicas and set(replicas) <= set(left)
        return (replicas, left) if is_complete else None

    @property
    def original(self) -> Replicas:
        """The replicas without those that come."""
        return without(self.replicas, self.adding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """A partition whose reassignment is cancelled.

    If only replicas that come are in sync, the first of the others stands for them: an unclean
    election, which the caller has to allow.
    """

    replicas: Replicas
    isr: Replicas
    is_unclean: bool

    @classmethod
    def of(cls, partition: PartitionImage) -> Revert:
        """Raises Refusal if nothing is left."""
        replicas = Reassignment.of(partition).original
        isr = without(partition.isr, partition.adding_replicas)
        if isr:
            return cls(replicas=replicas, isr=isr, is_unclean=False)
        if not replicas:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Invalid replica assignment: addingReplicas contains all replicas.",
            )
        return cls(replicas=replicas, isr=replicas[:1], is_unclean=True)


def without(replicas: Replicas, gone: Replicas) -> Replicas:
    """Returns those that are left, in their order."""
    return tuple(node for node in replicas if node not in gone)
