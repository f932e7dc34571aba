"""Choice of the reader of a frame: inside the JVM if available, else in Python.

    engine=auto      the JVM's if possible, else Python's with a log line that has the reason
    engine=jvm       the JVM's, or an error with the reason
    engine=python    Python's

The JVM's reader takes a plan (`plan`) and returns the same rows. No row passes a socket from a
Python process, which costs more than decoding (docs/decisions, 22).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.archive.old_segments import may_be_old, old_partitions
from strandline.spark_lake.jvm.jar import NoJvmReader, jar_path
from strandline.spark_lake.jvm.plan import encode_plan, keys_read
from strandline.spark_lake.options.options import Engine, LakeOptions
from strandline.spark_lake.options.value_options import ValueFormat
from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.plan.predicate import COMPARED, Comparison, Operator
from strandline.spark_lake.plan.splits import Split
from strandline.spark_lake.query.pruning import is_worth_it
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.query.query_log import log_event
from strandline.storage.clock import SystemClock
from strandline.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SOURCE_CLASS = "strandline.spark.ArchiveSource"
# A signature and hundreds of bytes of the plan each, which one option of a source has to hold.
SIGNED_MAX = 10_000
_DECODED = "values are decoded in Python (valueFormat)"
# Ids of the sessions that have the jar.
_SESSIONS_MAX = 256
_with_jar: set[str] = set()


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine of one query; `reason` says why it is not the JVM's."""

    engine: Engine
    reason: str = ""

    def fields(self) -> dict[str, str]:
        """For the line of the query."""
        return {"engine": self.engine.value} | ({"why": self.reason} if self.reason else {})


def choose_engine(
    query: Query, plan: ScanPlan, *, spark: SparkSession | None = None, reason: str = ""
) -> Choice:
    """Returns the choice; adds the jar to a session that lacks it if the JVM reads.

    `reason` is a further reason to read in Python. Raises InvalidConfig if option engine is jvm and
    the JVM's reader is not available.
    """
    wanted = query.options.engine
    if wanted is Engine.PYTHON:
        return Choice(Engine.PYTHON, "engine=python was asked for")
    reason = reason or _only_in_python(query, plan)
    if not reason:
        try:
            if spark is not None:
                add_jar(spark)
            return Choice(Engine.JVM)
        except NoJvmReader as error:
            reason = str(error)
    if wanted is Engine.JVM:
        raise InvalidConfig(f"option engine is jvm, but {reason}")
    log_event("read in Python", {"why": reason})
    return Choice(Engine.PYTHON, reason)


def ruled_out(options: LakeOptions, columns: Sequence[str] | None = None) -> str:
    """Returns the reason why these options need the reader in Python; empty if they do not.

    `columns` are those of a query, if it leaves some out.
    """
    wanted = options.columns if columns is None else columns
    if options.values.format is not ValueFormat.RAW and "value" in wanted:
        return _DECODED
    if options.scan_report is not None:
        return "only tasks in Python write a scanReport"
    if options.s3.requester_pays:
        return "a signed URL names no payer (s3.requester.pays)"
    return ""


def _only_in_python(query: Query, plan: ScanPlan) -> str:
    options = query.options
    if query.values is not None:
        return _DECODED
    if reason := ruled_out(options, query.columns):
        return reason
    if query.predicate.keys is not None and any(
        piece.ranges is None and is_worth_it(piece.entry, split.limits, query.predicate.keys)
        for split in plan.splits
        for piece in split.slices
    ):
        return "tasks have to look into key filters"
    signed = sum(len(split.slices) for split in plan.splits)
    if not options.url.startswith("file://") and signed > SIGNED_MAX:
        return f"{signed} objects would have to be signed, more than {SIGNED_MAX}"
    return ""


# --- the jar -----------------------------------------------------------------------------------


def add_jar(spark: SparkSession) -> None:
    """Adds the jar to the session and its executors, once. Raises NoJvmReader."""
    try:
        session = _session_id(spark)
        if session in _with_jar:
            return
        jar = jar_path()
        if is_connect(spark):
            spark.addArtifacts(str(jar))
        else:
            _add_to_driver(spark, jar)
            spark.sql(f"ADD JAR '{jar}'")
    except NoJvmReader:
        raise
    except Exception as error:  # py4j, grpc and Spark have their own families
        raise NoJvmReader(f"Spark does not take the jar: {_first_line(error)}") from error
    if len(_with_jar) >= _SESSIONS_MAX:
        _with_jar.clear()
    _with_jar.add(session)


def is_connect(spark: SparkSession) -> bool:
    """Returns whether this is a client of Spark Connect, which has no JVM at hand."""
    return "connect" in type(spark).__module__


def _session_id(spark: Any) -> str:
    if is_connect(spark):
        return str(spark.session_id)
    uuid = spark._jsparkSession.sessionUUID()  # noqa: SLF001  # sessions share all else
    return f"{spark.sparkContext.applicationId}/{uuid}"


def _add_to_driver(spark: Any, jar: Path) -> None:
    """Adds it for all threads of the driver: ADD JAR serves executors and its own thread only."""
    jvm = spark._jvm  # noqa: SLF001  # no public way to the class loader
    loader = spark._jsparkSession.sharedState().jarClassLoader()  # noqa: SLF001
    mutable = jvm.java.lang.Class.forName("org.apache.spark.util.MutableURLClassLoader")
    while mutable.isInstance(loader.getParent()):
        loader = loader.getParent()
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"


# --- the frame ---------------------------------------------------------------------------------


def divided(plan: ScanPlan, reader: ObjectReader) -> tuple[list[Split], list[Split]]:
    """Returns the splits that the JVM reads, and those that tasks in Python have to.

    Of the latter are pieces of an open segment, which may be replaced meanwhile, and messages of
    the formats before Kafka 0.11. Asks for the first bytes of a partition's first segment where
    they may be of that age. Raises as `ObjectReader.get` does.
    """
    old = old_partitions(plan.splits, reader)
    inside: list[Split] = []
    others: list[Split] = []
    for split in plan.splits:
        is_old = split.topic_partition in old and any(map(may_be_old, split.slices))
        # The last segments of a partition share a split with the pieces behind them.
        for is_open, slices in groupby(split.slices, key=lambda piece: piece.is_open):
            part = replace(split, slices=tuple(slices))
            (others if is_open or is_old else inside).append(part)
    return inside, others


def planned(query: Query, plan: ScanPlan, reader: ObjectReader) -> tuple[str, Sequence[Split]]:
    """The JVM's part of a plan for `format("strandline")`, and the splits that Python reads.

    Logs the line of the query. Raises InvalidConfig if option engine is jvm and the JVM cannot read
    this plan, and what `divided` does.
    """
    # Spark will not evaluate the pushed key filter.
    reason = "" if query.predicate.keys is None else "keys are compared in Python"
    choice = choose_engine(query, plan, reason=reason)
    query.log_plan(plan, reader, choice.fields())
    inside, others = divided(plan, reader) if choice.engine is Engine.JVM else ([], plan.splits)
    return signed_plan(query, plan, inside, reader, columns=query.columns), others


def jvm_frame(
    spark: SparkSession, query: Query, plan: ScanPlan, inside: Sequence[Split], reader: ObjectReader
) -> DataFrame:
    """Returns the rows of the splits `inside` of a plan; Spark evaluates what filters are left."""
    tests = list(query.residual)
    if query.predicate.keys is not None:
        tests.append(Comparison("key", Operator.IN, sorted(query.predicate.keys)))
    encoded = signed_plan(
        query,
        plan,
        inside,
        reader,
        columns=tuple(dict.fromkeys([*query.columns, *(one.column for one in tests)])),
    )
    frame = spark.read.format(SOURCE_CLASS).option("plan", encoded).load()
    if tests:
        frame = frame.where(_joined(tests)).select(*query.columns)
    return frame


def signed_plan(
    query: Query,
    plan: ScanPlan,
    inside: Sequence[Split],
    reader: ObjectReader,
    *,
    columns: Sequence[str],
) -> str:
    """The splits `inside` of a plan as the JVM's source takes them, with a URL for each object."""
    expires_s = query.options.url_expiry_s
    signed_until_ms = 0
    if not query.options.url.startswith("file://"):
        signed_until_ms = SystemClock().now_ms() + expires_s * 1000
    addresses = reader.addresses(keys_read(inside), expires_s)
    return encode_plan(
        query,
        plan,
        inside,
        addresses.__getitem__,
        columns=columns,
        signed_until_ms=signed_until_ms,
    )


def _joined(tests: Sequence[Comparison]) -> Column:
    return reduce(lambda left, right: left & right, map(_column, tests))


def _column(one: Comparison) -> Column:
    from pyspark.sql.functions import col, lit

    column = col(one.column)
    if one.operator is Operator.IN:
        assert isinstance(one.value, list | tuple), one
        test = column.isin([lit(value) for value in one.value])
    else:
        test = COMPARED[one.operator](column, lit(one.value))
    # As everywhere in the lake, a null passes no negated test, not even that of an empty list.
    return ~test & column.isNotNull() if one.negated else test
