"""How long a thread was ready to run and had no core.

The kernel counts it for each thread (`/proc/.../schedstat`): from the moment that what it waited
for was there to the moment that it ran, in all, and how often it was given a core. To be given one
takes its time where all of them are free, too, and a thread that wakes up thousands of times in a
second has much of that. It is left out.
"""

from __future__ import annotations

import os
from pathlib import Path

_OWN = Path("/proc/thread-self/schedstat")
_LINE_BYTES_MAX = 100
_NS_PER_S = 1_000_000_000
# What a free core may take.
_FREE_CORE_NS = 20_000


class CoreWait:
    """That of the thread that makes it; any thread may read it."""

    def __init__(self, path: Path = _OWN) -> None:
        """Raises OSError where the kernel does not count it."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._total_ns = self._times = 0
        self.read_s()

    def read_s(self) -> float:
        """What it waited since this was read last."""
        _, total, times = os.pread(self._descriptor, _LINE_BYTES_MAX, 0).split()
        total_ns, times_now = int(total), int(times)
        waited_ns = total_ns - self._total_ns - (times_now - self._times) * _FREE_CORE_NS
        self._total_ns, self._times = total_ns, times_now
        return max(waited_ns, 0) / _NS_PER_S

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
