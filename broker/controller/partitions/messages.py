"""What leaders and clients ask of the controller about partitions (plain values)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from strandline.broker.cluster.metadata.controller_messages import ControllerRequest, Outcome
from strandline.broker.cluster.metadata.image import PartitionImage
from strandline.broker.cluster.metadata.records import NodeId, Replicas
from strandline.broker.controller.partitions.change import Election
from strandline.broker.controller.partitions.index import Place
from strandline.storage.model import Epoch

# A broker, and its epoch as a leader knows it; -1 if it does not.
InSync: TypeAlias = tuple[NodeId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedInSync:
    """The replicas that a leader has in sync, under the epochs that it knows."""

    place: Place
    leader_epoch: Epoch
    partition_epoch: int
    isr: Sequence[InSync]
    leader_recovery_state: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncResult(Outcome):
    """The state of a partition after the change; None if it is refused."""

    partition: PartitionImage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredInSync(Outcome):
    """The result for each partition, unless all are refused."""

    results: Mapping[Place, InSyncResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterInSync(ControllerRequest[AlteredInSync]):
    """A leader says who is in sync (AlterPartition)."""

    node_id: NodeId
    broker_epoch: int
    wanted: Sequence[WantedInSync]


# A topic by its name, and the number of a partition.
PartitionNumber: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ElectedLeaders:
    """The outcome for each partition, in the order of the request."""

    outcomes: Mapping[PartitionNumber, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders(ControllerRequest[ElectedLeaders]):
    """A client wants leaders for these partitions; None: for all (KIP-460)."""

    election: Election
    partitions: Sequence[PartitionNumber] | None


@dataclass(frozen=True, slots=True)
class Reassigned:
    """The outcome for each partition."""

    outcomes: Mapping[PartitionNumber, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignPartitions(ControllerRequest[Reassigned]):
    """A client wants these replicas; None cancels the reassignment of a partition (KIP-455).

    Other numbers of replicas than before can be forbidden (KIP-860).
    """

    replicas: Mapping[PartitionNumber, Replicas | None]
    allows_other_factor: bool = True


@dataclass(frozen=True, slots=True)
class ListReassignments(ControllerRequest[Mapping[str, Sequence[PartitionImage]]]):
    """Which of these partitions are being reassigned, by topic; None: of all."""

    partitions: Sequence[PartitionNumber] | None
