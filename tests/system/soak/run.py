"""`make soak MINUTES=30 [SEED=7]`: both tiers, real clients, and everything that can go wrong.

    python -m tests.system.soak.run [--minutes N] [--seed N] [--brokers N]

    plan.py      what happens, from the seed alone        clients.py   producers, readers, groups
    story.py     carries it out                           model.py     what must be true of records
    world.py     broker, S3 server, fault proxy           healing.py   the end, and what is checked
    table.py     what must be true of the compacted topic

While it lives: produce is never refused, no reader sees a gap, a double or another value, log
starts are where they may be. At the end everything is read once more and the bucket is compared
with its manifests. Any violation ends the run with 1, and keeps the folders, the broker's log, the
objects of the bucket and the list of steps. The same seed makes the same steps in the same order;
how they meet the clients is up to the machine. Several brokers have a story of their own:
several.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from strandline.storage.errors import ObjectNotFound
from tests.support.broker import REPOSITORY
from tests.system.soak import several
from tests.system.soak.healing import heal
from tests.system.soak.model import Violations
from tests.system.soak.plan import Step, steps
from tests.system.soak.story import Story
from tests.system.soak.table import TableModel
from tests.system.soak.world import Abort, World

FOLDER = REPOSITORY / "bench-data" / "soak"
# What the list of steps says of a rule beside its action.
RULE_FIELDS = ("method", "path", "skip", "times", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    violations: list[str]
    story: Story
    world: World
    step_count: int
    seconds: float


def run(
    seconds: float,
    seed: int,
    folder: Path,
    console: Console,
    *,
    steps_max: int | None = None,
    with_spark: bool = False,
) -> Outcome:
    """Lives for `seconds` or so many steps, heals, and tells what was wrong; leaves its folder."""
    violations = Violations()
    began_s = time.monotonic()
    step_count = 0
    with World(folder, violations) as world, make_progress(console) as progress:
        story = Story(world, seed)
        task = progress.add_task("living", total=seconds, detail="")
        try:
            story.begin()
            # A loaded machine may take as long to begin as it was to live.
            lives_since_s = time.monotonic()
            for step in islice(steps(seed), steps_max):
                if time.monotonic() - lives_since_s > seconds or violations.texts:
                    break
                note(folder, step, time.monotonic() - began_s)
                detail = f"{step.number}: {step.event.value}"
                progress.update(task, completed=time.monotonic() - began_s, detail=detail)
                story.carry_out(step)
                step_count += 1
            progress.update(task, completed=seconds, description="healing")
            heal(
                world,
                story,
                lambda text: progress.update(task, detail=text),
                with_spark=with_spark,
            )
        except (Abort, AssertionError) as error:
            violations.add(f"the run was broken off: {error!r}")
        if violations.texts:
            keep_objects(world, folder)
        return Outcome(
            violations=violations.texts,
            story=story,
            world=world,
            step_count=step_count,
            seconds=time.monotonic() - began_s,
        )


def make_progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<8}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
        console=console,
        disable=not console.is_terminal,
    )


def note(folder: Path, step: Step, at_s: float) -> None:
    """One line for a step, before it is carried out."""
    rules = [
        {"action": rule.action.name, **{name: getattr(rule, name) for name in RULE_FIELDS}}
        for rule in step.rules
    ]
    line = {
        "number": step.number,
        "at_s": round(at_s, 2),
        "event": step.event.value,
        "point": step.point,
        "choice": round(step.choice, 4),
        "rules": rules,
    }
    with open(folder / "steps.jsonl", "a") as file:
        print(json.dumps(line), file=file)


def keep_objects(world: World, folder: Path) -> None:
    """The bucket as files, for whoever looks for the reason."""
    store = world.archive.store
    for info in store.list(""):
        path = folder / "bucket" / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        # The broker may live, and delete what it replaced.
        with contextlib.suppress(ObjectNotFound):
            path.write_bytes(store.get(info.key))


def report(outcome: Outcome, console: Console) -> None:
    """The tables at the end."""
    story, world = outcome.story, outcome.world
    events = Table("what was done", "times", title="events")
    for name, count in sorted(world.counts.items()):
        events.add_row(name, str(count))
    faults = Table("fault", "requests struck", title="faults of the store")
    for name, count in sorted(world.fault_hits.items()):
        faults.add_row(name, str(count))
    told = Table("who", "records", "", title="clients")
    acknowledged = sum(model.acknowledged_count for model in world.models.values())
    told.add_row("sent", f"{story.sent_count:,}", "by idempotent producers")
    told.add_row("acknowledged", f"{acknowledged:,}", f"{world.lost_records:,} lost with a disk")
    tables = [model for model in world.models.values() if isinstance(model, TableModel)]
    gone = sum(table.tombstones_gone for table in tables)
    told.add_row("table", f"{gone:,}", "times a tombstone was missed whose time was over")
    told.add_row(
        "probe", f"{story.probe.answered_count:,}", f"slowest {story.probe.slowest_s:.2f} s"
    )
    for fate, count in world.transactions.counts().items():
        told.add_row("transactions", f"{count:,}", fate)
    scene = story.transactions
    told.add_row("", f"{scene.kill_count:,}", "times a writer was killed")
    told.add_row("", f"{scene.zombie_count:,}", "times a zombie was fenced")
    for reader in (*story.readers, *scene.readers):
        told.add_row(reader.name, f"{reader.record_count:,}", f"{reader.pass_count:,} passes")
    for group, progress in story.progress.items():
        told.add_row(group, f"{progress.count:,}", "")
    for table in (events, faults, told):
        console.print(table)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--brokers", type=int, default=1)
    options = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    # They tell every connection that is refused while the broker is down.
    for library in ("aiokafka", "kafka"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    folder = FOLDER / f"{options.seed}-{time.strftime('%m%d-%H%M%S')}"
    console.print(f"seed {options.seed}, {options.minutes} minutes, evidence in {folder}")
    if options.brokers > 1:
        return run_several(folder, console, options)
    outcome = run(options.minutes * 60, options.seed, folder, console, with_spark=True)
    report(outcome, console)
    if outcome.violations:
        console.print(f"[red]seed {options.seed}: {len(outcome.violations)} violations[/red]")
        for text in outcome.violations:
            console.print(f"  {text}", markup=False)
        console.print(f"everything is kept in {folder}")
        return 1
    shutil.rmtree(folder)
    console.print(
        f"seed {options.seed}: {outcome.step_count} steps in {outcome.seconds:.0f} s,"
        " no violation: every acknowledged record once and in order, the bucket is its manifests"
    )
    return 0


def run_several(folder: Path, console: Console, options: argparse.Namespace) -> int:
    fleet, wrong = several.run(
        folder, brokers=options.brokers, seed=options.seed, seconds=options.minutes * 60
    )
    for name, count in sorted(fleet.counts.items()):
        console.print(f"{count:8,}  {name}")
    acknowledged = sum(model.acknowledged_count for model in fleet.models)
    console.print(f"{acknowledged:8,}  records acknowledged")
    for text in wrong:
        console.print(f"[red]seed {options.seed}[/red]  {text}")
    if wrong:
        console.print(f"everything but the bucket is kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
