"""`strandline table sync`: an Iceberg or Delta table of a topic, from its archive."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from strandline.broker.commands.sigterm import TERMINATED, told_by_sigterm
from strandline.broker.tools.client.printing import human_bytes, say
from strandline.broker.tools.client.timestamps import duration_ms
from strandline.broker.tools.commands.options import (
    Commands,
    add_actions,
    add_bucket_access,
    add_command,
    add_repeated,
)
from strandline.storage.crash_points import check_environment
from strandline.storage.errors import InvalidConfig, StorageError
from strandline.storage.extras import how_to_install
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from strandline.spark_lake.table.sync import SyncReport

_EXAMPLES = """
Reads the archive, never a broker; no row twice, and none missing, also after a kill: run
it again. What the table has is in the table. Needs strandline[table].

examples:
  strandline table sync --remote s3://my-bucket/my-cluster --topic orders --table lake.orders \\
      --option valueFormat=json --option valueSchema='id BIGINT, city STRING'
  strandline table sync --remote file:///srv/archive --topic orders --table lake.orders
  strandline table sync --remote s3://my-bucket/my-cluster --topic orders --table lake.orders \\
      --catalog https://catalog.example.com --until 1706745600000
  strandline table sync --remote s3://my-bucket/my-cluster --topic orders --table lake.orders \\
      --interval 10s
"""


def add_table(commands: Commands) -> None:
    """Adds the command and its actions."""
    table = add_command(
        commands,
        "table",
        "keep an Iceberg or Delta table of a topic, from its archive",
        "Keeps an Iceberg or Delta table of a topic, from its archive.",
        _EXAMPLES,
    )
    sync = add_command(
        add_actions(table),
        "sync",
        "bring a table up to what the archive has",
        "Brings a table up to what the archive has of a topic, and ends; or again and again.",
        _EXAMPLES,
        _sync,
    )
    sync.add_argument("--remote", required=True, metavar="URL", help="as in strandline.remote.url")
    sync.add_argument("--topic", required=True, help="one topic")
    sync.add_argument("--table", required=True, metavar="NAMESPACE.TABLE", help="made if missing")
    sync.add_argument(
        "--catalog",
        metavar="NAME_OR_URI",
        help="sqlite:///FILE, postgresql+psycopg2://..., the URL of an Iceberg REST catalog, or a"
        " name of .pyiceberg.yaml [catalog.db in a warehouse that is a folder, else in"
        " ~/.local/share/strandline]",
    )
    sync.add_argument(
        "--warehouse", metavar="URL", help="where new tables lie [the archive's URL and -tables]"
    )
    add_repeated(
        sync, "--catalog-option", "NAME=VALUE", "a property of pyiceberg's catalog", "properties"
    )
    add_repeated(
        sync,
        "--option",
        "NAME=VALUE",
        "an option of the Spark source, such as valueFormat, see docs/reference/lake-options.md;"
        " may be repeated",
        "query_options",
    )
    add_repeated(
        sync,
        "--column",
        "PART=NAME",
        "another name for topic_id, partition, offset, timestamp, key or headers; an empty one"
        " leaves the part out; topic, timestampType and value can be added",
        "columns",
    )
    sync.add_argument(
        "--partition-by",
        action="append",
        metavar="TRANSFORM",
        help="of a new table: day(_timestamp), bucket(16, _key), truncate(4, origin), or a column;"
        " may be repeated [day of the timestamp]",
    )
    add_repeated(sync, "--sort-by", "COLUMN", "order of rows in a file; 'COLUMN desc' reverses it")
    sync.add_argument("--codec", default="zstd", help="of Parquet, for a new table [zstd]")
    when = sync.add_mutually_exclusive_group()
    when.add_argument(
        "--until", type=int, metavar="MS", help="only records before the first at this time"
    )
    when.add_argument(
        "--interval",
        metavar="DURATION",
        help="go on, with a sync every 10s, 5m ...; SIGTERM ends it after the round that runs",
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
        "--format",
        choices=("iceberg", "delta"),
        default="iceberg",
        help="delta: a folder of the warehouse, needs strandline[delta] [iceberg]",
    )
    sync.add_argument(
        "--mode",
        choices=("append", "upsert", "debezium"),
        default="append",
        help="each record is a row; or the newest record of a key is, and null deletes it; or the"
        " same by Debezium's envelope (after, op) [append]",
    )
    sync.add_argument(
        "--on-error",
        choices=("fail", "reject"),
        default="fail",
        help="with a value that does not parse: end, or add it to the table NAME_rejected with its"
        " bytes and the reason [fail]",
    )
    sync.add_argument(
        "--new-incarnation",
        action="store_true",
        help="add rows of a topic that was deleted and made anew beside those of the old one",
    )
    add_bucket_access(sync)


def _sync(options: argparse.Namespace) -> int:
    try:
        from strandline.spark_lake.table.continuous import sync_at_intervals
        from strandline.spark_lake.table.run import TableRequest, TableRun
        from strandline.spark_lake.table.spark_sync import start_session
    except ImportError as error:
        raise InvalidConfig(f"{error}; {how_to_install('table')}") from error
    from strandline.broker.commands.progress import BarProgress

    check_environment()
    if options.master is not None and options.engine != "spark":
        raise InvalidConfig("--master goes with --engine spark")
    interval_ms = None if options.interval is None else duration_ms(options.interval)
    run = TableRun(
        TableRequest(
            remote=options.remote,
            topic=options.topic,
            table=options.table,
            catalog=options.catalog,
            warehouse=options.warehouse,
            catalog_properties=_named("--catalog-option", options.properties),
            options=_lake_options(options),
            format=options.format,
            mode=options.mode,
            on_error=options.on_error,
            columns=options.columns,
            partition_by=options.partition_by,
            sort_by=options.sort_by,
            codec=options.codec,
            new_incarnation=options.new_incarnation,
        ),
        start_session(options.table, options.master) if options.engine == "spark" else None,
    )
    with told_by_sigterm() as stop:

        def sync_once() -> SyncReport:
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
            on_outage=_tell_outage,
        )
    return 0


def _print_report(report: SyncReport) -> None:
    say(
        f"{report.table}: {counted(report.rows, 'row')} in {counted(report.files, 'file')} of"
        f" {human_bytes(report.size_bytes)}, {counted(report.commits, 'commit')}"
        + (f", {counted(report.rejected_rows, 'row')} rejected" if report.rejected_rows else "")
        + ("" if report.is_complete else "; stopped before the end, run it again")
    )


def _tell_outage(error: StorageError) -> None:
    print(f"strandline: {error}; tried again after the interval", file=sys.stderr, flush=True)


def _lake_options(options: argparse.Namespace) -> dict[str, str]:
    given = _named("--option", options.query_options)
    for name, value in (
        ("s3.endpoint.url", options.endpoint_url),
        ("s3.region", options.region),
        ("endingTimestamp", options.until),
    ):
        if value is not None:
            given[name] = str(value)
    return given


def _named(option: str, texts: list[str]) -> dict[str, str]:
    named = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise InvalidConfig(f"{option} {text!r} must be NAME=VALUE")
        named[name] = value
    return named
