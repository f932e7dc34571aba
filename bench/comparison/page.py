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

from bench.comparison.peers import REPOSITORY, Kafka, Strandline, kafka_version
from bench.comparison.plots import write_plots
from bench.comparison.results import Results, Spread
from bench.comparison.rows import METRICS, ROWS, Bounded, Goal, Metric, Row
from bench.comparison.tls import Certificates

COMMAND = "make bench-kafka"

INTRODUCTION = """\
# Performance, side by side with Apache Kafka

For everyone who decides, and for contributors who measure a change. `{command}` writes this page;
nobody edits more than the rows of its tables by hand. Both brokers run at the same time, on the
same machine, under the same clients, which measure them in turns.

A ratio is strandline : Kafka of the medians. A goal is a bound on it, or on strandline's figure
where a limit is known. Figures are medians of {runs} runs, with the least and the most in brackets.

{where}

**{met} of {total} goals are met.** {unmet}
"""

# Of `make bench-lake`, which prints its rows; this page keeps them.
TABLES = "## Tables of a topic\n"

METHOD = """\
## How it is measured

Each row varies one thing. The rest is as in the first row: records of 1 KB, batches of 16 KB, no
compression, acks=1, one partition, one connection.

- **Clients.** Both brokers get librdkafka {librdkafka}. Compiled loops hand over and take the
  records (`bench/clients/rdkafka.py`), so no Python runs for each record. The client shares the
  cores with the broker, which bounds MB/s; broker CPU does not contain it. The row "Kafka's own
  perf tools" uses Java's clients.
- **100 B records.** The threads of this client share one core. On two cores they wait for each
  other at the lock of their heap, and a faster broker makes them wait more
  ([why](../../bench/notes/clients.md)).
- **Repeated reads.** One new consumer after the other reads a topic until a gigabyte has been read.
  The figure is that of all reads, because a single read of a small topic takes a fifth of a second.
- **Checks.** Every consumer counts the records and follows the offsets of each partition. Every
  producer fails at the first delivery that fails. A row that loses a record has no figure.
- **Turns.** The brokers of a section run at the same time. The benchmark runs a row against one and
  then the other, and begins the next run with the other. Each run has a topic of its own.
- **Warm.** Kafka's JVM works for {warm_s:.0f} s before the first figure, and has gained most of its
  speed by then. In some later runs its CPU for consumers fell further. "Start" is a new process
  each time.
- **Transactions** have 1 KB records. Each producer makes one transaction after the other for 2 s
  before the measurement and then during it. Afterwards a consumer with `read_committed` must find
  all their records. Java's client uses transaction version 2 (KIP-890), librdkafka's version 1.
  librdkafka needs several producers, because each waits for its own timer: 10 for large
  transactions, and 40 for small ones. In some runs Kafka's Java client sends the end
  of a transaction before its last batch: its thread asks whether batches are incomplete before it
  takes a lock. Either broker refuses that with INVALID_TXN_STATE, with which the producer ends.
  Such a run has no figure.
- **Allocated memory.** A virtual machine may need CPU to allocate free memory (we saw 2 s for each
  GB). So the benchmark writes and removes a file of the row's size before the clock of a producer
  runs. Without this step the allocation delayed sometimes one broker, sometimes the other.
- **Broker CPU** is the CPU time of the process and its children during the measurement, for 10⁹
  bytes of record values. MB are 10⁶ bytes of record values, before compression.
- **Records.** Half of a record is random and half is words, so that codecs have work to do.
- **TLS** is version 1.3 with AES-256-GCM, whose certificate has a key of P-256, in both brokers.
  Clients do not show one. A handshake is that of a new connection, which ends then: without a
  request, and without a session of an earlier one. They come from four threads for 10 s before the
  measurement.
- **A quiet connection** has asked which versions there are and has been silent for 20 s. Its memory
  is what strandline's process has more of (resident), and for Kafka what its heap has more of after
  a collection, because a JVM keeps what it once took.
- **Authorization** is what strandline does for each request to know whether it may be. As its share
  is smaller than the difference between two runs, it is timed alone, with the same rules, and
  multiplied by the requests.
- **Latency** begins when a record is due to be sent and ends when its consumer has it, so that a
  producer that falls behind shows. Producers do not wait for a batch (`linger.ms=0`) and have five
  requests in flight. The percentages are loads: shares of what the slower broker reaches in the row
  "peak".
- **Fetches** ask for up to 1 MB of a partition and wait 10 ms at most (500 ms in the rows of
  latency).
- **Partitions** get one record each before the measurement, because both brokers make and sync
  files at the first record. Rows with many partitions get the whole load once.
- **Start** ends when every partition has acknowledged a record to a minimal client
  (`bench/clients/readiness.py`), which sends both brokers the same bytes.
- **Kafka's second tier** is LocalTieredStorage, the only one that Kafka brings: a folder. It is
  that of 4.3.1, because later ones are not published. For that row strandline's second tier is a
  folder too. The rows with S3 have no peer, because Aiven's
  plugin for S3 is not on Maven Central (tried: io.aiven:tiered-storage-for-apache-kafka,
  io.aiven:core, io.aiven.kafka.tieredstorage:core).
- **Spark's Kafka source** is in `make bench-lake`, which reads the same archive by both ways; here
  it would measure Spark.
- **Pacing.** Linux paces loopback connections where its congestion control is BBR (the first lines
  name it). strandline turns pacing off for clients of its own machine, and Kafka does not. The
  [notes](../../bench/notes/append-and-fetch.md) have three rows with
  `net.ipv4.tcp_congestion_control=reno`, where neither is paced.
- **No fsync.** Both brokers leave the writing to the system, as Kafka does by default.
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
    def judged(self) -> float | None:
        """What the goal is a bound on; None without one, or without the other broker."""
        if self.goal is None:
            return None
        return self.ratio if self.goal.of == Bounded.RATIO else self.ours.median

    @property
    def is_met(self) -> bool:
        return self.goal is None or self.judged is None or self.goal.is_met(self.judged)

    @property
    def verdict(self) -> str:
        if self.judged is None:
            return ""
        return f"{self.goal} {'met' if self.is_met else '**not met**'}"

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
    with_goals = [line for line in lines if line.judged is not None]
    unmet = [line for line in with_goals if not line.is_met]
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
        f"- {line.row.title}: {line.metric.title}, {_judged(line)}, goal {line.goal}"
        for line in lines
    )


def _judged(line: Line) -> str:
    is_ratio = line.goal is not None and line.goal.of == Bounded.RATIO
    return f"{'ratio' if is_ratio else 'figure'} {line.judged:.2f}"


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
        f" (commit {_commit()}), Python {platform.python_version()}; Apache Kafka"
        f" {kafka_version()}, {(java.stderr.splitlines() or ['no Java'])[0]}; all on loopback,"
        f" congestion control {_congestion_control()}.{amount}",
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
    parts = ["## Configurations\n\nAll other properties have their defaults, in both brokers.\n"]
    folder = Path("/FOLDER")
    tls = Certificates(folder / "certificates")
    for make in (Strandline, Kafka):
        for title, peer in (
            ("", make(folder)),
            (", with TLS", make(folder, tls=tls)),
            (", with the second tier", make(folder, tiered=True)),
        ):
            text = peer.settings_text or "# defaults only\n"
            parts.append(f"{make.name}{title}:\n\n```properties\n{text}```\n")
    return "\n".join(parts)
