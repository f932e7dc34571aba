"""`strandline lake plan`: tables of what a query reads and skips, and why. Reads no log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

from strandline.broker.tools.client.printing import say
from strandline.broker.tools.client.tables import Column, print_table
from strandline.spark_lake.options.given_options import named_values
from strandline.spark_lake.options.options import SPLIT_BYTES
from strandline.spark_lake.plan.planner import PartitionPlan, ScanPlan
from strandline.spark_lake.plan.predicate import Comparison
from strandline.spark_lake.query.arrow_scan import FilterTuple, make_query
from strandline.spark_lake.query.pruning import PRUNED_SEGMENT_BYTES_MIN, is_worth_it
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.query.query_log import all_requests, planned_requests
from strandline.storage.errors import InvalidConfig
from strandline.storage.plurals import counted, human_bytes

# Partitions with a row of their own; all unread partitions share one.
ROWS_MAX = 40
RUNS_MAX = 4
_OPERATORS = (">=", "<=", "!=", "==", "=", ">", "<")
_SELECTIONS = ("subscribe", "subscribepattern", "assign")
_NUMBERS = ("partition", "offset", "timestampType")


def print_plan(
    url: str, *, topics: str | None, where: Sequence[str], options: Sequence[str]
) -> int:
    """Prints the plan of a query; returns the exit code. Raises StrandlineError."""
    given = named_values("--option", options)
    if topics is None and not any(name.lower() in _SELECTIONS for name in given):
        raise InvalidConfig(
            "--topic is missing: topics joined by commas; or --option subscribePattern=PATTERN"
        )
    query = make_query(url, topics, filters=[parse_filter(text) for text in where], options=given)
    reader = query.open()
    plan = query.plan(reader)
    statistics = reader.statistics()
    _print_topics(plan)
    if plan.skipped:
        _print_skipped(plan)
    say(
        f"{_splits(query, plan)}; {_requests(plan)}; planning took"
        f" {counted(statistics.request_count, 'request')}, {human_bytes(statistics.bytes_read)}"
    )
    if plan.pieces_planned:
        say(
            f"{counted(plan.pieces_planned, 'piece')} of open segments among the segments: no"
            " filter on time or key spares them, includeOpenSegment=false leaves them out"
        )
    for line in _keys(query, plan):
        say(line)
    if query.residual:
        tests = ", ".join(f"{one.column} {_symbol(one)}" for one in query.residual)
        say(f"Rows are tested when they are read, which spares no bytes: {tests}")
    return 0


def _splits(query: Query, plan: ScanPlan) -> str:
    count = counted(len(plan.splits), "split")
    if query.sizes_are_given:
        return f"{count}, each a task of Spark"
    # The number of tasks that will run at once is unknown here.
    return f"{count} of up to {human_bytes(SPLIT_BYTES)}, unless Spark cuts for its cores"


def _requests(plan: ScanPlan) -> str:
    planned, everything = planned_requests(plan.splits), all_requests(plan)
    if planned <= everything:
        return f"{planned:,} of about {counted(everything, 'request')}"
    # Each separate chunk is a request; a full read is in whole windows.
    return (
        f"{counted(planned, 'request')}, where {counted(everything, 'larger one')}"
        " would read everything"
    )


def _keys(query: Query, plan: ScanPlan) -> Iterator[str]:
    """Yields the reasons to read segments that may not have a wanted key."""
    keys = query.predicate.keys
    if keys is None:
        return
    small: set[str] = set()
    later: set[str] = set()
    for split in plan.splits:
        for piece in split.slices:
            if piece.ranges is None and is_worth_it(piece.entry, split.limits, keys):
                later.add(piece.entry.log_key)
            elif not piece.is_open and piece.entry.size_bytes <= PRUNED_SEGMENT_BYTES_MIN:
                small.add(piece.entry.log_key)
    if small:
        yield (
            f"{counted(len(small), 'segment')} of up to {human_bytes(PRUNED_SEGMENT_BYTES_MIN)}:"
            " not asked for the keys they have, which costs what reading them does"
        )
    if later:
        yield (
            f"{counted(len(later), 'segment')} may be spared by the tasks: too many to be asked"
            " for their keys here"
        )


def _symbol(one: Comparison) -> str:
    return "!=" if one.negated else one.operator.value


def _print_topics(plan: ScanPlan) -> None:
    topics = {one.topic_partition.topic for one in plan.partitions}
    topics |= {one.topic for one in plan.empty}
    for topic in sorted(topics):
        _print_topic(
            topic,
            [one for one in plan.partitions if one.topic_partition.topic == topic],
            [one.partition for one in plan.empty if one.topic == topic],
        )
    if len(topics) != 1:
        _print("all topics", "", [_row("", plan.partitions)])


def _print_topic(topic: str, plans: Sequence[PartitionPlan], empty: Sequence[int]) -> None:
    read = [one for one in plans if one.segments_planned]
    unread = [one for one in plans if not one.segments_planned]
    rows = [_row(str(one.topic_partition.partition), [one]) for one in read[:ROWS_MAX]]
    if len(read) > ROWS_MAX:
        rows.append(_row(f"{len(read) - ROWS_MAX} more", read[ROWS_MAX:]))
    if unread:
        rows.append(_row(_numbers([one.topic_partition.partition for one in unread]), unread))
    if empty:
        rows.append((_numbers(empty), "", "", "nothing archived yet"))
    if len(plans) > 1:
        rows.append(_row("all", plans))
    _print(topic, "partition", rows)


def _print(title: str, first: str, rows: Sequence[Sequence[str]]) -> None:
    numbers = [Column(name=one, is_right=True) for one in ("segments read", "chunks", "bytes")]
    print_table(title, [first, *numbers], rows)


def _row(name: str, plans: Sequence[PartitionPlan]) -> tuple[str, ...]:
    planned = sum(one.bytes_planned for one in plans)
    total = sum(one.bytes_total for one in plans)
    share = f" ({planned / max(1, total):.2%})" if len(plans) != 1 else ""
    return (
        name,
        _of(sum(one.segments_planned for one in plans), sum(one.segments_total for one in plans)),
        _of(sum(one.chunks_planned for one in plans), sum(one.chunks_total for one in plans)),
        f"{human_bytes(planned)} of {human_bytes(total)}{share}",
    )


def _numbers(numbers: Sequence[int]) -> str:
    """`0, 2 to 5, 9`; only their count if that would be long."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    if len(runs) > RUNS_MAX:
        return counted(len(numbers), "partition")
    return ", ".join(f"{run[0]} to {run[1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _print_skipped(plan: ScanPlan) -> None:
    print_table(
        "not read, because of",
        ["reason", *(Column(name=one, is_right=True) for one in ("segments", "bytes"))],
        [
            (reason.value, f"{left_out.segment_count:,}", human_bytes(left_out.size_bytes))
            for reason, left_out in plan.skipped.items()
        ],
    )


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}"


# --- arguments --------------------------------------------------------------------------------


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
        kind = "a time such as 2024-02-01T10:00Z, or milliseconds"
        raise InvalidConfig(
            f"--where {text!r}: {column} is compared with"
            f" {kind if column == 'timestamp' else 'a whole number'}"
        ) from error
    return column, operator, value


def _moment(text: str) -> dt.datetime | int:
    """Milliseconds, or an ISO time; one without a zone is UTC."""
    if text.lstrip("-").isdecimal():
        return int(text)
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
