"""The topic that clients of Java fill with millions of records, and what must hold of it.

Who counts by the million counts runs: records of one partition and one producer, whose offsets and
numbers go up together. A check takes what all of them were told and says what it found, in words.
"""

from __future__ import annotations

import subprocess
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from strandline.spark_lake import scan
from tests.support.jvm import compile_java, java
from tests.system.cluster_faults.checks import (
    FOUND_MAX,
    Outcome,
    Replica,
    replicas_are_the_same,
)

MANY = "many"
PROGRAM = "ManyRecords"
SOURCE = Path(__file__).parent / "clients" / f"{PROGRAM}.java"
READ_S = 600.0
# A record's value, as the program writes it.
VALUE = np.dtype([("generation", ">i4"), ("number", ">i8")])


class Run(NamedTuple):
    """`count` records from `offset` on, of which the first is a producer's `number`."""

    partition: int
    offset: int
    generation: int
    number: int
    count: int

    @property
    def end(self) -> int:
        return self.offset + self.count


@dataclass(kw_only=True)
class ManyOutcome:
    """When all is healed and nobody writes."""

    acknowledged: list[Run] = field(default_factory=list)
    # By a group, whose members were killed too.
    read: list[Run] = field(default_factory=list)
    # From the beginning to the end, by somebody else.
    found: list[Run] = field(default_factory=list)
    lake: list[Run] = field(default_factory=list)
    replicas: dict[tuple[str, int], Replica] = field(default_factory=dict)


class Clients:
    """Java's clients of a run: their commands, and what they were told."""

    def __init__(self, libraries: Path, folder: Path, bootstrap: str, partitions: int) -> None:
        self._folder = folder
        self._class_path = [folder / "classes", libraries / "*"]
        self._who = (bootstrap, MANY, str(partitions))
        compile_java(libraries, folder / "classes", SOURCE)
        self.acknowledged, self.read, self.found = (
            folder / f"{MANY}.{name}" for name in ("acknowledged", "read", "found")
        )

    def command(self, records_per_s: int) -> list[str]:
        """Of a producer and a member of a group, until SIGTERM."""
        told = (str(self.acknowledged), str(self.read))
        return java(self._class_path, PROGRAM, "work", *self._who, str(records_per_s), *told)

    def have_begun(self) -> bool:
        return all(path.exists() and runs_in(path) for path in (self.acknowledged, self.read))

    def outcome(self) -> ManyOutcome:
        """Reads the topic from its beginning to its end."""
        command = java(self._class_path, PROGRAM, "read", *self._who, str(self.found))
        subprocess.run(command, check=True, timeout=READ_S)
        return ManyOutcome(
            acknowledged=runs_in(self.acknowledged),
            read=runs_in(self.read),
            found=runs_in(self.found),
        )


def runs_in(path: Path) -> list[Run]:
    with open(path) as lines:
        return [Run(*map(int, words)) for line in lines if (words := line.split())]


def runs_in_lake(url: str, options: Mapping[str, str]) -> list[Run]:
    """What a reader of the bucket finds."""
    columns = ("partition", "offset", "value")
    table = scan(url, MANY, columns=columns, options=dict(options)).read_all()
    table = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    partitions, offsets = (table.column(name).to_numpy() for name in columns[:2])
    values = table.column("value").cast(pa.binary(VALUE.itemsize)).combine_chunks()
    told = np.frombuffer(values.buffers()[1], VALUE, count=len(values), offset=0)
    generations, numbers = told["generation"].astype(int), told["number"].astype(int)
    begins = np.ones(len(values), bool)
    begins[1:] = (
        (np.diff(partitions) != 0)
        | (np.diff(offsets) != 1)
        | (np.diff(numbers) != 1)
        | (np.diff(generations) != 0)
    )
    places = np.flatnonzero(begins)
    counts = np.diff(places, append=len(values))
    columns_of_runs = (one[places] for one in (partitions, offsets, generations, numbers))
    return [Run(*map(int, words)) for words in zip(*columns_of_runs, counts, strict=True)]


def count_of(runs: Iterable[Run]) -> int:
    return sum(run.count for run in runs)


# --- what must hold ------------------------------------------------------------------------------


def acknowledged_is_there(outcome: ManyOutcome) -> Iterator[str]:
    """An acknowledged record is in the log, where its producer was told."""
    yield from _absent(outcome.acknowledged, outcome.found, "was acknowledged")


def is_there_once_and_in_order(outcome: ManyOutcome) -> Iterator[str]:
    """A producer's records are in the log once at most, in the order of its numbers."""
    last: dict[tuple[int, int], int] = {}
    for run in sorted(outcome.found, key=attrgetter("partition", "offset")):
        producer = run.partition, run.generation
        if run.number <= last.get(producer, -1):
            yield f"{run} is behind number {last[producer]}"
        last[producer] = run.number + run.count - 1


def offsets_have_no_holes(outcome: ManyOutcome) -> Iterator[str]:
    """Nothing is compacted, and there are no markers of transactions."""
    yield from _holes(outcome.found, "the log")


def what_was_read_stays(outcome: ManyOutcome) -> Iterator[str]:
    """What a consumer once read is what everybody reads there at the end."""
    yield from _absent(outcome.read, outcome.found, "was read")


def a_group_skips_nothing(outcome: ManyOutcome) -> Iterator[str]:
    """Its members read everything from the beginning on, some of it twice."""
    yield from _holes(outcome.read, "the group")


def the_lake_has_the_same(outcome: ManyOutcome) -> Iterator[str]:
    """A reader of the bucket finds what consumers do, from the beginning to the archive's end."""
    yield from _absent(outcome.lake, outcome.found, "is in the lake")
    yield from _holes(outcome.lake, "the lake")
    if not outcome.lake:
        yield "nothing is in the lake"


def all_replicas_are_the_same(outcome: ManyOutcome) -> Iterator[str]:
    yield from replicas_are_the_same(Outcome(topic=MANY, replicas=outcome.replicas))


def _absent(told: Iterable[Run], found: Iterable[Run], how: str) -> Iterator[str]:
    """Of each that was told and is not found as it was told."""
    there: dict[int, list[Run]] = defaultdict(list)
    for run in sorted(found, key=attrgetter("partition", "offset")):
        there[run.partition].append(run)
    for run in told:
        runs, at = there[run.partition], run.offset
        place = bisect_right(runs, at, key=attrgetter("offset")) - 1
        while at < run.end:
            one = runs[place] if 0 <= place < len(runs) else None
            if one is None or not one.offset <= at < one.end:
                yield f"{run} {how}, and nothing is at {at}"
                break
            if (one.generation, one.number - one.offset) != (
                run.generation,
                run.number - run.offset,
            ):
                yield f"{run} {how}, and at {at} is {one}"
                break
            at, place = one.end, place + 1


def _holes(runs: Iterable[Run], who: str) -> Iterator[str]:
    ends: dict[int, int] = defaultdict(int)
    for run in sorted(runs, key=attrgetter("partition", "offset")):
        if run.offset > ends[run.partition]:
            yield f"{who} has nothing from {ends[run.partition]} of {run.partition} on to {run}"
        ends[run.partition] = max(ends[run.partition], run.end)


CHECKS: tuple[Callable[[ManyOutcome], Iterator[str]], ...] = (
    acknowledged_is_there,
    is_there_once_and_in_order,
    offsets_have_no_holes,
    what_was_read_stays,
    a_group_skips_nothing,
    the_lake_has_the_same,
    all_replicas_are_the_same,
)


def violations(outcome: ManyOutcome) -> list[str]:
    """Of all checks; of each the first few."""
    return [
        f"{MANY}: {check.__name__}: {text}"
        for check in CHECKS
        for _, text in zip(range(FOUND_MAX), check(outcome), strict=False)
    ]
