"""Heartbeats of brokers, and the states between which they move a broker (KIP-631, KIP-841).

    FENCED ──has reached its registration──► UNFENCED ──wants to stop, leads──► CONTROLLED_SHUTDOWN
      ▲                                        │  │ wants to stop,                     │
      └──────────wants to be fenced────────────┘  │ leads nothing        leads nothing, and all
      │ wants to stop                             ▼                      others know it
      └─────────────────────────────────────► SHUTDOWN_NOW ◄───────────────────────────┘

A fenced broker leads nothing, and is in sync nowhere. One that is shutting down hands its
leaderships over first. A partition with one replica has nobody to go to: it stays without a leader
until its broker is back.

As Kafka's BrokerHeartbeatManager and ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from strandline.broker.cluster.metadata.controller_messages import Decision, Outcome, Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.controller.broker_epoch import check_epoch
from strandline.broker.controller.directories import without
from strandline.broker.controller.messages import (
    BrokerHeartbeatAnswer,
    FenceBroker,
    UnregisterBroker,
)
from strandline.broker.controller.partitions.decided import Partitions
from strandline.broker.controller.partitions.elections import come_back, leave
from strandline.broker.controller.partitions.turns import Finish
from strandline.broker.controller.sessions import BrokerSessions
from strandline.broker.protocol.formats.metadata_records import (
    BrokerRegistrationChangeRecord,
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
    # It began to, also under an earlier controller, which knew where that ended.
    hands_over: bool = False
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
                hands_over = not asked.want_fence and (standing.hands_over or leads())
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
    partitions: Partitions, asked: BrokerHeartbeatRequest, sessions: BrokerSessions
) -> Decision[BrokerHeartbeatAnswer]:
    """Decides on a heartbeat; the sessions stay as they are."""
    node, image = asked.broker_id, partitions.image
    try:
        broker = check_epoch(image, node, asked.broker_epoch)
    except Refusal as refusal:
        refused = BrokerHeartbeatAnswer(
            error_code=refusal.error_code, error_message=refusal.message
        )
        return Decision(records=(), results=(refused,))
    standing = Standing(
        is_fenced=broker.fenced,
        hands_over=broker.in_controlled_shutdown,
        registered_at=sessions.registered_at(broker),
        shutdown_at=sessions.shutdown_at(node),
        lowest_active=sessions.lowest_active(image.brokers.values()),
    )
    following = next_state(standing, asked, lambda: partitions.index.leads_any(node))
    answer = BrokerHeartbeatAnswer(
        is_caught_up=asked.current_metadata_offset >= standing.registered_at,
        is_fenced=following in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
        in_controlled_shutdown=following is BrokerControlState.CONTROLLED_SHUTDOWN,
        should_shut_down=following is BrokerControlState.SHUTDOWN_NOW,
    )

    def lose_folders(image: MetadataImage) -> Decision[BrokerHeartbeatAnswer]:
        return _lose_folders(partitions.at(image), asked, answer)

    def finish(_image: MetadataImage) -> Decision[BrokerHeartbeatAnswer]:
        if set(asked.offline_log_dirs).isdisjoint(broker.log_dirs):
            return Decision(records=(), results=(answer,))
        return Decision(records=(), results=(), then=lose_folders)

    if following is standing.state:
        return finish(image)
    return _move(partitions, broker, following, finish)


def fence(
    partitions: Partitions, asked: FenceBroker, *, heard_s: float | None = None
) -> Decision[None]:
    """Fences a broker whose session has expired, unless another process took its place, or it was
    heard again (`heard_s`) while earlier entries were in flight.
    """
    broker = partitions.image.brokers.get(asked.node_id)
    is_this = broker is not None and broker.broker_epoch == asked.broker_epoch
    if broker is None or not is_this or broker.fenced or heard_s is not None:
        return Decision(records=(), results=())
    fenced: Decision[None] = Decision(records=(_change(broker, fenced=_FENCE),), results=())
    return leave(partitions, broker.broker_id, lambda _: fenced)


def unregister(partitions: Partitions, asked: UnregisterBroker) -> Decision[Outcome]:
    """Removes a broker from the cluster: it leads nothing, and is in sync nowhere else."""
    node_id = asked.node_id
    broker = partitions.image.brokers.get(node_id)
    if broker is None:
        refused = Outcome(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=f"Broker ID {node_id} is not currently registered",
        )
        return Decision(records=(), results=(refused,))
    record = UnregisterBrokerRecord(broker_id=node_id, broker_epoch=broker.broker_epoch)
    gone = Decision(records=(record,), results=(Outcome(),))
    return leave(partitions, node_id, lambda _: gone)


def _move(
    partitions: Partitions,
    broker: RegisterBrokerRecord,
    following: BrokerControlState,
    finish: Finish[BrokerHeartbeatAnswer],
) -> Decision[BrokerHeartbeatAnswer]:
    node = broker.broker_id
    match following:
        case BrokerControlState.UNFENCED:
            unfenced = _change(broker, fenced=_UNFENCE)
            return come_back(partitions, node, finish, first=(unfenced,))
        case BrokerControlState.CONTROLLED_SHUTDOWN:
            begun = () if broker.in_controlled_shutdown else (_change(broker, shuts_down=True),)
            return leave(partitions, node, finish, first=begun)
        case _ if broker.fenced:
            return finish(partitions.image)
        case _:

            def fenced(image: MetadataImage) -> Decision[BrokerHeartbeatAnswer]:
                after = finish(image)
                return replace(after, records=(_change(broker, fenced=_FENCE), *after.records))

            return leave(partitions, node, fenced)


def _lose_folders(
    partitions: Partitions, asked: BrokerHeartbeatRequest, answer: BrokerHeartbeatAnswer
) -> Decision[BrokerHeartbeatAnswer]:
    """What follows from log folders that failed."""
    node = asked.broker_id
    broker = partitions.image.brokers[node]
    gone = [one for one in dict.fromkeys(asked.offline_log_dirs) if one in broker.log_dirs]
    record = BrokerRegistrationChangeRecord(
        broker_id=node,
        broker_epoch=broker.broker_epoch,
        log_dirs=without(broker.log_dirs, gone),
    )
    lost = Decision(records=(record,), results=(answer,))
    places = [place for directory in gone for place in partitions.index.in_folder(directory)]
    return leave(partitions, node, lambda _: lost, places=places)


def _change(
    broker: RegisterBrokerRecord, *, fenced: int = 0, shuts_down: bool = False
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=fenced,
        in_controlled_shutdown=_SHUTS_DOWN if shuts_down else 0,
    )
