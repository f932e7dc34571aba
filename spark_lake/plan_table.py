"""`strandline lake plan`: what a query would read, and why not the rest, as tables. Reads no log.

On a terminal the tables are drawn to its width; into a pipe they are written wide and plain.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from strandline.spark_lake.arrow_scan import FilterTuple, make_query
from strandline.spark_lake.planner import ScanPlan, readable_size
from strandline.spark_lake.query_log import all_requests, planned_requests
from strandline.storage.errors import InvalidConfig

PIPE_WIDTH = 200
_OPERATORS = (">=", "<=", "!=", "==", "=", ">", "<")
_NUMBERS = ("partition", "offset", "timestampType")


def print_plan(
    url: str, *, topics: str | None, where: Sequence[str], options: Sequence[str]
) -> int:
    """Plans the query and prints it; the exit code. Raises StrandlineError."""
    given = dict(_option(text) for text in options)
    query = make_query(url, topics, filters=[parse_filter(text) for text in where], options=given)
    reader = query.open()
    plan = query.plan(reader)
    statistics = reader.statistics()
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    console.print(_partitions(plan))
    console.print(_skipped(plan))
    requests, requests_total = planned_requests(plan.splits), all_requests(plan)
    console.print(
        f"{len(plan.splits)} splits, {requests} of about {requests_total} requests;"
        f" planning took {statistics.request_count} requests,"
        f" {readable_size(statistics.bytes_read)}",
        highlight=False,
    )
    return 0


def _partitions(plan: ScanPlan) -> Table:
    table = Table(title="read, of what the topics hold", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("partition")
    for name in ("segments", "chunks", "bytes"):
        table.add_column(name, justify="right")
    for one in plan.partitions:
        table.add_row(
            str(one.topic_partition),
            _of(one.segments_planned, one.segments_total),
            _of(one.chunks_planned, one.chunks_total),
            f"{readable_size(one.bytes_planned)} of {readable_size(one.bytes_total)}",
        )
    table.add_section()
    table.add_row(
        "all",
        _of(plan.segments_planned, plan.segments_total),
        _of(plan.chunks_planned, plan.chunks_total),
        f"{readable_size(plan.bytes_planned)} of {readable_size(plan.bytes_total)}"
        f" ({plan.bytes_planned / max(1, plan.bytes_total):.2%})",
    )
    return table


def _skipped(plan: ScanPlan) -> Table:
    table = Table(title="not read, because of", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("reason")
    for name in ("segments", "bytes"):
        table.add_column(name, justify="right")
    for reason, left_out in plan.skipped.items():
        table.add_row(
            reason.value, f"{left_out.segment_count:,}", readable_size(left_out.size_bytes)
        )
    return table


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}"


# --- what the command line says ---------------------------------------------------------------


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidConfig(f"--option {text!r} must be NAME=VALUE")
    return name.strip(), value


def parse_filter(text: str) -> FilterTuple:
    """`timestamp >= 2024-02-01T10:00Z` as `scan(filters=...)` takes it. Raises InvalidConfig."""
    found = [(text.index(one), -len(one), one) for one in _OPERATORS if one in text]
    if not found:
        raise InvalidConfig(f"--where {text!r} must be COLUMN OPERATOR VALUE")
    position, _, operator = min(found)
    column, value = text[:position].strip(), text[position + len(operator) :].strip().strip("'\"")
    try:
        if column in _NUMBERS:
            return column, operator, int(value)
        if column == "timestamp":
            return column, operator, _moment(value)
    except ValueError as error:
        raise InvalidConfig(f"--where {text!r}: {error}") from error
    return column, operator, value


def _moment(text: str) -> dt.datetime | int:
    """Milliseconds, or an ISO time; one without a zone is UTC."""
    if text.lstrip("-").isdecimal():
        return int(text)
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
