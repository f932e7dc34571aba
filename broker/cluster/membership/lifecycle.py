"""The life of a broker in a cluster, as its controller knows it (Kafka's BrokerLifecycleManager).

    STARTING ──caught up──► RECOVERY ──unfenced──► RUNNING ──stop──► PENDING_CONTROLLED_SHUTDOWN
        │ registered, fenced    │ logs are loaded      │ leads              │ leaders move away
        └───────────────────────┴──── stop ────────────┴──► SHUTTING_DOWN ◄─┘ the controller is done

`BrokerLifecycle` decides: what is asked next, what an answer changes, and how long to wait. It has
no clock and no connection; `LifecycleManager` sends and waits.

A registration that was refused is tried again until initial.broker.registration.timeout.ms: a
process that was killed stays registered until its session ends (DUPLICATE_BROKER_REGISTRATION).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from strandline.broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from strandline.broker.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    RegisteringFeature,
    RegisteringListener,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import StrandlineError

NO_EPOCH: Final = -1
# Kafka's waits where the next answer is likely to be another one.
CAUGHT_UP_MS: Final = 10
FIRST_SHUTDOWN_MS: Final = 50


class BrokerState(IntEnum):
    """Kafka's BrokerState, with the numbers of its metric."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class RegistrationRefused(StrandlineError):
    """The controllers will not take this broker, whatever it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker tells of itself."""

    node_id: int
    cluster_id: str
    incarnation_id: uuid.UUID
    listeners: Sequence[RegisteringListener]
    features: Sequence[RegisteringFeature]
    rack: str | None
    log_dirs: Sequence[uuid.UUID]
    # That of the last run, if all that it wrote is there.
    previous_epoch: int = NO_EPOCH


# The controller does not know this run of the broker any more.
_UNKNOWN_BROKER: Final = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
# Refusals that no second attempt changes.
_FINAL: Final = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: (
        "these are the controllers of another cluster than the one whose id is in meta.properties"
    ),
    ErrorCode.UNSUPPORTED_VERSION: (
        "the cluster has finalized a feature that this broker does not support, or the controllers"
        " are older than metadata.version 3.3-IV3"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "the user as which this broker logs in may not act as a broker: it needs ClusterAction on"
        " the cluster"
    ),
    ErrorCode.INVALID_REGISTRATION: "the listeners or folders of this broker are not accepted",
}


@dataclass(slots=True)
class BrokerLifecycle:
    """The state of one run of a broker."""

    registration: Registration
    heartbeat_ms: int
    state: BrokerState = BrokerState.STARTING
    # That of this run, while it is registered.
    epoch: int = NO_EPOCH
    is_ready: bool = False
    offline_dirs: set[uuid.UUID] = field(default_factory=set)
    _is_registered: bool = False
    _has_shutdown_answer: bool = False
    _lacks_folders: bool = False

    @property
    def is_registered(self) -> bool:
        return self._is_registered

    @property
    def is_over(self) -> bool:
        return self.state is BrokerState.SHUTTING_DOWN

    def next_request(
        self, metadata_offset: int
    ) -> BrokerRegistrationRequest | BrokerHeartbeatRequest:
        """Returns what to ask now; `metadata_offset` is that of the last record applied."""
        told = self.registration
        if not self._is_registered:
            return BrokerRegistrationRequest(
                broker_id=told.node_id,
                cluster_id=told.cluster_id,
                incarnation_id=told.incarnation_id,
                listeners=told.listeners,
                features=told.features,
                rack=told.rack,
                log_dirs=sorted(told.log_dirs),
                previous_broker_epoch=told.previous_epoch,
            )
        return BrokerHeartbeatRequest(
            broker_id=told.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=metadata_offset,
            want_fence=not self.is_ready,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=sorted(self.offline_dirs),
        )

    def registered(self, answer: BrokerRegistrationResponse) -> int:
        """Takes over the answer to a registration; returns ms until the next request.

        Raises RegistrationRefused.
        """
        code = ErrorCode(answer.error_code)
        if code in _FINAL:
            raise RegistrationRefused(
                f"broker {self.registration.node_id} is not registered ({code.name}):"
                f" {_FINAL[code]}"
            )
        if code is not ErrorCode.NONE:
            return self.heartbeat_ms
        self.epoch = answer.broker_epoch
        self._is_registered = True
        return 0

    def heard(self, answer: BrokerHeartbeatResponse) -> int:
        """Takes over the answer to a heartbeat; returns ms until the next request."""
        if answer.error_code != ErrorCode.NONE:
            is_leaving = self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
            if is_leaving and answer.error_code in _UNKNOWN_BROKER:
                # It leads nothing that could be moved.
                self.state = BrokerState.SHUTTING_DOWN
            return self.heartbeat_ms
        match self.state:
            case BrokerState.STARTING:
                if answer.is_caught_up:
                    self.state = BrokerState.RECOVERY
                return CAUGHT_UP_MS
            case BrokerState.RECOVERY:
                if not answer.is_fenced:
                    self.state = BrokerState.RUNNING
            case BrokerState.PENDING_CONTROLLED_SHUTDOWN:
                is_first, self._has_shutdown_answer = not self._has_shutdown_answer, True
                if answer.should_shut_down:
                    self.state = BrokerState.SHUTTING_DOWN
                elif is_first:
                    return FIRST_SHUTDOWN_MS
            case _:
                pass
        return self.heartbeat_ms

    def begin_shutdown(self) -> None:
        """Leaves: at once, or when the controller has moved what this broker leads."""
        if self.state is BrokerState.RUNNING:
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        elif self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self.state = BrokerState.SHUTTING_DOWN

    def begin_anew(self, incarnation_id: uuid.UUID) -> None:
        """Registers once more, as a process that does not have all that the last run wrote.

        To the controller it is another process, and this one has ended.
        """
        assert not self.is_ready, "others may rely on it already"
        self.registration = replace(
            self.registration, incarnation_id=incarnation_id, previous_epoch=NO_EPOCH
        )
        self.state = BrokerState.STARTING
        self._is_registered = False

    def note_folders(self, *, are_missing: bool) -> bool:
        """Registers again if the metadata have begun to want folders, and have none of this broker.

        So it is after an upgrade to metadata.version 3.7-IV2 or higher: controllers dropped them
        before (Kafka's BrokerRegistrationTracker). Returns whether it registers again.
        """
        begins = are_missing and not self._lacks_folders and self._is_registered
        self._lacks_folders = are_missing
        if begins:
            self._is_registered = False
        return begins


def features_of(levels: Collection[tuple[str, range]]) -> list[RegisteringFeature]:
    """Returns what a broker claims to know, by feature."""
    return [
        RegisteringFeature(
            name=name, min_supported_version=known.start, max_supported_version=known.stop - 1
        )
        for name, known in levels
    ]
