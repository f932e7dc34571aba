"""A cold rewind in a process of its own: reads a topic from its beginning, again and again.

    python -m bench.tiers.rewinder BOOTSTRAP COUNT [--aside]

With `--aside` it is in the idle scheduling class. It prints a line when it reads, and ends when
killed.

It shares only the machine with the hot clients. As a thread it would share their memory too: an
answer's buffer, mapped and unmapped, stops the process's threads on the other core. Real consumers
are separate processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.clients.rdkafka import ConsumeLoad, consumer
from bench.tiers.rig import TOPIC, WAIT_S
from strandline.storage.errors import StrandlineError

REWIND_PARTITIONS = 8
READING = "reading"


def step_aside(pid: int = 0) -> None:
    """Puts a process into the idle scheduling class, all its threads and its children's; 0: this.

    It gives way when somebody else becomes ready; what the kernel does for it, a packet on its way
    through, is done to the end.
    """
    folder = Path(f"/proc/{pid or os.getpid()}/task")
    for thread in folder.iterdir():
        # One may have ended since.
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
            for child in (thread / "children").read_text().split():
                step_aside(int(child))


class Rewind:
    """A rewind that is under way."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """It takes and asks for nothing; then it goes on where it stood."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


@contextmanager
def rewinding(bootstrap: str, count: int, *, is_aside: bool = False) -> Iterator[Rewind]:
    """Rewinds `count` records until the block ends. Raises StrandlineError if it failed in it."""
    command = [sys.executable, "-m", "bench.tiers.rewinder", bootstrap, str(count)]
    with subprocess.Popen(
        [*command, "--aside"] if is_aside else command, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            readable, _, _ = select.select([process.stdout], [], [], WAIT_S)
            if not readable or process.stdout.readline().strip() != READING:
                raise StrandlineError("the cold rewind did not begin")
            yield Rewind(process)
            if process.poll() is not None:
                raise StrandlineError("the cold rewind ended before the hot load")
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description="reads a topic again and again")
    parser.add_argument("bootstrap")
    parser.add_argument("count", type=int, help="records of all partitions that make one rewind")
    parser.add_argument("--aside", action="store_true", help="in the idle scheduling class")
    arguments = parser.parse_args()
    if arguments.aside:
        # Before the client's threads are there: they inherit it.
        step_aside()
    load = ConsumeLoad(topic=TOPIC, count=arguments.count, partitions=REWIND_PARTITIONS)
    has_begun = False
    while True:
        with consumer(arguments.bootstrap, load) as ready:
            if not has_begun:
                print(READING, flush=True)
                has_begun = True
            ready.run()


if __name__ == "__main__":
    main()
