"""What brokers ask of the controller about themselves, and what it asks of itself (plain values).

See `cluster/metadata/controller_messages.py` for requests and decisions.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from strandline.broker.cluster.metadata.controller_messages import ControllerRequest, Outcome
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.protocol.messages.assign_replicas_to_dirs import AssignedDirectory
from strandline.broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from strandline.broker.protocol.messages.broker_registration import BrokerRegistrationRequest
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(Outcome):
    """The epoch of a registration, -1 if it is refused."""

    broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatAnswer(Outcome):
    """What a broker is to do, and whether it has reached its own registration."""

    is_caught_up: bool = False
    is_fenced: bool = True
    in_controlled_shutdown: bool = False
    should_shut_down: bool = False


# A log folder, and a partition in it: topic and number.
ReplicaInFolder: TypeAlias = tuple[uuid.UUID, TopicId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedReplicas(Outcome):
    """The error code of each replica, unless all are refused."""

    codes: Mapping[ReplicaInFolder, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedBlock(Outcome):
    """A block of producer ids, empty if it is refused."""

    first_id: int = 0
    id_count: int = 0


@dataclass(frozen=True, slots=True)
class RegisterBroker(ControllerRequest[Registered]):
    """A broker process wants an epoch."""

    request: BrokerRegistrationRequest


@dataclass(frozen=True, slots=True)
class Heartbeat(ControllerRequest[BrokerHeartbeatAnswer]):
    """A broker says where it is, and what it wants."""

    overtakes: ClassVar[bool] = True
    request: BrokerHeartbeatRequest


@dataclass(frozen=True, slots=True)
class FenceBroker(ControllerRequest[None]):
    """The session of a registration has expired."""

    node_id: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class UnregisterBroker(ControllerRequest[Outcome]):
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class BalanceLeaders(ControllerRequest[None]):
    """Lets the first replicas lead again, as far as they can."""


@dataclass(frozen=True, slots=True)
class ElectUncleanLeaders(ControllerRequest[None]):
    """Elects leaders for partitions without one, where their topics allow a loss of records."""


@dataclass(frozen=True, slots=True)
class AllocateBlock(ControllerRequest[AllocatedBlock]):
    """A broker wants producer ids."""

    node_id: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class AssignDirectories(ControllerRequest[AssignedReplicas]):
    """A broker says in which log folders its replicas are."""

    node_id: NodeId
    broker_epoch: int
    directories: Sequence[AssignedDirectory]
