"""What a process of a client is told, and how it is ended: SIGTERM, at which it says all it knows.

python -m tests.system.cluster_faults.clients.LIBRARY ROLE '{"name": ..., ...}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.system.cluster_faults.history import Writer


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


Role = Callable[[Options, Writer, Ending], None]


def words_for(clients: Iterable[tuple[str, Options]]) -> str:
    """The last word of the command."""
    return json.dumps([(role, asdict(options)) for role, options in clients])


def run_clients(roles: Mapping[str, Role]) -> None:
    """Runs those of the command line until SIGTERM; one that fails ends the process."""
    ending = Ending()
    with ThreadPoolExecutor() as pool:
        clients = [
            pool.submit(_run, roles[role], Options(**told), ending)
            for role, told in json.loads(sys.argv[1])
        ]
        for client in as_completed(clients):
            if client.exception() is not None:
                traceback.print_exception(client.exception())
                sys.stderr.flush()
                os._exit(1)


def _run(role: Role, options: Options, ending: Ending) -> None:
    with Writer(options.history_path) as writer:
        role(options, writer, ending)
