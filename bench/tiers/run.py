"""Benchmark of the remote tier, each figure beside a reference from the same run.

    upload      a backlog of closed segments against raw PUTs of the same bytes, as many at a time
    rewind      cold sequential consumption against raw parallel ranged GETs, from stores 0, 30 and
                150 ms away whose connections bring what S3's do; GETs per 8 MiB and per segment;
                and from one as quick as memory, which has no goal
    hot         p50 and p99 of hot produce to consume, alone and while 8 partitions are read cold,
                from stores 0, 30 and 150 ms away; with cold reads that make way for it (in turns
                with the same standing still), with such as do not, with another broker's, and with
                another's that takes no core from anybody, which is what the machine allows; with
                the rewind's consumer and store out of the way; what the rewind gets in each case,
                and alone
    manifest    one commit, and opening, with 100 and with 100,000 archived segments
    metadata    an entry of the metadata log with 5,000 tiered topics and 50,000 partitions: what
                it takes of the event loop

Run it as `make bench-tiers`. A figure is the median of RUNS runs (min - max), MB are 10^6 bytes.
The parts are in tiers_*.py, what they share in tiered.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.tiers.hot import run_hot
from bench.tiers.manifest import run_manifest
from bench.tiers.metadata import run_metadata
from bench.tiers.rewind import run_rewind
from bench.tiers.rig import Figure
from bench.tiers.upload import run_upload

DISTANCES_MS = (0, 30, 150)
PARTS = ("upload", "rewind", "hot", "manifest", "metadata")


def report(figures: Sequence[Figure], console: Console) -> None:
    table = Table(title="median of the runs (min - max)")
    for column in ("part", "what", "value", "unit", "goal", "runs"):
        table.add_column(column, justify="right" if column in ("value", "runs") else "left")
    grouped: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        grouped.setdefault((figure.part, figure.name), []).append(figure)
    for (part, name), group in grouped.items():
        values = [figure.value for figure in group]
        digits = 0 if group[0].unit == "MB/s" else 2
        middle = f"{statistics.median(values):.{digits}f}"
        spread = f"{middle} ({min(values):.{digits}f} - {max(values):.{digits}f})"
        table.add_row(part, name, spread, group[0].unit, group[0].goal, str(len(group)))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="repetitions of each figure")
    parser.add_argument("--megabytes", type=int, default=1500, help="record bytes per figure, MB")
    parser.add_argument("--only", choices=PARTS, help="a part of it")
    parser.add_argument(
        "--distance-ms", type=int, choices=DISTANCES_MS, help="rewind and hot: one of the stores"
    )
    parser.add_argument("--output", type=Path, help="write every run as JSON")
    arguments = parser.parse_args()
    total_bytes = arguments.megabytes * 1_000_000
    distances_ms = DISTANCES_MS if arguments.distance_ms is None else (arguments.distance_ms,)
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    work = {
        "upload": [lambda path: run_upload(path, total_bytes)],
        "rewind": [
            lambda path, far=far, paced=paced: run_rewind(path, total_bytes, far, is_paced=paced)
            for far in distances_ms
            for paced in ((True,) if far else (False, True))
        ],
        "hot": [lambda path, far=far: run_hot(path, total_bytes, far) for far in distances_ms],
        "manifest": [lambda _: run_manifest()],
        "metadata": [run_metadata],
    }
    chosen = [arguments.only] if arguments.only else list(PARTS)
    figures: list[Figure] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console) as progress:
            for part in chosen:
                task = progress.add_task(part, total=arguments.runs * len(work[part]))
                for number in range(arguments.runs):
                    for place, run in enumerate(work[part]):
                        path = folder / f"{part}-{number}-{place}"
                        figures += run(path)
                        shutil.rmtree(path, ignore_errors=True)
                        progress.advance(task)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(figures, console)
    if arguments.output:
        rows = [{name: getattr(figure, name) for name in figure.__slots__} for figure in figures]
        arguments.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
