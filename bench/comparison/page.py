"""The report: tables on the terminal, and docs/explanation/performance.md with its plots."""

from __future__ import annotations

import os
import platform
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

import confluent_kafka
from rich.console import Console
from rich.table import Table

from bench.comparison.peers import REPOSITORY, Kafka, Strandline
from bench.comparison.plots import write_plots
from bench.comparison.results import Results, Spread
from bench.comparison.rows import METRICS, ROWS, Goal, Metric, Row

COMMAND = "make bench-kafka"
KAFKA_VERSION = "4.1.0"

INTRODUCTION = """\
# Performance, side by side with Apache Kafka

Both brokers in the same run, on the same machine, under the same clients, turn by turn. Written by
`{command}`; nothing here is edited by hand but the rows of tables. A ratio is
strandline : Kafka of the medians; a goal is a bound on it. Figures are medians of {runs}
runs, with the least and the most of them in brackets.

{where}

**{met} of {total} goals are met.** {unmet}
"""

# Of `make bench-lake`, which prints its rows; this page keeps them.
TABLES = "## Tables of a topic\n"

METHOD = """\
## How it is measured

- **Clients.** librdkafka {librdkafka} for both brokers. Set-up goes through ctypes, and the loops
  that hand over or take records are compiled (`bench/clients/rdkafka.py`), so no Python runs per
  record: one such client takes more than a gigabyte per second off a broker. It shares the
  machine's cores with the broker it measures, which bounds MB/s; broker CPU is free of it. The
  row "Kafka's own perf tools" uses Java's clients.
- **100 B records** are read by a client whose threads share one core, from both brokers: left to
  themselves they wait for each other at the lock of their heap, the more the sooner a broker
  answers ([why](../../bench/notes/clients.md)).
- **Repeated reads.** What was produced is read by one new consumer after the other until a gigabyte
  has been read, and the figure is of all of them: a small topic is read in a fifth of a second.
- **Checks.** Every consumer counts the records and follows the offsets of each partition; every
  producer fails on the first delivery that failed. A row that loses a record gives no figure.
- **Turns.** The brokers of a section are up together. A row is run against one and then the other,
  and the next run begins with the other. Each has a topic of its own, deleted afterwards.
- **Warm.** Kafka's JVM is put under load for {warm_s:.0f} s before the first figure. Most of
  what it gains it has gained by then; its CPU for consumers has been seen to fall in later runs.
  "Start" is a new process each time.
- **Transactions** have 1 KB records. Each producer makes one transaction after the other; a
  consumer with `read_committed` then finds all their records. Java's client is of transaction
  version 2 (KIP-890), librdkafka's of version 1, and needs ten producers: one waits for its own
  timer. They run for 2 s before the measured stretch.
- **Memory that is there.** Before a producer's clock runs, a file of the row's size is written and
  removed. A virtual machine may pay for free memory when it is first written to again (2 s of CPU
  per GB have been seen), and now one broker met such memory, now the other.
- **Broker CPU** is that of the process and its children, read from its CPU clock, over the measured
  stretch, per 10⁹ bytes of record values. MB are 10⁶ bytes of record values, before compression.
- **Records.** Half of a record is random and half is words, so that codecs have work to do.
- **Latency** is from the moment a record was due to be sent until its consumer has it, so that a
  producer that falls behind shows. Producers wait for nothing (`linger.ms=0`), with five requests
  in flight. Loads are shares of what the slower broker passes on when it is not held back
  (the row "peak").
- **Fetches** ask for up to 1 MB of a partition and wait 10 ms at most (500 ms in the rows of
  latency): their consumers are behind all the time.
- **Partitions** have taken one record each before they are measured, and where there are many of
  them the whole load once: both brokers make and sync files at the first.
- **Start** ends when every partition has acknowledged a record to a bare client
  (`bench/clients/readiness.py`), which sends both brokers the same bytes and hears of an answer at
  once.
- **Kafka's second tier** is LocalTieredStorage, the only one it comes with: a folder. For that row
  strandline's second tier is a folder too. Aiven's plugin for S3 is not on Maven Central (tried:
  io.aiven:tiered-storage-for-apache-kafka, io.aiven:core, io.aiven.kafka.tieredstorage:core), so
  the rows with S3 have no peer.
- **Spark's Kafka source** reads from strandline beside its own archive in `make bench-lake`; here
  it would measure Spark.
- **Pacing.** Where the system's congestion control is BBR (the first lines say which it is),
  loopback connections are paced. strandline takes the pacing off for clients of its own machine,
  Kafka has no such thing. After `sysctl net.ipv4.tcp_congestion_control=reno` neither is paced:
  the [notes](../../bench/notes/append-and-fetch.md) have three rows of such a run.
- **No fsync.** Both brokers leave writing back to the system, as Kafka does by default.

One thing is varied in each row; the rest is as in the first: records of 1 KB, batches of 16 KB, no
compression, acks=1, one partition, one connection.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One metric of one row."""

    row: Row
    metric: Metric
    ours: Spread
    theirs: Spread | None
    ratio: float | None
    goal: Goal | None

    @property
    def verdict(self) -> str:
        if self.goal is None or self.ratio is None:
            return ""
        return f"{self.goal} {'met' if self.goal.is_met(self.ratio) else '**not met**'}"

    def cells(self) -> tuple[str, ...]:
        digits = self.metric.digits
        return (
            self.row.title,
            self.metric.title,
            _text(self.ours, digits),
            _text(self.theirs, digits),
            f"{self.ratio:.2f}" if self.ratio is not None else "",
            self.verdict,
        )


COLUMNS = ("workload", "figure", "strandline", "Kafka", "ratio", "goal")


def lines_of(rows: Sequence[Row], results: Results) -> Iterator[Line]:
    """What was measured of the rows, in their order."""
    for row in rows:
        for name, metric in METRICS.items():
            ours = results.spread(row.name, row.peers[0], name)
            if ours is not None:
                yield Line(
                    row=row,
                    metric=metric,
                    ours=ours,
                    theirs=results.spread(row.name, "Kafka", name),
                    ratio=results.ratio(row.name, name),
                    goal=row.goals.get(name),
                )


def _text(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return ""
    text = f"{spread.median:,.{digits}f}"
    if spread.runs > 1:
        text += f" ({spread.least:,.{digits}f} – {spread.most:,.{digits}f})"
    return text


def print_tables(rows: Sequence[Row], results: Results, console: Console) -> None:
    table = Table()
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in COLUMNS[:2] else "right")
    for line in lines_of(rows, results):
        cells = line.cells()
        table.add_row(line.row.name, *cells[1:5], cells[5].replace("**", ""))
    console.print(table)


def _count_of_runs(lines: Sequence[Line]) -> str:
    """Rows may have been measured more often than others (`--only`)."""
    least, most = (choose(line.ours.runs for line in lines) for choose in (min, max))
    return str(most) if least == most else f"{least} to {most}"


def write_page(docs: Path, results: Results, *, size: float, warm_s: float) -> None:
    """Writes performance.md and its plots, of all rows that have figures."""
    lines = list(lines_of(ROWS, results))
    if not lines:
        return
    with_goals = [line for line in lines if line.goal and line.ratio is not None]
    unmet = [line for line in with_goals if "not" in line.verdict]
    parts = [
        INTRODUCTION.format(
            command=COMMAND,
            runs=_count_of_runs(lines),
            where=_where(size),
            met=len(with_goals) - len(unmet),
            total=len(with_goals),
            unmet=_unmet(unmet),
        )
    ]
    plots = write_plots(docs / "performance", results)
    for section, group in groupby(lines, key=lambda line: line.row.section):
        parts.append(f"## {section}\n\n{_markdown_table(list(group))}")
        parts += [f"![{alt}](performance/{name})\n" for name, alt in plots.get(section, ())]
    parts += _kept_tables(docs / "performance.md")
    parts.append(METHOD.format(librdkafka=confluent_kafka.libversion()[0], warm_s=warm_s))
    parts.append(_configurations())
    (docs / "performance.md").write_text("\n".join(parts))


def _kept_tables(page: Path) -> Iterator[str]:
    """The section TABLES of the page as it is now, if there is one."""
    _, heading, rest = page.read_text().partition(TABLES) if page.exists() else ("", "", "")
    text, _, _ = rest.partition("\n## ")
    if heading:
        yield heading + text


def _unmet(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    return "Not met:\n\n" + "\n".join(
        f"- {line.row.title}: {line.metric.title}, ratio {line.ratio:.2f}, goal {line.goal}"
        for line in lines
    )


def _markdown_table(lines: Sequence[Line]) -> str:
    rows = [f"| {' | '.join(COLUMNS)} |", "| --- | --- | ---: | ---: | ---: | --- |"]
    title = ""
    for line in lines:
        first, *rest = line.cells()
        rows.append(f"| {first if first != title else ''} | {' | '.join(rest)} |")
        title = first
    return "\n".join(rows) + "\n"


def _where(size: float) -> str:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    amount = "" if size == 1 else f" A quick run, with {size:.0%} of the data of a full one."
    return textwrap.fill(
        f"Run on {datetime.now(UTC):%Y-%m-%d}: {_processor()}, {os.cpu_count()} cores,"
        f" {memory_gb:.0f} GB, Linux {platform.release()}; strandline {version('strandline')}"
        f" (commit {_commit()}), Python {platform.python_version()}; Apache Kafka {KAFKA_VERSION},"
        f" {(java.stderr.splitlines() or ['no Java'])[0]}; all on loopback, congestion control"
        f" {_congestion_control()}.{amount}",
        width=100,
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _congestion_control() -> str:
    """What the system gives every TCP connection that asks for nothing."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _configurations() -> str:
    parts = ["## Configurations\n\nWhat is not named has its default, in both brokers.\n"]
    for make in (Strandline, Kafka):
        for tiered in (False, True):
            text = make(Path("/FOLDER"), tiered=tiered).settings_text or "# defaults only\n"
            title = f"{make.name}{', with the second tier' if tiered else ''}"
            parts.append(f"{title}:\n\n```properties\n{text}```\n")
    return "\n".join(parts)
