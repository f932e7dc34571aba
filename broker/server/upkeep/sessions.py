"""What a controller does for its brokers by itself: ends sessions, and elects leaders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from strandline.broker.cluster.metadata.controller_messages import Controller
from strandline.broker.controller.attended_time import AttendedTime
from strandline.broker.controller.config import ControllerConfig
from strandline.broker.controller.messages import (
    BalanceLeaders,
    ElectUncleanLeaders,
    FenceBroker,
)
from strandline.broker.controller.sessions import BrokerSessions
from strandline.storage.errors import StorageError

log = logging.getLogger(__name__)

# How often it looks for sessions that have expired: more often than time may stand still
# (attended_time.py), and a small part of a session.
LOOK_S: Final = 0.25


class SessionUpkeep:
    """The loops of a controller."""

    def __init__(
        self,
        controller: Controller,
        sessions: BrokerSessions,
        time: AttendedTime,
        config: Callable[[], ControllerConfig],
    ) -> None:
        """`config` is read again each time."""
        self._controller = controller
        self._sessions = sessions
        self._time = time
        self._config = config

    async def fence_forever(self) -> None:
        """Fences brokers that were not heard for a session."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._sessions.timeout_s = self._config().session_timeout_ms / 1000
            now_s = self._time.now_s()
            while (expired := self._sessions.expire(now_s)) is not None:
                node_id, epoch = expired
                log.info(
                    "broker fenced: its session expired",
                    extra={"fields": {"broker": node_id, "epoch": epoch}},
                )
                try:
                    await self._controller.ask(FenceBroker(node_id, epoch))
                except StorageError as error:
                    # The next look tries again.
                    self._sessions.heard(expired, now_s - self._sessions.timeout_s)
                    log.warning(
                        "broker not fenced",
                        extra={"fields": {"broker": node_id, "error": str(error)}},
                    )
                    break

    async def balance_forever(self) -> None:
        """Lets the first replicas lead again, when they can."""
        while True:
            await asyncio.sleep(self._config().balance_interval_s)
            if self._config().balances_leaders:
                try:
                    await self._controller.ask(BalanceLeaders())
                except StorageError as error:
                    log.warning("leaders not balanced", extra={"fields": {"error": str(error)}})

    async def elect_uncleanly_forever(self) -> None:
        """Elects leaders where there are none, and records may be lost for it."""
        while True:
            await asyncio.sleep(self._config().unclean_interval_ms / 1000)
            try:
                await self._controller.ask(ElectUncleanLeaders())
            except StorageError as error:
                log.warning("leaders not elected", extra={"fields": {"error": str(error)}})
