"""Heartbeats of brokers, and the states between which they move a broker (KIP-631, KIP-841).

    FENCED ──has reached its registration──► UNFENCED ──wants to stop, leads──► CONTROLLED_SHUTDOWN
      ▲                                        │  │ wants to stop,                     │
      └──────────wants to be fenced────────────┘  │ leads nothing        leads nothing, and all
      │ wants to stop                             ▼                      others know it
      └─────────────────────────────────────► SHUTDOWN_NOW ◄───────────────────────────┘

A fenced broker leads nothing, and is in sync nowhere where another one is. One that is shutting
down hands its leaderships over first. A partition with one replica has nobody to go to: it stays
without a leader until its broker is back.

As Kafka's BrokerHeartbeatManager and ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final
from uuid import UUID

from strandline.broker.cluster.metadata.controller_messages import Decision, Outcome, Refusal
from strandline.broker.cluster.metadata.image import MetadataImage, PartitionImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.controller.directories import without
from strandline.broker.controller.elections import (
    Election,
    Electorate,
    directory_of,
    elect_all,
    in_sync,
    leaderless,
    leads_any,
    not_preferred,
    partitions,
)
from strandline.broker.controller.messages import BrokerHeartbeatAnswer, FenceBroker
from strandline.broker.controller.registration import check_epoch
from strandline.broker.controller.sessions import BrokerSessions
from strandline.broker.protocol.formats.metadata_records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from strandline.broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import Offset

_FENCE: Final = 1
_UNFENCE: Final = -1
_SHUTS_DOWN: Final = 1


class BrokerControlState(Enum):
    """Where a broker stands (Kafka's BrokerControlState)."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    SHUTDOWN_NOW = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known of a broker when its heartbeat comes."""

    is_fenced: bool
    registered_at: Offset
    shutdown_at: Offset | None
    lowest_active: Offset

    @property
    def state(self) -> BrokerControlState:
        if self.shutdown_at is not None:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.FENCED if self.is_fenced else BrokerControlState.UNFENCED


def next_state(
    standing: Standing, asked: BrokerHeartbeatRequest, leads: Callable[[], bool]
) -> BrokerControlState:
    """Returns where a heartbeat moves a broker; `leads` says whether it leads a partition."""
    match standing.state:
        case BrokerControlState.FENCED:
            if asked.want_shut_down:
                return BrokerControlState.SHUTDOWN_NOW
            is_caught_up = asked.current_metadata_offset >= standing.registered_at
            return (
                BrokerControlState.FENCED
                if asked.want_fence or not is_caught_up
                else BrokerControlState.UNFENCED
            )
        case BrokerControlState.UNFENCED:
            if asked.want_shut_down:
                hands_over = not asked.want_fence and leads()
                return (
                    BrokerControlState.CONTROLLED_SHUTDOWN
                    if hands_over
                    else BrokerControlState.SHUTDOWN_NOW
                )
            return BrokerControlState.FENCED if asked.want_fence else BrokerControlState.UNFENCED
        case _:
            assert standing.shutdown_at is not None
            is_known = standing.shutdown_at <= standing.lowest_active
            return (
                BrokerControlState.SHUTDOWN_NOW
                if is_known and not leads()
                else BrokerControlState.CONTROLLED_SHUTDOWN
            )


def beat(
    image: MetadataImage, asked: BrokerHeartbeatRequest, sessions: BrokerSessions
) -> Decision[BrokerHeartbeatAnswer]:
    """Decides on a heartbeat; the sessions stay as they are."""
    node = asked.broker_id
    try:
        broker = check_epoch(image, node, asked.broker_epoch)
    except Refusal as refusal:
        refused = BrokerHeartbeatAnswer(
            error_code=refusal.error_code, error_message=refusal.message
        )
        return Decision(records=(), results=(refused,))
    standing = Standing(
        is_fenced=broker.fenced,
        registered_at=sessions.registered_at(broker),
        shutdown_at=sessions.shutdown_at(node),
        lowest_active=sessions.lowest_active(image.brokers.values()),
    )
    following = next_state(standing, asked, lambda: leads_any(image, node))
    records: list[MetadataRecord] = []
    if following is not standing.state:
        records += _moved(image, broker, following)
    if not set(asked.offline_log_dirs).isdisjoint(broker.log_dirs):
        moved = image.apply_entry(records) if records else image
        records += _offline(moved, broker, asked.offline_log_dirs)
    answer = BrokerHeartbeatAnswer(
        is_caught_up=asked.current_metadata_offset >= standing.registered_at,
        is_fenced=following in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
        in_controlled_shutdown=following is BrokerControlState.CONTROLLED_SHUTDOWN,
        should_shut_down=following is BrokerControlState.SHUTDOWN_NOW,
    )
    return Decision(records=tuple(records), results=(answer,))


def fence(image: MetadataImage, asked: FenceBroker) -> Decision[None]:
    """Fences a broker whose session has expired, unless another process took its place."""
    broker = image.brokers.get(asked.node_id)
    if broker is None or broker.broker_epoch != asked.broker_epoch or broker.fenced:
        return Decision(records=(), results=())
    return Decision(records=tuple(_fenced(image, broker)), results=())


def unregister(image: MetadataImage, node_id: NodeId) -> Decision[Outcome]:
    """Removes a broker from the cluster: it leads nothing, and is in sync nowhere else."""
    broker = image.brokers.get(node_id)
    if broker is None:
        refused = Outcome(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=f"Broker ID {node_id} is not currently registered",
        )
        return Decision(records=(), results=(refused,))
    records = [
        *_left(image, node_id),
        UnregisterBrokerRecord(broker_id=node_id, broker_epoch=broker.broker_epoch),
    ]
    return Decision(records=tuple(records), results=(Outcome(),))


def balance(image: MetadataImage, elections_max: int) -> Decision[None]:
    """Lets the first replica lead where another one does, as far as it can."""
    found = elect_all(not_preferred(image), Electorate(image), election=Election.PREFERRED)
    return Decision(records=tuple(found[:elections_max]), results=())


def _moved(
    image: MetadataImage, broker: RegisterBrokerRecord, following: BrokerControlState
) -> list[MetadataRecord]:
    node = broker.broker_id
    match following:
        case BrokerControlState.UNFENCED:
            return [
                _change(broker, fenced=_UNFENCE),
                *elect_all(leaderless(image), Electorate(image, with_=node)),
            ]
        case BrokerControlState.CONTROLLED_SHUTDOWN:
            begun = [] if broker.in_controlled_shutdown else [_change(broker, shuts_down=True)]
            return [*begun, *_left(image, node)]
        case _:
            return [] if broker.fenced else _fenced(image, broker)


def _fenced(image: MetadataImage, broker: RegisterBrokerRecord) -> list[MetadataRecord]:
    return [*_left(image, broker.broker_id), _change(broker, fenced=_FENCE)]


def _left(image: MetadataImage, node: NodeId) -> list[MetadataRecord]:
    return elect_all(in_sync(image, node), Electorate(image, without=node), leaving=node)


def _offline(
    image: MetadataImage, broker: RegisterBrokerRecord, offline: Sequence[UUID]
) -> list[MetadataRecord]:
    """What follows from log folders that failed."""
    gone = set(offline).intersection(broker.log_dirs)
    node = broker.broker_id

    def was_there(partition: PartitionImage) -> bool:
        return node in partition.replicas and directory_of(partition, node) in gone

    return [
        *elect_all(partitions(image, was_there), Electorate(image, without=node), leaving=node),
        BrokerRegistrationChangeRecord(
            broker_id=node,
            broker_epoch=broker.broker_epoch,
            log_dirs=without(broker.log_dirs, gone),
        ),
    ]


def _change(
    broker: RegisterBrokerRecord, *, fenced: int = 0, shuts_down: bool = False
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=fenced,
        in_controlled_shutdown=_SHUTS_DOWN if shuts_down else 0,
    )
