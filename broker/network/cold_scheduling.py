"""Schedules cold answers in turns, while there is live traffic.

    connection with a cold answer ──enter──► queue ──one in each turn of the loop──► take_turn
                 ▲                                                                       │
                 └────────────── more to send, and its socket has room ─────────────────┘

Between two of these turns the loop polls its sockets, so a live request waits for one small turn at
most, however many consumers read cold. `ColdPace` decides how much may be sent; each tick reports
its own delay. Without live traffic, all connections send as if there were no turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from strandline.broker.quotas.cold_pace import TICK_S, ColdPace
from strandline.storage.system.timer import Ticks

log = logging.getLogger(__name__)


class TurnTaker(Protocol):
    """A connection with a cold answer to send."""

    def take_turn(self, bytes_max: int) -> int:
        """Sends about `bytes_max` bytes; returns how many. Enters again if more are left."""
        ...

    def go_on(self) -> None:
        """Resumes normal sending, as turns are no longer needed."""
        ...


class ColdSchedule:
    """The queue of connections with cold answers, and the ticks that measure their delay."""

    def __init__(self, pace: ColdPace, now_s: Callable[[], float]) -> None:
        self._pace = pace
        self._now_s = now_s
        self._loop = asyncio.get_running_loop()
        # At most one entry for each connection.
        self._queue: deque[TurnTaker] = deque()
        # Created when first needed: few brokers have both live traffic and cold reads.
        self._ticks: Ticks | None = None
        self._has_no_ticks = False
        self._is_ticking = False
        self._is_due = False

    def __repr__(self) -> str:
        return f"<ColdSchedule waiting={len(self._queue)} ticking={self._is_ticking}>"

    @property
    def is_needed(self) -> bool:
        """Whether cold answers have to wait for their turn."""
        return self._pace.is_held(self._now_s()) and self._can_tick()

    def enter(self, sender: TurnTaker) -> None:
        """Queues the sender for one call of `take_turn` or `go_on` in a later turn of the loop."""
        self._queue.append(sender)
        self._pace.waiting_count = len(self._queue)
        if not self._is_ticking:
            self._start_ticking()
        self._run_soon()

    def leave(self, sender: TurnTaker) -> None:
        """Removes a sender without data."""
        self._queue.remove(sender)
        self._pace.waiting_count = len(self._queue)

    def close(self) -> None:
        """Stops the ticks. The queue must be empty."""
        self._stop_ticking()
        self._has_no_ticks = True
        if self._ticks is not None:
            self._loop.remove_reader(self._ticks.fileno())
            self._ticks.close()
            self._ticks = None

    # --- turns -------------------------------------------------------------------------------

    def _run_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        now_s = self._now_s()
        if not self._pace.is_held(now_s):
            self._resume_all()
        elif self._queue:
            bytes_max = self._pace.turn_bytes(now_s)
            if not bytes_max:
                return  # until a tick
            self._pace.sent(self._take_turn(bytes_max))
            # Senders that have to wait for a tick are found here, without a turn of the loop.
            if self._queue and self._pace.turn_bytes(now_s):
                self._run_soon()

    def _take_turn(self, bytes_max: int) -> int:
        """Runs the turn of the longest waiting sender, which may enter again meanwhile."""
        sender = self._queue.popleft()
        self._pace.waiting_count = len(self._queue)
        self._is_due = True
        try:
            return sender.take_turn(bytes_max)
        finally:
            self._is_due = False

    def _resume_all(self) -> None:
        self._stop_ticking()
        waiting, self._queue = self._queue, deque()
        self._pace.waiting_count = 0
        for sender in waiting:
            sender.go_on()

    # --- ticks -------------------------------------------------------------------------------

    def _can_tick(self) -> bool:
        if self._ticks is None and not self._has_no_ticks:
            try:
                self._ticks = Ticks()
            except OSError as error:
                # Without ticks the delay of live traffic is unknown: cold answers go normally.
                self._has_no_ticks = True
                log.warning("cold reads do not yield", extra={"fields": {"error": str(error)}})
            else:
                self._loop.add_reader(self._ticks.fileno(), self._on_tick)
        return not self._has_no_ticks

    def _start_ticking(self) -> None:
        assert self._ticks is not None
        self._is_ticking = True
        self._ticks.start(TICK_S, self._now_s())

    def _stop_ticking(self) -> None:
        if self._is_ticking:
            assert self._ticks is not None
            self._is_ticking = False
            self._ticks.stop()
            self._pace.stood_still(self._now_s())

    def _on_tick(self) -> None:
        assert self._ticks is not None
        now_s = self._now_s()
        lateness_s = self._ticks.read_lateness_s(now_s)
        if lateness_s is None or not self._is_ticking:
            return
        if not self._queue and (self._pace.is_idle(now_s) or not self._pace.is_held(now_s)):
            self._stop_ticking()
            return
        self._pace.ticked(lateness_s, now_s)
        if not self._is_due:
            self._run()
