"""Seconds in which this process had its turn: how long somebody may wait says what the machine did.

A soak shares its machine with others and may run below all of them. Where nobody gets a core for a
minute, nobody is stuck either: the store, the broker and the clients all stood still. So patience
is not counted by the wall clock: a thread sleeps for TICK_S again and again, and each time counts
that much, however late it was woken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

TICK_S = 0.05


class Patience:
    """A clock of its own thread, which ends with the process."""

    def __init__(self, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep = sleep
        self._ticks = 0
        threading.Thread(target=self._tick, name="patience", daemon=True).start()

    def now_s(self) -> float:
        return self._ticks * TICK_S

    def _tick(self) -> None:
        while True:
            self._sleep(TICK_S)
            self._ticks += 1


PATIENCE = Patience()
