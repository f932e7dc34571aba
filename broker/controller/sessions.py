"""What the controller knows of brokers beside the metadata log: when it heard them, how far they
are. It is gone when the controller ends, and comes again with the next heartbeats.

A session belongs to one registration, a broker and its epoch, and lasts as long as heartbeats come
(`broker.session.timeout.ms`). A broker that was unfenced when the controller began has one from
then on, as if it had been heard (KAFKA-18138). Times are attended seconds (attended_time.py).

As in Kafka's BrokerHeartbeatTracker and BrokerHeartbeatManager. Beyond them: a session remembers
whether its broker has a connection to this controller, which a restart of the same broker makes use
of: after the loss of all processes none has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord
from strandline.storage.model import Offset

# A broker and the epoch of its registration.
Registration: TypeAlias = tuple[NodeId, int]

# The offset that a broker without a heartbeat has reached.
NOWHERE: Final = -1
# If no broker is active, no one is behind.
EVERYWHERE: Final = 2**63 - 1


class Session(Enum):
    """Whether the process of a registration lives, as far as the controller knows."""

    NONE = auto()
    ALIVE = auto()
    # Its time is not over, but it has no connection: that was closed, as the end of a process does,
    # or it has sent no heartbeat yet to this controller, which began later.
    UNCONNECTED = auto()


@dataclass(slots=True)
class _Contact:
    heard_s: float
    is_connected: bool = True


@dataclass(slots=True)
class _Progress:
    """How far one registration is."""

    epoch: int
    registered_at: Offset
    reached: Offset = NOWHERE
    # Where the last of its leaderships was handed over, None unless it is shutting down.
    shutdown_at: Offset | None = None


class BrokerSessions:
    """The sessions and the progress of all registered brokers."""

    def __init__(self, image: MetadataImage, *, timeout_s: float, now_s: float) -> None:
        self.timeout_s = timeout_s
        self._contacts: dict[Registration, _Contact] = {}
        self._progress: dict[NodeId, _Progress] = {}
        for broker in image.brokers.values():
            self._progress[broker.broker_id] = _beginning(broker)
            if not broker.fenced:
                registration = (broker.broker_id, broker.broker_epoch)
                self._contacts[registration] = _Contact(now_s, is_connected=False)

    def __repr__(self) -> str:
        return f"<BrokerSessions {len(self._contacts)} of {len(self._progress)} brokers>"

    # --- sessions --------------------------------------------------------------------------------

    def heard(self, registration: Registration, now_s: float) -> None:
        """Notes a heartbeat, whatever becomes of it."""
        self._contacts[registration] = _Contact(now_s)

    def heard_s(self, registration: Registration) -> float | None:
        """Returns when the last heartbeat came; None if there is no session."""
        contact = self._contacts.get(registration)
        return None if contact is None else contact.heard_s

    def closed(self, registration: Registration) -> None:
        """Notes that the connection of the heartbeats was closed; the next heartbeat ends that."""
        contact = self._contacts.get(registration)
        if contact is not None:
            contact.is_connected = False

    def session(self, registration: Registration, now_s: float) -> Session:
        contact = self._contacts.get(registration)
        if contact is None or self._is_expired(contact, now_s):
            return Session.NONE
        return Session.ALIVE if contact.is_connected else Session.UNCONNECTED

    def expire(self, now_s: float) -> Registration | None:
        """Ends one session that has expired, and returns it."""
        for registration, contact in self._contacts.items():
            if self._is_expired(contact, now_s):
                del self._contacts[registration]
                return registration
        return None

    def _is_expired(self, contact: _Contact, now_s: float) -> bool:
        return contact.heard_s + self.timeout_s < now_s

    # --- progress --------------------------------------------------------------------------------

    def registered_at(self, broker: RegisterBrokerRecord) -> Offset:
        """Returns the offset of the last record of its registration."""
        progress = self._progress.get(broker.broker_id)
        return broker.broker_epoch if progress is None else progress.registered_at

    def note_registration(self, node_id: NodeId, registered_at: Offset) -> None:
        """Notes the offset of a registration that is in the log."""
        self._progress[node_id].registered_at = registered_at

    def note_progress(self, node_id: NodeId, reached: Offset) -> None:
        """Notes how far a broker says it is."""
        self._progress[node_id].reached = reached

    def note_shutdown(self, node_id: NodeId, end_offset: Offset) -> None:
        """Notes where the records end that move away what a broker leads; only the first time."""
        progress = self._progress[node_id]
        if progress.shutdown_at is None:
            progress.shutdown_at = end_offset

    def shutdown_at(self, node_id: NodeId) -> Offset | None:
        """Returns the offset that others must have reached before the broker ends."""
        progress = self._progress.get(node_id)
        return None if progress is None else progress.shutdown_at

    def lowest_active(self, brokers: Iterable[RegisterBrokerRecord]) -> Offset:
        """Returns how far all have come that are unfenced and not shutting down."""
        return min(
            (
                self._progress[broker.broker_id].reached
                for broker in brokers
                if not broker.fenced and self.shutdown_at(broker.broker_id) is None
            ),
            default=EVERYWHERE,
        )

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Follows the metadata: a fenced broker shuts down no longer, an unregistered one is gone.

        The sessions of older registrations end with them.
        """
        for broker in delta.brokers.changed():
            progress = self._progress.get(broker.broker_id)
            if progress is None or progress.epoch != broker.broker_epoch:
                self._progress[broker.broker_id] = _beginning(broker)
            elif broker.fenced:
                progress.shutdown_at = None
        for broker in delta.brokers.gone():
            self._progress.pop(broker.broker_id, None)
        if delta.brokers:
            epochs = {broker.broker_id: broker.broker_epoch for broker in image.brokers.values()}
            for registration in [one for one in self._contacts if epochs.get(one[0]) != one[1]]:
                del self._contacts[registration]


def _beginning(broker: RegisterBrokerRecord) -> _Progress:
    return _Progress(epoch=broker.broker_epoch, registered_at=broker.broker_epoch)
