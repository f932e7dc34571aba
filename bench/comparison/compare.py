"""strandline and Apache Kafka side by side: `make bench-kafka`.

    python -m bench.comparison.compare [--quick] [--only ROW …] [--runs N] [--again] [--no-page]
                            [--results FOLDER]

    for each run:  for each row:  strandline, Kafka   (the next run: Kafka, strandline)

Both brokers are up and warm during the rows that need one, so that Kafka's JVM has compiled what it
runs and what the machine does at the time hits both. Results go to bench-data/results after each
figure; the next call goes on where this one stopped. At the end
docs/explanation/performance.md is written.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.comparison.kinds import KINDS
from bench.comparison.page import print_tables, write_page
from bench.comparison.peers import REPOSITORY, Kafka, Peer, Strandline
from bench.comparison.results import Results
from bench.comparison.rows import ROWS, Brokers, Row
from bench.comparison.secure import move_tls
from bench.comparison.workloads import Figures, Site, move

RESULTS = REPOSITORY / "bench-data" / "results"
FULL_SIZE, QUICK_SIZE = 1.0, 0.25
WARM_UP_ROWS = ("base", "single", "connections-50", "lz4")
WARM_UP_MB = 40
# The brokers that are up during several rows.
SHARED = (Brokers.HOT, Brokers.TLS, Brokers.TIERED)
# After half a minute of load most figures of Kafka no longer fall from run to run.
WARM_UP_S = {"Kafka": 30.0, "strandline": 5.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One figure to be taken."""

    row: Row
    peer: str


class Machine:
    """The brokers that are up; at most one pair at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._up: dict[str, Peer] = {}
        self._kind = Brokers.NONE

    def peer(self, task: Task, site: Site) -> Peer:
        """The broker of a task, warm, after those of another kind were taken down."""
        kind = task.row.brokers
        if kind in SHARED and kind != self._kind:
            self.close()
            self._kind = kind
            self._start(kind, site)
        elif kind == Brokers.OWN:
            self.close()
        if kind in SHARED:
            return self._up[task.peer]
        return Kafka(self._folder) if task.peer == Kafka.name else Strandline(self._folder)

    def _start(self, kind: Brokers, site: Site) -> None:
        tls = site.certificates if kind == Brokers.TLS else None
        for make in (Strandline, Kafka):
            folder = self._folder / f"{make.name}-{kind.name.lower()}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            broker = make(folder, tiered=kind == Brokers.TIERED, tls=tls)
            broker.start()
            self._up[make.name] = broker
            _warm(broker, site, move if tls is None else move_tls)

    def close(self) -> None:
        """Takes the brokers down, and their data."""
        for broker in self._up.values():
            broker.end(by=signal.SIGKILL)
        self._up.clear()
        self._kind = Brokers.NONE
        for left in self._folder.iterdir():
            shutil.rmtree(left, ignore_errors=True)


def _warm(broker: Peer, site: Site, work: Callable[[Site, Row, Peer], Figures]) -> None:
    """Lets the JVM compile what it runs: a broker that serves for months is not measured cold."""
    rows = [replace(row, megabytes=WARM_UP_MB) for row in ROWS if row.name in WARM_UP_ROWS]
    end_s = time.monotonic() + WARM_UP_S[broker.name]
    for row in itertools.cycle(rows):
        work(replace(site, size=1), row, broker)
        if time.monotonic() > end_s:
            return


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    made = Machine(folder)
    try:
        yield made
    finally:
        made.close()


def missing_tasks(rows: Sequence[Row], results: Results, runs: int) -> list[Task]:
    """What is still to be measured: brokers of a kind together, run by run, sides in turns."""
    return [
        Task(row=row, peer=peer)
        for brokers in Brokers
        for run in range(runs)
        for row in rows
        if row.brokers == brokers
        for peer in (row.peers if run % 2 == 0 else tuple(reversed(row.peers)))
        if results.runs(row.name, peer) <= run
    ]


def measure(tasks: Iterable[Task], results: Results, site: Site, console: Console) -> list[str]:
    """Takes the figures; the names of the rows that failed."""
    tasks = list(tasks)
    failed: list[str] = []
    columns = (
        TextColumn("{task.description:<36}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with machine(site.folder) as brokers, Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(tasks))
        for task in tasks:
            progress.update(bar, description=f"{task.row.name}, {task.peer}")
            try:
                peer = brokers.peer(task, site)
                here = replace(site, peak_records_per_s=_peak(results))
                figures = KINDS[task.row.kind](here, task.row, peer)
            except Exception:
                # One row that fails must not cost the others; it is named at the end.
                console.print(f"[red]{task.row.name}, {task.peer} failed")
                console.print(traceback.format_exc(limit=-3), markup=False)
                failed.append(f"{task.row.name} ({task.peer})")
                brokers.close()
            else:
                results.add(task.row.name, task.peer, figures)
            progress.advance(bar)
    return failed


def _peak(results: Results) -> float:
    """Records per second of the slower broker, or 0."""
    found = [results.spread("peak", name, "records_per_s") for name in ("strandline", "Kafka")]
    return min((spread.median for spread in found if spread), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [row.name for row in ROWS]
    parser.add_argument("--quick", action="store_true", help="a quarter of the data, one run")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=names, help="|".join(names))
    parser.add_argument("--peer", choices=("strandline", "Kafka"), help="measure only this one")
    parser.add_argument("--runs", type=int, help="figures of each row and broker (3; quick: 1)")
    parser.add_argument("--again", action="store_true", help="forget earlier figures of the rows")
    parser.add_argument("--folder", type=Path, help="where brokers keep their data")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where figures are kept")
    parser.add_argument(
        "--no-page", action="store_true", help="leave docs/explanation/performance.md alone"
    )
    arguments = parser.parse_args()
    size = QUICK_SIZE if arguments.quick else FULL_SIZE
    runs = arguments.runs or (1 if arguments.quick else 3)
    console = Console()
    results = Results(arguments.results / ("quick" if arguments.quick else "full"), ROWS, size=size)
    rows = [row for row in ROWS if not arguments.only or row.name in arguments.only]
    if any(row.load for row in rows) and not _peak(results):
        rows = [row for row in ROWS if row in rows or row.name == "peak"]
    if arguments.again:
        for row in rows:
            results.forget(row.name)
    tasks = [
        task for task in missing_tasks(rows, results, runs) if arguments.peer in (None, task.peer)
    ]
    if arguments.folder:
        arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-", dir=arguments.folder))
    try:
        failed = measure(tasks, results, Site(folder=folder, size=size), console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_tables(rows, results, console)
    if not arguments.no_page:
        write_page(
            REPOSITORY / "docs" / "explanation", results, size=size, warm_s=WARM_UP_S[Kafka.name]
        )
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
