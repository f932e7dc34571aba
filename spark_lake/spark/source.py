"""The data source itself: what Spark calls, and where.

    driver    StrandlineDataSource(options)   options are checked: a wrong one fails in `load()`
    planner   reader(schema).pushFilters(...).partitions()     reads manifests, makes the splits
    executor  read(split)                                      one split, as Arrow record batches

Filters are taken by two sources, one behind the other, because Spark confuses queries otherwise
(`own_scans`); where that is not possible, by none.

Spark runs each of them in another Python process and pickles the objects between them. So they
hold options and splits, never anything open.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from strandline.spark_lake.jvm.engine import ruled_out
from strandline.spark_lake.jvm.partitions import partitions_of
from strandline.spark_lake.options.options import (
    COLUMNS,
    CORRUPT_COLUMN,
    HEADERS_COLUMN,
    Engine,
    LakeOptions,
    Mode,
)
from strandline.spark_lake.plan.splits import Split
from strandline.spark_lake.query.kept_workers import leave_out_what_is_loaded
from strandline.spark_lake.query.plain_errors import plainly
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.query.query_log import tell
from strandline.spark_lake.query.report import report_folder
from strandline.spark_lake.spark.filters import push_down
from strandline.spark_lake.spark.own_scans import NoRule, active, add_rule
from strandline.spark_lake.values.decoding_plan import ValuePlan, plan_values
from strandline.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT_NAME = "strandline"
# Of the sources that `OwnScans.java` makes; nobody else should.
PLANNED_NAME = "strandline_planned"
# What those are told besides the user's options: how many tasks Spark runs at once.
SLOTS_OPTION = "taskslots"
PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Makes `format("strandline")` known to this session, with filter pushdown switched on.

    Where each query cannot have a plan of its own (`own_scans`), filters are left to Spark, and the
    logger `strandline.spark_lake` says so.
    """
    try:
        add_rule(spark)
    except NoRule as error:
        spark.dataSource.register(StrandlineDataSource)
        tell("filters of Spark spare nothing here, those of `load` do", {"why": str(error)})
    else:
        spark.conf.set(PUSHDOWN_CONF, "true")
        with active(spark):
            spark.dataSource.register(GivenDataSource)
            spark.dataSource.register(PlannedDataSource)
    _warn_of_another_python(spark)


def _warn_of_another_python(spark: SparkSession) -> None:
    """Without PYSPARK_PYTHON workers run whatever `python3` is, and fail at the first import."""
    try:
        workers = shutil.which(spark.sparkContext.pythonExec)
    except PySparkException:  # Spark Connect: the server's Python is not ours to judge
        return
    if workers is not None and not _is_one_environment(Path(workers), Path(sys.executable)):
        tell(
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
    """These columns as Spark's Kafka source has them, with the values decoded as planned."""
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    kinds: dict[str, DataType] = {
        "key": BinaryType(),
        "value": BinaryType() if values is None else from_arrow_type(values.type),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
        HEADERS_COLUMN: ArrayType(header),
        CORRUPT_COLUMN: BinaryType(),
    }
    return StructType([StructField(column, kinds[column]) for column in columns])


class StrandlineDataSource(DataSource):
    """`format("strandline")` without filters; see `options.py` for the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    @plainly
    def schema(self) -> StructType:
        """Raises InvalidConfig for options that are wrong in themselves."""
        options = self._parsed(Mode.ANY)
        return spark_schema(options.columns, plan_values(options.values, options.selection))

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of these columns: all, or those of a schema that the user chose."""
        return StrandlineReader(self._query(Mode.BATCH, schema))

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """The same as a stream. Raises InvalidConfig on a PySpark that cannot limit one."""
        try:
            from strandline.spark_lake.spark.stream import StrandlineStreamReader
        except ImportError as error:
            raise InvalidConfig(
                f"streams need PySpark 4.2 or later, this is {pyspark.__version__}"
            ) from error
        return StrandlineStreamReader(self._query(Mode.STREAM, schema))

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Raises InvalidConfig: what Spark says by itself has no remedy."""
        raise InvalidConfig(
            f'format("{FORMAT_NAME}") only reads: records come into the archive through their'
            ' broker, to which Spark writes with format("kafka")'
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802  # Spark's
        """Raises what `writer` does."""
        self.writer(schema, overwrite)

    def _query(self, mode: Mode, schema: StructType) -> Query:
        query = Query(self._parsed(mode), columns=schema.fieldNames())
        _check_columns(schema, query.values)
        return query

    def _parsed(self, mode: Mode) -> LakeOptions:
        options = LakeOptions.parse(self.options, mode)
        if options.engine is Engine.JVM and (reason := self._why_not_jvm(options, mode)):
            raise InvalidConfig(f"option engine is jvm, but {reason}")
        if options.scan_report is not None:
            report_folder(options.scan_report)
        return options

    def _why_not_jvm(self, options: LakeOptions, mode: Mode) -> str:
        return (
            f'format("{FORMAT_NAME}") is read in Python here: use strandline.spark_lake.load, or'
            " register_views"
        )


class _RuledDataSource(StrandlineDataSource):
    """A source in a session that has the rule, which lets the JVM read what it plans."""

    def _why_not_jvm(self, options: LakeOptions, mode: Mode) -> str:
        return "streams are read in Python" if mode is Mode.STREAM else ruled_out(options)

    def _left_to_spark(self) -> tuple[str, ...]:
        # The JVM's reader compares no keys.
        return ("key",) if self._parsed(Mode.ANY).engine is Engine.JVM else ()


class GivenDataSource(_RuledDataSource):
    """What a frame holds where filters are taken: `OwnScans.java` reads another in its place."""

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Plans nothing: what is wrong with the query is told when it is planned."""
        return GivenReader(left_to_spark=self._left_to_spark())


class PlannedDataSource(_RuledDataSource):
    """What `OwnScans.java` reads: made for one scan, and thrown away with it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        slots = [text for name, text in options.items() if name.lower() == SLOTS_OPTION]
        super().__init__({n: text for n, text in options.items() if n.lower() != SLOTS_OPTION})
        self._task_slots = int(slots[0]) if slots else None
        leave_out_what_is_loaded()

    @classmethod
    def name(cls) -> str:
        return PLANNED_NAME

    @plainly
    def reader(self, schema: StructType) -> PlannedReader:
        """A reader of these columns, which takes filters."""
        query = self._query(Mode.BATCH, schema)
        query.task_slots = self._task_slots
        return PlannedReader(query, left_to_spark=self._left_to_spark())


class StrandlineReader(DataSourceReader):
    """One scan: planned once, read split by split."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def partitions(self) -> list[InputPartition]:
        """Reads manifests and plans. Raises what `Query.plan` raises."""
        reader = self._query.open()
        made = self._query.plan(reader)
        self._query.tell_plan(made, reader)
        return [InputPartition(split) for split in made.splits]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One split as `pyarrow.RecordBatch`es."""
        # Of a plan without splits Spark makes one partition of nothing.
        if isinstance(partition.value, Split):
            yield from self._query.read(partition.value, self._query.open())
        assert not isinstance(partition.value, str), "the JVM's plan came to a task in Python"


class PlannedReader(StrandlineReader):
    """A scan with the filters of one query, that the JVM reads where it can."""

    def __init__(self, query: Query, *, left_to_spark: Sequence[str] = ()) -> None:
        super().__init__(query)
        self._left_to_spark = tuple(left_to_spark)

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Takes the filters that prune; gives back those that Spark has to evaluate."""
        pushdown = push_down(filters, left_to_spark=self._left_to_spark)
        self._query.predicate = pushdown.pushed
        return iter(pushdown.left)

    def partitions(self) -> list[InputPartition]:
        """See `jvm_partitions`. Raises what `Query.plan` and `partitions_of` raise."""
        reader = self._query.open()
        made = self._query.plan(reader)
        return partitions_of(self._query, made, reader)


class GivenReader(DataSourceReader):
    """Takes the same filters as `PlannedReader`, and cannot be read."""

    def __init__(self, *, left_to_spark: Sequence[str] = ()) -> None:
        self._left_to_spark = tuple(left_to_spark)

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Those that are not taken."""
        return iter(push_down(filters, left_to_spark=self._left_to_spark).left)

    def partitions(self) -> list[InputPartition]:
        """One, so that whoever reads it is told."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raises InvalidConfig: rows of another query's filters would be wrong."""
        raise InvalidConfig(
            f'format("{FORMAT_NAME}") has lost its rule in this session\'s optimizer (was'
            " extraOptimizations set?): call strandline.spark_lake.register(spark) again"
        )


def _check_columns(schema: StructType, values: ValuePlan | None) -> None:
    """Raises InvalidConfig unless each column is there, and has this type."""
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
