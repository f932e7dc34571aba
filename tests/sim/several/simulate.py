"""`make simulate WORLDS=1000 SEED=7`: random fault schedules of a cluster.

A seed is a world: who its clients are, how many replicas and troubles it has, and all that happens
in it. The worlds of a run have the seeds from its first one on, and share nothing: each processor
plays one after the other. A world that breaks a promise is told with its seed, and the run ends
with 1; `make simulate WORLDS=1 SEED=…` plays it again.

    python -m tests.sim.several.simulate --worlds 1000 --seed 7
    python -m tests.sim.several.simulate --minutes 30
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.sim.several.archive import late_deletion
from tests.sim.several.scenarios import Clients, groups, play_scenario, records, transactions

SEEDS = 2**32
# Enough to see whether they have one cause.
FAILURES_MAX = 10
# After so many worlds a process is replaced by a new one, whatever it has kept.
WORLDS_OF_A_PROCESS = 200
# Where a power loss is simulated, nothing needs a device.
MEMORY = Path("/dev/shm")
# Of brokers that sync nothing: what two replicas have survives.
ONE_AT_A_TIME = ("power alone", "power alone", "kill", "pause", "apart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Worlds of one kind: its share of all, and what `play_scenario` is given."""

    share: int
    clients: Sequence[Clients]
    troubles: tuple[int, int] = (4, 9)
    only: Sequence[str] | None = None
    replicas: int = 3
    is_synced: bool = True
    is_archived: bool = False


KINDS = {
    "replicas": Kind(share=10, clients=(records, records, transactions, groups)),
    "one replica": Kind(share=3, clients=(records, transactions, groups), replicas=1),
    "not synced": Kind(share=3, clients=(records,), only=ONE_AT_A_TIME, is_synced=False),
    "last one": Kind(
        share=1, clients=(records,), troubles=(1, 1), only=("last one",), is_synced=False
    ),
    "archived": Kind(share=3, clients=(records,), is_archived=True),
    "late deletion": Kind(share=1, clients=(late_deletion,), troubles=(0, 0), is_archived=True),
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a seed draws before its world begins."""

    seed: int
    kind: str
    clients: Clients
    troubles: int

    @classmethod
    def draw(cls, seed: int) -> Schedule:
        chance = Random(f"schedule {seed}")
        (name,) = chance.choices(list(KINDS), [one.share for one in KINDS.values()])
        kind = KINDS[name]
        return cls(seed, name, chance.choice(kind.clients), chance.randint(*kind.troubles))

    def __str__(self) -> str:
        clients = getattr(self.clients, "__name__", self.clients)
        return f"seed {self.seed}: {self.kind}, {clients}, {self.troubles} troubles"

    def play(self, folder: Path) -> float:
        """Returns how many seconds passed in the world. Raises what a broken promise raises."""
        kind = KINDS[self.kind]
        world = play_scenario(
            self.seed,
            folder,
            self.clients,
            troubles=self.troubles,
            only=kind.only,
            replicas=kind.replicas,
            is_synced=kind.is_synced,
            is_archived=kind.is_archived,
        )
        return world.loop.time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a world; `failure` is empty if all promises held."""

    schedule: str
    kind: str
    world_s: float
    cpu_s: float
    failure: str = ""


def play(seed: int) -> Played:
    """Plays the world of a seed, in this process."""
    schedule, began_s = Schedule.draw(seed), time.process_time()
    failure, world_s = "", 0.0
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="strandline-world-", dir=where) as folder:
        try:
            world_s = schedule.play(Path(folder))
        except Exception:
            failure = traceback.format_exc()
    return Played(
        schedule=str(schedule),
        kind=schedule.kind,
        world_s=world_s,
        cpu_s=time.process_time() - began_s,
        failure=failure,
    )


def _prepare() -> None:
    """What brokers in trouble log is no news here."""
    logging.disable(logging.CRITICAL)


def played(seeds: Iterator[int], workers: int, until_s: float) -> Iterator[Played]:
    """Yields worlds as they end; begins none after that time, on the monotonic clock."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, context, _prepare, max_tasks_per_child=WORLDS_OF_A_PROCESS
    ) as pool:
        running: set[Future[Played]] = set()
        while True:
            while len(running) < 2 * workers and time.monotonic() < until_s:
                seed = next(seeds, None)
                if seed is None:
                    break
                running.add(pool.submit(play, seed))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            try:
                for one in done:
                    yield one.result()
            except GeneratorExit:
                pool.shutdown(cancel_futures=True)
                raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--worlds", type=int, help="so many; else as many as --minutes allow")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, help="of the first world")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    first = random.randrange(SEEDS) if options.seed is None else options.seed
    seeds = iter(range(first, first + options.worlds)) if options.worlds else count(first)
    until_s = float("inf") if options.worlds else time.monotonic() + 60 * options.minutes
    console = Console()
    console.print(f"worlds from seed {first} on")
    kinds: Counter[str] = Counter()
    failures, world_s, cpu_s = 0, 0.0, 0.0
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with progress:
        task = progress.add_task("worlds", total=options.worlds)
        for one in played(seeds, options.workers, until_s):
            kinds[one.kind] += 1
            world_s, cpu_s = world_s + one.world_s, cpu_s + one.cpu_s
            said = f"{kinds.total() / cpu_s:.2f} worlds a second of a processor"
            progress.update(task, advance=1, description=said)
            if one.failure:
                failures += 1
                progress.console.print(f"[red]{one.schedule}[/]")
                progress.console.print(one.failure, markup=False, highlight=False)
            if failures >= FAILURES_MAX:
                break
    console.print(
        f"{kinds.total()} worlds, {world_s / 3600:.1f} hours in them,"
        f" {cpu_s:.0f} s of a processor; {failures} failed"
    )
    console.print(", ".join(f"{name}: {number}" for name, number in sorted(kinds.items())))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
