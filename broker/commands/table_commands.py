"""`strandline table`: an Iceberg or Delta table of a topic, from its archive."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from strandline.broker.commands.prices import PRICE_FORM, price_of, usd
from strandline.broker.commands.sigterm import TERMINATED, told_by_sigterm
from strandline.broker.tools.client.printing import say
from strandline.broker.tools.client.tables import Column, print_table
from strandline.broker.tools.client.timestamps import duration_ms
from strandline.broker.tools.commands.options import (
    CommandParser,
    Commands,
    add_actions,
    add_bucket,
    add_command,
    add_repeated,
)
from strandline.spark_lake.options.given_options import named_values
from strandline.storage.crash_points import check_environment
from strandline.storage.errors import InvalidConfig, StrandlineError
from strandline.storage.extras import how_to_install
from strandline.storage.plurals import counted, human_bytes
from strandline.storage.system.heaps import limit_heaps

if TYPE_CHECKING:
    from strandline.spark_lake.table.run import TableRun
    from strandline.spark_lake.table.sync import SyncReport
    from strandline.spark_lake.table.upkeep.maintain import MaintainReport
    from strandline.spark_lake.table.upkeep.plan import Rewriting, TablePlan

# The exit code of every check that finds a problem; with 1 it could not look.
DIFFERS = 3

# A sync writes files anew that are older than a day (`ROUND_AGE_MS_MAX`), and clocks differ.
ORPHAN_AGE_MS_MIN = 2 * 24 * 3_600_000
# Of the C library, for all threads of a command: they hold windows of 8 MiB.
_HEAPS = 2
# Options that are fields of a TableRequest.
_REQUESTED = (
    "new_incarnation",
    "partition_by",
    "sort_by",
    "codec",
    "format",
    "mode",
    "on_error",
    "file_bytes",
)
_NOTES = """
Reads the archive, never a broker. After a kill run the command again: each record becomes
one row. The table itself stores how far it is. Needs strandline[table].
"""
_EXAMPLES = {
    "sync": """
  strandline table sync --remote s3://my-bucket/my-cluster --topic orders --table lake.orders \\
      --option valueFormat=json --option valueSchema='id BIGINT, city STRING'
  strandline table sync --remote file:///srv/archive --topic orders --table lake.orders
  strandline table sync --remote s3://my-bucket/my-cluster --topic orders --table lake.orders \\
      --catalog https://catalog.example.com --until 2024-02-01
  strandline table sync --remote s3://my-bucket/my-cluster --topic orders --table lake.orders \\
      --interval 10s
""",
    "plan": """
  strandline table plan --remote s3://my-bucket/my-cluster --topic orders --table lake.orders
""",
    "check": """
  strandline table check --remote s3://my-bucket/my-cluster --topic orders --table lake.orders
""",
    "maintain": """
  strandline table maintain --remote s3://my-bucket/my-cluster --topic orders \\
      --table lake.orders --retention follow
""",
}


def add_table(commands: Commands) -> None:
    """Adds the command and its actions."""
    table = add_command(
        commands,
        "table",
        "keep an Iceberg or Delta table of a topic, from its archive",
        "Keeps an Iceberg or Delta table of a topic, from its archive.",
        _epilog(*_EXAMPLES),
    )
    actions = add_actions(table)
    sync = add_command(
        actions,
        "sync",
        "bring a table up to what the archive has",
        "Adds the archived records of a topic that the table lacks, once or at an interval.",
        _epilog("sync"),
        _sync,
    )
    plan = add_command(
        actions,
        "plan",
        "what a sync would read, and what it would cost",
        "Shows what a sync would read and write now, and its requests. Writes nothing.",
        _epilog("plan"),
        _plan,
    )
    check = add_command(
        actions,
        "check",
        "compare a table with its archive",
        "Compares counts and offsets of a table with its archive. Exit code 3: they differ.",
        _epilog("check"),
        _check,
    )
    maintain = add_command(
        actions,
        "maintain",
        "rewrite small files, expire snapshots, delete orphans, drop old rows",
        "Rewrites small files, expires snapshots and deletes orphans. Syncs may run meanwhile.",
        _epilog("maintain"),
        _maintain,
    )
    for one in (sync, plan, check, maintain):
        _add_table_options(one)
    for one in (sync, plan):
        _add_sync_options(one)
    _add_running_options(sync)
    add_repeated(
        plan, "--price", PRICE_FORM, "of 1,000 GET or PUT [GET=0.0004, PUT=0.005]", "prices"
    )
    check.add_argument(
        "--deep",
        action="store_true",
        help="compare each value too; reads the archive and the table",
    )
    _add_maintain_options(maintain)
    for one in (sync, maintain):
        one.add_argument(
            "--file-bytes",
            type=int,
            default=argparse.SUPPRESS,
            metavar="BYTES",
            help="rows of a file, in memory; Parquet is 3 to 10 times smaller [134217728]",
        )


def _epilog(*actions: str) -> str:
    examples = "\n".join(_EXAMPLES[action].strip("\n") for action in actions)
    return f"{_NOTES}\nexamples:\n{examples}\n"


def _add_table_options(parser: CommandParser) -> None:
    """Which topic, which table, and how its rows were made."""
    add = parser.add_argument
    add_bucket(parser)
    add(
        "--format",
        choices=("iceberg", "delta"),
        default=argparse.SUPPRESS,
        help="delta: a folder of the warehouse, needs strandline[delta] [iceberg]",
    )
    add("--topic", required=True, help="one topic")
    add("--table", required=True, metavar="NAMESPACE.TABLE", help="a sync makes it if missing")
    parser.add_argument(
        "--catalog",
        metavar="NAME_OR_URI",
        help="sqlite:///FILE, postgresql+psycopg2://..., the URL of an Iceberg REST catalog, or a"
        " name of .pyiceberg.yaml [catalog.db in a warehouse that is a folder, else in"
        " ~/.local/share/strandline]",
    )
    parser.add_argument(
        "--warehouse", metavar="URL", help="where new tables lie [the archive's URL and -tables]"
    )
    add_repeated(
        parser, "--catalog-option", "NAME=VALUE", "a property of pyiceberg's catalog", "properties"
    )
    add_repeated(
        parser,
        "--option",
        "NAME=VALUE",
        "an option of the lake, such as valueFormat, see: strandline docs reference/lake-options;"
        " may be repeated",
        "query_options",
    )
    add_repeated(
        parser,
        "--column",
        "PART=NAME",
        "another name for topic_id, partition, offset, timestamp, key or headers; an empty one"
        " leaves the part out; topic, timestampType and value can be added",
        "columns",
    )


def _add_sync_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--new-incarnation",
        action="store_true",
        help="add rows of a topic that was created again to those of the deleted one",
    )
    parser.add_argument(
        "--until",
        metavar="TIME",
        help="only records before the first at this time: ISO (UTC without a zone) or milliseconds",
    )
    parser.add_argument(
        "--mode",
        choices=("append", "upsert", "debezium"),
        default=argparse.SUPPRESS,
        help="each record is a row; or the newest record of a key is, and null deletes it; or the"
        " same by Debezium's envelope (after, op) [append; a plan takes that of the table]",
    )


def _add_running_options(sync: CommandParser) -> None:
    sync.add_argument(
        "--partition-by",
        action="append",
        metavar="TRANSFORM",
        help="of a new table: day(_timestamp), bucket(16, _key), truncate(4, origin), or a column;"
        " may be repeated [day of the timestamp]",
    )
    add_repeated(sync, "--sort-by", "COLUMN", "order of rows in a file; 'COLUMN desc' reverses it")
    sync.add_argument(
        "--codec",
        default=argparse.SUPPRESS,
        help="of Parquet, for a new table: zstd, snappy, lz4 or gzip [zstd]",
    )
    sync.add_argument(
        "--interval",
        metavar="DURATION",
        help="sync again after each wait of 10s, 5m ...; SIGTERM ends it after the running round",
    )
    sync.add_argument(
        "--engine",
        choices=("local", "spark"),
        default="local",
        help="what reads and writes: this process, or tasks of Spark [local]",
    )
    sync.add_argument(
        "--master",
        metavar="URL",
        help="with --engine spark: spark://HOST:PORT, local[4], or sc://HOST:PORT of a Spark"
        " Connect server [as Spark is configured]",
    )
    sync.add_argument(
        "--on-error",
        choices=("fail", "reject"),
        default=argparse.SUPPRESS,
        help="with a value that does not parse, or is damaged in the archive: end, or add it to the"
        " table NAME_rejected with its bytes and the reason [fail]",
    )


def _add_maintain_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--retention",
        default="keep",
        metavar="keep|follow|DURATION",
        help="follow: drop rows whose records the topic's retention deleted; 30d: drop older rows"
        " [keep]",
    )
    parser.add_argument(
        "--expire-after",
        default="5d",
        metavar="DURATION",
        help="delete older snapshots, except those of tags and branches; of the others a sync keeps"
        " 500 [5d]",
    )
    parser.add_argument(
        "--orphans-after",
        default="3d",
        metavar="DURATION",
        help="delete older files that no snapshot names; two days at least [3d]",
    )


@contextmanager
def _needing_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise InvalidConfig(f"{error}; {how_to_install('table')}") from error


def _run_of(options: argparse.Namespace, *, makes_catalog: bool = False) -> TableRun:
    with _needing_extra():
        from strandline.spark_lake.table.run import TableRequest, TableRun
        from strandline.spark_lake.table.spark_sync import start_session

    check_environment()
    limit_heaps(_HEAPS)
    if getattr(options, "master", None) is not None and options.engine != "spark":
        raise InvalidConfig("--master goes with --engine spark")
    # An option that is not given, or that the command lacks, has the request's default.
    given = {name: getattr(options, name) for name in _REQUESTED if hasattr(options, name)}
    is_spark = getattr(options, "engine", "local") == "spark"
    return TableRun(
        TableRequest(
            remote=options.remote,
            topic=options.topic,
            table=options.table,
            catalog=options.catalog,
            warehouse=options.warehouse,
            catalog_properties=named_values("--catalog-option", options.properties),
            options=_lake_options(options),
            columns=options.columns,
            **given,
        ),
        start_session(options.table, options.master) if is_spark else None,
        makes_catalog=makes_catalog,
    )


def _sync(options: argparse.Namespace) -> int:
    interval_ms = None if options.interval is None else duration_ms(options.interval)
    if interval_ms is not None and options.until is not None:
        raise InvalidConfig("--until ends a sync, --interval repeats it: give one of the two")
    if interval_ms == 0:
        raise InvalidConfig("--interval must be longer than 0s")
    with _needing_extra():
        from strandline.broker.commands.progress import BarProgress
        from strandline.spark_lake.table.continuous import sync_at_intervals

    stop = threading.Event()
    with ExitStack() as rounds:

        @cache
        def opened() -> TableRun:
            """Opens the catalog and asks the registry, once that succeeds."""
            run = _run_of(options, makes_catalog=True)
            # Until now there was no round that SIGTERM could wait for.
            rounds.enter_context(told_by_sigterm(stop))
            return run

        def sync_once() -> SyncReport:
            run = opened()
            with BarProgress(with_rate=True) as progress:
                return run.sync(progress, should_stop=stop.is_set)

        if interval_ms is None:
            report = sync_once()
            _print_report(report)
            return 0 if report.is_complete else TERMINATED
        sync_at_intervals(
            sync_once,
            interval_s=interval_ms / 1000,
            stop=stop,
            on_sync=lambda report: _print_report(report) if report.commits else None,
            on_wait=_tell_wait,
        )
    return 0


def _plan(options: argparse.Namespace) -> int:
    prices = {"GET": 0.0004, "PUT": 0.005, **dict(price_of(one) for one in options.prices)}
    if unknown := set(prices) - {"GET", "PUT"}:
        raise InvalidConfig(f"--price {unknown.pop()}: a sync sends GET and PUT")
    plan = _run_of(options).plan()
    if plan.has is not None and not plan.ranges:
        say(f"table {plan.table} has all that the options select of the archive")
        return 0
    title = f"table {plan.table}, {'there is none yet' if plan.has is None else 'to be added'}"
    print_table(
        title,
        [Column(name=one, is_right=True) for one in ("partition", "from offset", "to offset")],
        [
            (partition.partition, f"{found.start_offset:,}", f"{found.end_offset:,}")
            for partition, found in sorted(plan.ranges.items())
        ],
    )
    scan = plan.scan
    say(
        f"{counted(scan.segments_planned, 'segment')} of {human_bytes(scan.bytes_planned)},"
        f" {counted(plan.offset_count, 'offset')};"
        f"{'' if plan.rewriting is None else ' at least'} {counted(plan.commits, 'commit')}"
    )
    say(
        f"{counted(plan.gets, 'GET')}, at least {counted(plan.puts, 'PUT')}:"
        f" {usd(plan.cost(prices))} (--price)"
    )
    if plan.rewriting is not None:
        _print_rewriting(plan, plan.rewriting, prices)
    return 0


def _print_rewriting(plan: TablePlan, found: Rewriting, prices: Mapping[str, float]) -> None:
    say(
        f"upsert, estimated: each commit reads the keys of {counted(found.file_count, 'file')} of"
        f" {human_bytes(found.size_bytes)} in {counted(found.partition_count, 'partition')}, and"
        " rewrites those that have one of its keys"
    )
    say(
        f"if each commit rewrites them all: {human_bytes(plan.rewritten_bytes_max)} read and"
        f" written, about {counted(plan.gets_max, 'GET')} and {counted(plan.puts_max, 'PUT')}:"
        f" {usd(plan.cost_max(prices))}"
    )


def _check(options: argparse.Namespace) -> int:
    report = _run_of(options).check(deep=options.deep)
    names = ["partition", "rows", "first offset", "last offset", "in the archive", "behind by"]
    is_rejecting = any(one.rejected_rows for one in report.partitions)
    if is_rejecting:
        names.insert(2, "rejected")
    rows = []
    for one in report.partitions:
        ends = ["-" if at is None else f"{at:,}" for at in (one.first_offset, one.last_offset)]
        rows.append(
            [
                str(one.partition),
                f"{one.table_rows:,}",
                *([f"{one.rejected_rows:,}"] if is_rejecting else []),
                *ends,
                f"{one.archive_rows:,}",
                f"{one.behind:,}",
            ]
        )
    columns = [Column(name=one, is_right=True) for one in names]
    print_table(f"table {report.table}", columns, rows)
    for finding in report.findings:
        say(finding)
    if report.uncompared:
        say(f"not compared, because the options have no such field: {', '.join(report.uncompared)}")
    if report.unnamed_findings:
        say(f"and {report.unnamed_findings:,} more like these")
    if report.findings:
        return DIFFERS
    values = f", values of {counted(report.deep_rows, 'row')} too" if options.deep else ""
    say(f"the table has what the archive has{values}")
    return 0


def _maintain(options: argparse.Namespace) -> int:
    orphans_ms = duration_ms(options.orphans_after)
    if orphans_ms < ORPHAN_AGE_MS_MIN:
        raise InvalidConfig(
            f"--orphans-after {options.orphans_after} must be 2d at least: a sync commits files"
            " that are up to a day old"
        )
    run = _run_of(options)
    from strandline.spark_lake.table.sync import FILE_BYTES
    from strandline.spark_lake.table.upkeep.maintain import MaintainSettings
    from strandline.spark_lake.table.upkeep.retention import Retention

    retention = None
    if options.retention != "keep":
        is_follow = options.retention == "follow"
        retention = Retention(age_ms=None if is_follow else duration_ms(options.retention))
    report = run.maintain(
        retention,
        MaintainSettings(
            file_bytes=getattr(options, "file_bytes", FILE_BYTES),
            expire_age_ms=duration_ms(options.expire_after),
            orphan_age_ms=orphans_ms,
        ),
    )
    for one in (report, report.rejected):
        if one is not None:
            _print_maintained(one)
    return 0


def _print_maintained(report: MaintainReport) -> None:
    say(
        f"{report.table}: {counted(report.dropped_rows, 'row')} dropped,"
        f" {counted(report.rewritten_files, 'small file')} rewritten,"
        f" {counted(report.new_files, 'file')} written,"
        f" {counted(report.expired_snapshots, 'snapshot')} expired,"
        f" {counted(report.orphans, 'orphan')} of {human_bytes(report.orphan_bytes)} deleted"
    )


def _print_report(report: SyncReport) -> None:
    say(
        f"{report.table}: {counted(report.rows, 'row')} in {counted(report.files, 'file')} of"
        f" {human_bytes(report.size_bytes)}, {counted(report.commits, 'commit')}"
        + (f", {counted(report.rejected_rows, 'row')} rejected" if report.rejected_rows else "")
        + ("" if report.is_complete else "; stopped before the end, run it again")
    )


def _tell_wait(error: StrandlineError) -> None:
    print(f"strandline: {error}; tried again after the interval", file=sys.stderr, flush=True)


def _lake_options(options: argparse.Namespace) -> dict[str, str]:
    given = named_values("--option", options.query_options)
    for name, value in (
        ("s3.endpoint.url", options.endpoint_url),
        ("s3.region", options.region),
        ("s3.ca.file", options.ca_file),
        ("endingTimestamp", getattr(options, "until", None)),
    ):
        if value is not None:
            given[name] = str(value)
    return given
