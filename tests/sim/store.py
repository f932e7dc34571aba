"""An object store in virtual time: requests that fail before and after their effect, and late ones.

How long a request takes is drawn by the pool that sends it (`cluster.py`). A write that is late
takes effect some time after its sender was told that it failed, as a request that a network held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random

from strandline.storage.errors import TierUnavailable
from tests.sim.loop import VirtualClock, VirtualLoop
from tests.support.memory_store import Fault, MemoryStore, Timing

WRITES = ("put", "delete")
LATE_S = (0.5, 20.0)


class VirtualStore(MemoryStore):
    """A store that fails by chance, or altogether while `is_away`."""

    def __init__(self, loop: VirtualLoop, random: Random, trace: Callable[..., None]) -> None:
        super().__init__(clock=VirtualClock(loop))
        self._loop = loop
        self._random = random
        self._trace = trace
        self.failing_part = 0.0
        self.is_away = False

    def _operation(
        self, operation: str, key: str, start: int = 0, end: int = -1
    ) -> AbstractContextManager[Fault | None]:
        # The check of conditional writes races in threads of its own, in no order.
        if threading.current_thread() is threading.main_thread():
            return self._traced(operation, key, start, end)
        return super()._operation(operation, key, start, end)

    @contextmanager
    def _traced(self, operation: str, key: str, start: int, end: int) -> Iterator[Fault | None]:
        moment = self._draw(operation)
        self._trace("store", operation, key, start, end, moment.name if moment else "")
        if moment is not None:
            self._faults.insert(0, Fault(error=TierUnavailable, moment=moment))
        if moment is Timing.LATE:
            self._loop.call_later(self._random.uniform(*LATE_S), self.deliver_late)
        with super()._operation(operation, key, start, end) as fault:
            yield fault

    def _draw(self, operation: str) -> Timing | None:
        if self.is_away:
            return Timing.BEFORE
        if self._random.random() >= self.failing_part:
            return None
        if operation not in WRITES:
            return Timing.BEFORE
        return self._random.choice([Timing.BEFORE, Timing.AFTER, Timing.LATE])
