"""Scan of the archive into Arrow without Spark or a JVM: for DuckDB, Polars and pandas.

    reader = scan("s3://bucket/prefix", "flights", columns=["key", "timestamp"],
                  filters=[("timestamp", ">=", datetime(2024, 2, 1, tzinfo=UTC))])
    duckdb.sql("select count(*) from reader")        polars.from_arrow(reader)

The plan, the pruning and the decoding are those of the Spark source. Rows come in order of topic,
partition and offset. Splits are read by a few threads at once, which holds because decompression
and the compiled loops release the GIL:

    threads   [split 0][split 3]      each into a queue of its own of QUEUE_BATCHES_MAX batches
              [split 1][split 4]
    reader    0, then 1, then 2 ...   in the order of the splits
"""

from __future__ import annotations

import datetime as dt
import operator
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, SupportsIndex, TypeAlias

import pyarrow as pa

from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.options.given_options import nearest, option_texts
from strandline.spark_lake.options.options import COLUMNS, Engine, LakeOptions
from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.plan.predicate import Comparison, Operator, Predicate, taken
from strandline.spark_lake.plan.splits import Split
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.query.query_log import log_event, read_fields, telling_of_silence
from strandline.storage.errors import InvalidConfig
from strandline.storage.moments import checked_ms
from strandline.storage.records.columns.vectorised import INT64_MAX, INT64_MIN

# Two threads keep the network and a core busy; more than four wait for the GIL.
THREADS_MAX = 4
# Batches (about 2 MiB each) that a split may be ahead of its reader.
QUEUE_BATCHES_MAX = 4
# Interval at which a thread with a full queue checks for a closed reader.
LOOK_S = 0.2

OptionValue: TypeAlias = str | int | bool | Mapping[str, object] | None
FilterTuple: TypeAlias = tuple[str, str, object]

_OPERATORS: Mapping[str, tuple[Operator, bool]] = {
    "=": (Operator.EQUAL, False),
    "==": (Operator.EQUAL, False),
    "!=": (Operator.EQUAL, True),
    "<": (Operator.LESS, False),
    "<=": (Operator.LESS_OR_EQUAL, False),
    ">": (Operator.GREATER, False),
    ">=": (Operator.GREATER_OR_EQUAL, False),
    "in": (Operator.IN, False),
    "not in": (Operator.IN, True),
}


# Iterables that are no lists of values.
_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping)
_TAKES = {
    **dict.fromkeys(("key", "value"), "text or bytes"),
    "topic": "text",
    **dict.fromkeys(("partition", "offset", "timestampType"), "a whole number"),
    "timestamp": "a datetime with a zone, or milliseconds since 1970",
}


def scan(
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    columns: str | Sequence[str] | None = None,
    filters: Sequence[FilterTuple] = (),
    options: Mapping[str, OptionValue] | None = None,
    threads: int | None = None,
) -> pa.RecordBatchReader:
    """Returns the records of these topics; nothing but the plan is read before the first batch is.

    `filters` are `(column, operator, value)`, joined by "and", as pyarrow and pandas write them.
    `options`: docs/reference/lake-options.md, `topics` stands for `subscribe`.

    Raises InvalidConfig for invalid arguments, a TierError for errors of the bucket; the reader
    raises the errors of `Query.read`.
    """
    query = make_query(path, topics, columns=columns, filters=filters, options=options)
    refuse_jvm(query, "scan")
    with telling_of_silence(query.options.url):
        reader = query.open()
        plan = query.plan(reader)
    batches = read_in_order(query, plan, reader, threads=threads or default_threads())
    return pa.RecordBatchReader.from_batches(query.schema, _told(batches, query.options.url))


def _told(batches: Iterator[Any], url: str) -> Iterator[Any]:
    with telling_of_silence(url):
        yield from batches


def make_query(
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    columns: str | Sequence[str] | None = None,
    filters: Sequence[FilterTuple] = (),
    options: Mapping[str, OptionValue] | None = None,
) -> Query:
    """Raises InvalidConfig."""
    given = option_texts(options or {})
    arguments = {"path": os.fspath(path)}
    if topics is not None:
        arguments["subscribe"] = joined("topics", topics)
    if columns is not None:
        arguments["columns"] = joined("columns", columns)
    for name in given:
        if name.lower() in arguments:
            raise InvalidConfig(f"option {name} is given twice: as an argument, and as an option")
    given |= arguments
    parsed = LakeOptions.parse(given)
    _refuse_one_filter(filters)
    predicate, residual = Predicate(), []
    for one in filters:
        comparison = _comparison(one)
        more = taken(predicate, comparison)
        if more is None:
            residual.append(comparison)
        else:
            predicate = more
    return Query(parsed, columns=parsed.columns, predicate=predicate, residual=residual)


def joined(argument: str, names: str | Sequence[str]) -> str:
    """Names separated by commas. Raises InvalidConfig for a mapping: its values would be unused."""
    if isinstance(names, Mapping):
        raise InvalidConfig(
            f"{argument} is {names!r}, it must be a name or a list of names; option assign names"
            " partitions too"
        )
    return names if isinstance(names, str) else ",".join(names)


def _refuse_one_filter(filters: object) -> None:
    """Raises InvalidConfig for a filter outside a list: its parts would be taken for filters."""
    if isinstance(filters, str) or (
        isinstance(filters, Sequence) and any(isinstance(one, str) for one in filters)
    ):
        raise InvalidConfig(
            f"filters is {filters!r}, it must be a list of (column, operator, value)"
        )


def refuse_jvm(query: Query, asked: str) -> None:
    """Raises InvalidConfig for engine=jvm: these functions have no JVM."""
    if query.options.engine is Engine.JVM:
        raise InvalidConfig(
            f"option engine is jvm, but {asked} reads in Python: leave it out, or use load"
        )


def default_threads() -> int:
    """Returns the default number of splits read at once: one per core, THREADS_MAX at most."""
    return min(THREADS_MAX, os.cpu_count() or 1)


def read_in_order(
    query: Query, plan: ScanPlan, reader: ObjectReader, *, threads: int
) -> Iterator[Any]:
    """Yields the batches of all splits in order; ends its threads when it is closed early.

    If there are none, yields one without rows: Polars takes the types from a batch.
    """
    rows = batches = 0
    planning = reader.statistics()
    try:
        with _SplitThreads(query, reader, threads) as running:
            for batch in running.batches(plan.splits):
                rows += batch.num_rows
                batches += 1
                yield batch
        if not batches:
            yield pa.RecordBatch.from_pylist([], schema=query.schema)
    finally:
        log_event("scan read", read_fields(plan, rows, reader.statistics(), planning=planning))


class _SplitThreads:
    """Thread pool that reads several splits at once, each into a bounded queue."""

    def __init__(self, query: Query, reader: ObjectReader, threads: int) -> None:
        self._query = query
        self._reader = reader
        self._threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="lake-split")
        self._closed = threading.Event()

    def __enter__(self) -> _SplitThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def batches(self, splits: Sequence[Split]) -> Iterator[Any]:
        queues: list[queue.Queue[Any]] = []
        process = os.getpid()
        for number in range(len(splits)):
            # One more split than threads is submitted, so that no thread is idle.
            while len(queues) < min(len(splits), number + self._threads + 1):
                made: queue.Queue[Any] = queue.Queue(QUEUE_BATCHES_MAX)
                self._pool.submit(self._fill, splits[len(queues)], made)
                queues.append(made)
            while (item := queues[number].get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                yield item
                if process != os.getpid():
                    # The threads belong to the other process: waiting for them would never end.
                    raise InvalidConfig(
                        "this reader was begun in another process, before a fork: make one with"
                        " scan in the process that reads it"
                    )

    def _fill(self, split: Split, into: queue.Queue[Any]) -> None:
        try:
            for batch in self._query.read(split, self._reader):
                if not self._put(into, batch):
                    return
            self._put(into, _END)
        except BaseException as error:  # any error is raised in the reader
            self._put(into, error)

    def _put(self, into: queue.Queue[Any], item: object) -> bool:
        while not self._closed.is_set():
            try:
                into.put(item, timeout=LOOK_S)
            except queue.Full:
                continue
            return True
        return False


_END = object()


def _comparison(one: FilterTuple) -> Comparison:
    """Parses a filter. Raises InvalidConfig for one that no column can have."""
    try:
        column, symbol, value = one
    except (TypeError, ValueError) as error:
        raise InvalidConfig(f"filter {one!r} must be (column, operator, value)") from error
    if column not in COLUMNS:
        raise InvalidConfig(
            f"filter {one!r}: the nearest column is {nearest(str(column), COLUMNS)}; the columns to"
            f" filter by are {', '.join(COLUMNS)}"
        )
    if symbol not in _OPERATORS:
        raise InvalidConfig(f"filter {one!r}: the operators are {', '.join(_OPERATORS)}")
    compared, negated = _OPERATORS[symbol]
    if compared is Operator.IN:
        if isinstance(value, _NO_LISTS) or not isinstance(value, Iterable):
            raise InvalidConfig(f"filter {one!r}: {symbol} wants a list")
        return Comparison(column, compared, [_value(one, column, v) for v in value], negated)
    return Comparison(column, compared, _value(one, column, value), negated)


def _value(one: FilterTuple, column: str, value: object) -> object:
    """The value in the type of the column. Raises InvalidConfig if they cannot be compared."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        # The integers of numpy and pandas are not of type int.
        with suppress(TypeError):
            value = operator.index(value)
    match column, value:
        case "key" | "value", str():
            return value.encode()
        case "key" | "value", bytes() | bytearray() | memoryview():
            return bytes(value)
        case "topic", str():
            return value
        case "partition" | "offset" | "timestampType", int() if not isinstance(value, bool):
            if not INT64_MIN <= value <= INT64_MAX:
                raise InvalidConfig(f"filter {one!r}: {value} is no number of 64 bits")
            return value
        case "timestamp", dt.datetime():
            if value.tzinfo is None:
                raise InvalidConfig(f"filter {one!r}: the time needs a zone, such as UTC")
            return value
        case "timestamp", int() if not isinstance(value, bool):
            return _moment(one, value)
    raise InvalidConfig(
        f"filter {one!r}: {column} cannot be compared with {value!r}, but with {_TAKES[column]}"
    )


def _moment(one: FilterTuple, timestamp_ms: int) -> dt.datetime:
    try:
        since_1970 = dt.timedelta(milliseconds=checked_ms(timestamp_ms))
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + since_1970
    except ValueError as error:
        raise InvalidConfig(f"filter {one!r}: {error}") from error
    except OverflowError as error:
        raise InvalidConfig(
            f"filter {one!r}: a timestamp is milliseconds since 1970, in years 1 to 9999"
        ) from error
