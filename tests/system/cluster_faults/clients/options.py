"""What a process of a client is told, and how it is ended: SIGTERM, at which it says all it knows.

python -m tests.system.cluster_faults.clients.LIBRARY ROLE '{"name": ..., ...}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of one client; `records_per_s` is the most that a producer sends."""

    name: str
    bootstrap: str
    topic: str
    partitions: int
    history: str
    group: str = ""
    is_idempotent: bool = False
    is_read_committed: bool = False
    records_per_s: int = 200
    value_bytes: int = 60

    @property
    def history_path(self) -> Path:
        return Path(self.history)

    @property
    def generation(self) -> str:
        """The name of the producers of one process; no other process has it."""
        return f"{self.name}.{os.getpid()}-{time.monotonic_ns() // 1_000_000}"

    def words(self) -> str:
        return json.dumps(asdict(self))


class Ending:
    """Whether SIGTERM came."""

    def __init__(self) -> None:
        self.has_come = False
        signal.signal(signal.SIGTERM, self._come)

    def _come(self, *_: object) -> None:
        self.has_come = True


class Pace:
    """How many records a producer may send now."""

    def __init__(self, records_per_s: int) -> None:
        self._records_per_s = records_per_s
        self._began_s = time.monotonic()
        self._taken = 0

    def take(self) -> int:
        """Those that became due since the last call, a second's at most."""
        due = int((time.monotonic() - self._began_s) * self._records_per_s) - self._taken
        self._taken += due
        return min(due, self._records_per_s)


def begun() -> tuple[str, Options]:
    """The role and the options of this process."""
    return sys.argv[1], Options(**json.loads(sys.argv[2]))
