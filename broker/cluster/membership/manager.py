"""Registers a broker with the active controller, and tells it that the broker lives, until it left.

The shell around `BrokerLifecycle`: it sends what that says, and waits as long.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final

from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.membership.lifecycle import NO_EPOCH, BrokerLifecycle, BrokerState
from strandline.broker.peers.errors import PeerError
from strandline.broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from strandline.broker.protocol.messages.broker_registration import BrokerRegistrationResponse
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage import entropy
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import wait_within
from strandline.storage.model import Offset
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# broker.session.timeout.ms and its half, as Kafka's channel of heartbeats: a controller that stands
# still leaves time for the next one.
SESSION_S: Final = 9.0
ANSWER_S_MAX: Final = SESSION_S / 2
# As Kafka waits for a controlled shutdown.
SHUTDOWN_S_MAX: Final = 300.0

# What a refused registration means.
_REASONS: Final = {
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: (
        "another process has this node.id, or the last one was killed and its session lasts"
        " (broker.session.timeout.ms); trying again"
    ),
    ErrorCode.BROKER_ID_NOT_REGISTERED: "the broker was unregistered",
    ErrorCode.STALE_BROKER_EPOCH: (
        "another process registered under this node.id since, or the broker was unregistered"
    ),
}


class LifecycleManager:
    """Owner of the state of this broker in its cluster. Used on the event loop only."""

    def __init__(
        self,
        lifecycle: BrokerLifecycle,
        channel: ControllerChannel,
        clock: Clock,
        *,
        metadata_offset: Callable[[], Offset],
        failed_dirs: Callable[[], set[uuid.UUID]] = set,
        lacks_folders: Callable[[], bool] = lambda: False,
    ) -> None:
        """`metadata_offset` is the last record that was applied, `failed_dirs` are offline.

        `lacks_folders` says whether the metadata want folders of this broker and have none.
        """
        self._lifecycle = lifecycle
        self._channel = channel
        self._metadata_offset = metadata_offset
        self._failed_dirs = failed_dirs
        self._lacks_folders = lacks_folders
        self._quiet_log = QuietLog(log, clock)
        self._woken = asyncio.Event()
        self._changed = asyncio.Event()
        # Why the last attempt to register failed.
        self.last_refusal = ""
        self._reconnects = False

    def __repr__(self) -> str:
        return f"<LifecycleManager {self.state.name} epoch={self.epoch}>"

    @property
    def state(self) -> BrokerState:
        return self._lifecycle.state

    @property
    def epoch(self) -> int:
        """The broker epoch of this run, -1 before it is registered."""
        return self._lifecycle.epoch

    async def run(self) -> None:
        """Registers, and sends heartbeats until the broker has left. Raises RegistrationRefused."""
        try:
            while not self._lifecycle.is_over:
                self._lifecycle.offline_dirs |= self._failed_dirs()
                if self._lifecycle.note_folders(are_missing=self._lacks_folders()):
                    log.info("broker registers again: the metadata lack its log folders")
                wait_ms = await self._communicate()
                moved, self._changed = self._changed, asyncio.Event()
                moved.set()
                if wait_ms and not self._lifecycle.is_over:
                    await wait_within(self._woken, wait_ms / 1000)
                self._woken.clear()
        finally:
            self._channel.close()

    async def registered(self) -> int:
        """Returns the broker epoch when the broker is registered."""
        await self._until(lambda: self._lifecycle.is_registered)
        return self.epoch

    @property
    def vouches(self) -> bool:
        """Whether the controller was told that the logs have all that the last run wrote."""
        return self._lifecycle.registration.previous_epoch != NO_EPOCH

    async def register_anew(self) -> int:
        """Registers as a process whose logs lack something; returns its broker epoch.

        Kafka's controllers wait for the end of the session that this one began. Ours sees that its
        connection is closed.
        """
        self._lifecycle.begin_anew(entropy.new_id())
        self._reconnects = True
        self._woken.set()
        return await self.registered()

    async def serve(self) -> None:
        """The broker may lead from now on: returns when the controller has unfenced it."""
        self._lifecycle.is_ready = True
        self._woken.set()
        await self._until(lambda: self.state not in (BrokerState.STARTING, BrokerState.RECOVERY))

    async def leave(self) -> None:
        """Asks the controller to move leaders away; returns when it has, or gives up waiting."""
        self._lifecycle.begin_shutdown()
        self._woken.set()
        try:
            async with asyncio.timeout(SHUTDOWN_S_MAX):
                await self._until(lambda: self._lifecycle.is_over)
        except TimeoutError:
            fields = {"waited_s": SHUTDOWN_S_MAX}
            log.warning("the controller did not move leaders away", extra={"fields": fields})

    async def _until(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            await self._changed.wait()

    async def _communicate(self) -> int:
        """Asks once; returns ms until the next request. Raises RegistrationRefused."""
        before = self.state
        # Nobody waits long for a stop.
        is_leaving = before is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        limit_s = ANSWER_S_MAX if is_leaving else SESSION_S
        if self._reconnects:
            self._reconnects = False
            self._channel.close()
        request = self._lifecycle.next_request(self._metadata_offset())
        try:
            if isinstance(request, BrokerHeartbeatRequest):
                heard = await self._channel.ask(
                    request,
                    BrokerHeartbeatResponse,
                    code_of=lambda found: found.error_code,
                    within_s=limit_s,
                    answer_s=ANSWER_S_MAX,
                )
                self._note(heard.error_code)
                wait_ms = self._lifecycle.heard(heard)
            else:
                answer = await self._channel.ask(
                    request,
                    BrokerRegistrationResponse,
                    code_of=lambda found: found.error_code,
                    within_s=limit_s,
                    answer_s=ANSWER_S_MAX,
                )
                self._note(answer.error_code)
                wait_ms = self._lifecycle.registered(answer)
        except PeerError as error:
            self.last_refusal = str(error)
            # Never at once after a failure.
            self._woken.clear()
            if is_leaving:
                log.warning("stopping without a controller: its leaders are not moved first")
                self._lifecycle.state = BrokerState.SHUTTING_DOWN
            return self._lifecycle.heartbeat_ms
        if self.state is not before:
            log.info(
                "broker is %s", self.state.name, extra={"fields": {"broker_epoch": self.epoch}}
            )
        return wait_ms

    def _note(self, error_code: int) -> None:
        code = ErrorCode(error_code)
        if code is ErrorCode.NONE:
            self.last_refusal = ""
            return
        self._woken.clear()
        self.last_refusal = f"{code.name}: {_REASONS.get(code, code.message)}"
        what = "heartbeat refused" if self._lifecycle.is_registered else "registration refused"
        fields = {
            "broker": self._lifecycle.registration.node_id,
            "error": code.name,
            "reason": _REASONS.get(code, code.message),
        }
        level = logging.ERROR if code is ErrorCode.STALE_BROKER_EPOCH else logging.WARNING
        self._quiet_log.say(level, what, code, fields)
