"""The Python data sources of `format("strandline")`, by the process in which Spark calls them.

    driver    StrandlineDataSource(options)   options are checked: a wrong one fails in `load()`
    planner   reader(schema).pushFilters(...).partitions()     reads manifests, makes the splits
    executor  read(split)                                      one split, as Arrow record batches

Spark finds the format in our jar (`Strandline.scala`), for which the Python source below plans each
query. If Spark does not accept the jar, the Python source is the format, without filters: Spark
keeps the plan of a Python source with the frame, filters included, for the next query too.

Spark runs each of them in another Python process and pickles the objects between them. So they
hold options and splits, but no connections.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from strandline.spark_lake.jvm.engine import add_jar, is_connect, planned, ruled_out
from strandline.spark_lake.jvm.jar import NoJvmReader
from strandline.spark_lake.options.options import (
    COLUMNS,
    CORRUPT_COLUMN,
    HEADERS_COLUMN,
    Engine,
    LakeOptions,
    ReadMode,
)
from strandline.spark_lake.plan.splits import Split
from strandline.spark_lake.query.arrow import schema_of
from strandline.spark_lake.query.error_messages import without_traceback
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.query.query_log import log_event
from strandline.spark_lake.query.report import report_folder
from strandline.spark_lake.query.worker_reuse import leave_out_what_is_loaded
from strandline.spark_lake.spark.filters import push_down
from strandline.spark_lake.values.decoding_plan import ValuePlan, plan_values
from strandline.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import Filter

FORMAT_NAME = "strandline"
# `Strandline.scala` finds the Python source by this name, and adds one of these options: the number
# of concurrent tasks, or that it only asks for the filters.
PYTHON_NAME = "strandline_python"
SLOTS_OPTION = "taskslots"
FILTERS_OPTION = "onlyfilters"
_OURS = (SLOTS_OPTION, FILTERS_OPTION)
PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Registers `format("strandline")` in this session, and switches filter pushdown on.

    If Spark does not accept the jar, Spark evaluates all filters, and the logger
    `strandline.spark_lake` says so.
    """
    try:
        add_jar(spark)
    except NoJvmReader as error:
        spark.dataSource.register(StrandlineDataSource)
        log_event("filters of Spark spare nothing here, those of `load` do", {"why": str(error)})
    else:
        spark.conf.set(PUSHDOWN_CONF, "true")
        with _active(spark):
            spark.dataSource.register(PlannedDataSource)
    warn_of_another_python(spark)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Makes this the active session, in which Spark looks up the names of sources.

    Spark refuses a new name if the thread's active session, which may be another, has it.
    """
    if is_connect(spark):
        yield
        return
    jvm: Any = spark._jvm  # noqa: SLF001  # no public way to another active session
    sessions = jvm.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def warn_of_another_python(spark: SparkSession) -> None:
    """Warns of workers without this environment: without PYSPARK_PYTHON they run `python3`."""
    try:
        workers = shutil.which(spark.sparkContext.pythonExec)
    except PySparkException:  # with Spark Connect the server's Python is unknown
        return
    if workers is not None and not _is_one_environment(Path(workers), Path(sys.executable)):
        log_event(
            "Spark's workers run another Python than this process: unless strandline[lake] is"
            " installed there too, set PYSPARK_PYTHON before the session starts",
            {"workers": workers, "this_process": sys.executable},
            level=logging.WARNING,
        )


def _is_one_environment(python: Path, other: Path) -> bool:
    """`bin/python3` beside `bin/python` are one; links to one interpreter elsewhere are not."""
    is_one_folder = python.absolute().parent == other.absolute().parent
    return is_one_folder and python.resolve() == other.resolve()


def spark_schema(columns: Sequence[str], values: ValuePlan | None = None) -> StructType:
    """The schema of Spark's Kafka source for these columns, with the type of decoded values."""
    return from_arrow_schema(schema_of(columns, None if values is None else values.type))


class StrandlineDataSource(DataSource):
    """The data source `format("strandline")` without filters; see `options.py` for the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    @without_traceback
    def schema(self) -> StructType:
        """Returns the schema of the options. Raises InvalidConfig for wrong ones."""
        options = self._parsed(ReadMode.ANY)
        return spark_schema(options.columns, plan_values(options.values, options.selection))

    @without_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns a reader of these columns: all, or those of a schema that the user chose."""
        return StrandlineReader(self._query(ReadMode.BATCH, schema))

    @without_traceback
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """A reader of a stream. Raises InvalidConfig for a PySpark without limits of batches."""
        try:
            from strandline.spark_lake.spark.stream import StrandlineStreamReader
        except ImportError as error:
            raise InvalidConfig(
                f"streams need PySpark 4.2 or later, this is {pyspark.__version__}"
            ) from error
        return StrandlineStreamReader(self._query(ReadMode.STREAM, schema))

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Raises InvalidConfig, with a remedy that Spark's own error lacks."""
        raise InvalidConfig(
            f'format("{FORMAT_NAME}") only reads: records come into the archive through their'
            ' broker, to which Spark writes with format("kafka")'
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802  # Spark's
        """Raises what `writer` does."""
        self.writer(schema, overwrite)

    def _query(self, mode: ReadMode, schema: StructType) -> Query:
        query = Query(self._parsed(mode), columns=schema.fieldNames())
        _check_columns(schema, query.values)
        return query

    def _parsed(self, mode: ReadMode) -> LakeOptions:
        options = LakeOptions.parse(self.options, mode)
        if options.engine is Engine.JVM and (reason := self._why_not_jvm(options, mode)):
            raise InvalidConfig(f"option engine is jvm, but {reason}")
        if options.scan_report is not None:
            report_folder(options.scan_report)
        return options

    def _why_not_jvm(self, options: LakeOptions, mode: ReadMode) -> str:
        return f'format("{FORMAT_NAME}") has no jar in this session: register(spark) logs why'


class PlannedDataSource(StrandlineDataSource):
    """Python source that plans each query over the jar's format, with filters, and streams."""

    def __init__(self, options: Mapping[str, str]) -> None:
        ours = {name.lower(): text for name, text in options.items() if name.lower() in _OURS}
        super().__init__({n: text for n, text in options.items() if n.lower() not in _OURS})
        self._task_slots = int(ours[SLOTS_OPTION]) if SLOTS_OPTION in ours else None
        self._plans = FILTERS_OPTION not in ours
        leave_out_what_is_loaded()

    @classmethod
    def name(cls) -> str:
        return PYTHON_NAME

    @without_traceback
    def reader(self, schema: StructType) -> PlannedReader:
        """Returns a reader of these columns, which takes filters."""
        query = self._query(ReadMode.BATCH, schema)
        query.task_slots = self._task_slots
        return PlannedReader(query, plans=self._plans)

    def _why_not_jvm(self, options: LakeOptions, mode: ReadMode) -> str:
        return "streams are read in Python" if mode is ReadMode.STREAM else ruled_out(options)


class StrandlineReader(DataSourceReader):
    """Reader of one scan: planned once, read split by split."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def partitions(self) -> list[InputPartition]:
        """Reads manifests and plans. Raises what `Query.plan` raises."""
        reader = self._query.open()
        made = self._query.plan(reader)
        self._query.log_plan(made, reader)
        return [InputPartition(split) for split in made.splits]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One split as `pyarrow.RecordBatch`es."""
        # For a plan without splits Spark creates one empty partition.
        if isinstance(partition.value, Split):
            yield from self._query.read(partition.value, self._query.open())
        assert not isinstance(partition.value, str), "the JVM's plan came to a task in Python"


class PlannedReader(StrandlineReader):
    """Reader of one query with its filters; the JVM reads its splits where possible."""

    def __init__(self, query: Query, *, plans: bool) -> None:
        """Without `plans` it is only asked for the filters that it takes."""
        super().__init__(query)
        self._plans = plans

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Takes the filters that prune; returns those that Spark has to evaluate."""
        # The JVM's reader compares no keys.
        left = ("key",) if self._query.options.engine is Engine.JVM else ()
        pushdown = push_down(filters, left_to_spark=left)
        self._query.predicate = pushdown.pushed
        return iter(pushdown.left)

    def partitions(self) -> list[InputPartition]:
        """Returns the JVM's plan as text, followed by the splits that tasks in Python read.

        Raises what `Query.plan` and `planned` raise.
        """
        if not self._plans:
            # Spark asks for both at once; the same query gets a plan once its columns are known.
            return []
        reader = self._query.open()
        text, others = planned(self._query, self._query.plan(reader), reader)
        return [InputPartition(text), *map(InputPartition, others)]


def _check_columns(schema: StructType, values: ValuePlan | None) -> None:
    """Raises InvalidConfig unless each column exists and has this type."""
    all_columns = (*COLUMNS, HEADERS_COLUMN, CORRUPT_COLUMN)
    known = {field.name: field for field in spark_schema(all_columns, values)}
    for field in schema:
        expected = known.get(field.name)
        if expected is None:
            raise InvalidConfig(
                f"the schema has the column {field.name}; there are {', '.join(known)}"
            )
        if field.dataType != expected.dataType:
            is_newer = field.name == "value" and values is not None and values.registry is not None
            raise InvalidConfig(
                f"the schema has {field.name} as {field.dataType.simpleString()}, it is"
                f" {expected.dataType.simpleString()}"
                + ("; if the registry has a newer schema by now, make the frame anew" * is_newer)
            )
