"""Full collections that stay short.

Python's collector looks at everything old when it looks for cycles among old objects, and the loop
stands still as long: 51 ms with a thousand partitions. Most of it lives as long as the process, and
is looked at again and again. What was there at the start is frozen, so is what has outlived a full
collection that had much to look at:

    young ──► old ──more than OLD_MAX outlive a full collection──► frozen, passed over from now on
     ▲                                                               │
     └──────────as many were frozen as lived at the last time────────┘   one complete look

Something frozen may end in a cycle that nobody finds. So when as much has been frozen as the last
complete look found alive, there is another one. That is rare, because a heap must double for it,
and it bounds what lies about by what lives. Invariant: at most OLD_MAX and what has come since are
looked at by any other collection.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from contextlib import suppress

# 30,000 objects are looked at in 3 ms.
OLD_MAX = 30_000
# Below this a complete look would not be rare: it is what a thousand partitions take.
FROZEN_MAX = 500_000
_FULL = 2


class Collector:
    """Turns Python's collector on, and sees to what it looks at."""

    def __init__(self, *, old_max: int = OLD_MAX, frozen_max: int = FROZEN_MAX) -> None:
        self._old_max = old_max
        self._frozen_max = frozen_max
        self._loop = asyncio.get_running_loop()
        # Frozen since the last complete look, and found alive by it.
        self._frozen = 0
        self._alive = 0
        self._is_due = False
        self.complete_looks = 0

    def start(self) -> None:
        """What lives now lives for good. It is not searched for garbage before: a start leaves a
        thousand objects of that.
        """
        gc.freeze()
        gc.callbacks.append(self._on_collection)
        gc.enable()

    def stop(self) -> None:
        """Python's collector goes on as it does by itself."""
        with suppress(ValueError):  # it never started
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """As `gc.callbacks` has it; in whichever thread made the last object."""
        if phase != "stop" or info["generation"] != _FULL or self._is_due:
            return
        survivors = len(gc.get_objects(generation=_FULL))
        if survivors <= self._old_max:
            return
        gc.freeze()
        self._frozen += survivors
        if self._frozen > max(self._frozen_max, self._alive) and not self._loop.is_closed():
            # A collection cannot be begun inside another one.
            self._is_due = True
            self._loop.call_soon_threadsafe(self._look_at_all)

    def _look_at_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._alive, self._frozen = gc.get_freeze_count(), 0
        self._is_due = False
        self.complete_looks += 1
