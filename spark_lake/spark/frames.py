"""`load`: a DataFrame over the archive, planned in the driver and read without a Python source.

    driver    options, filters -> plan, at once
    splits    of segments       the reader inside the JVM (`engine`), if available
              of open segments  Python, like all others: range(n) in n partitions, and `mapInArrow`
    executor  number -> its split -> Arrow batches    what `format("strandline")` reads, too

Spark copies each row of a Python data source once more than those of `mapInArrow`, and of these
once more than those made inside the JVM (docs/decisions, 22). In return Spark does not push the
filters of a query down: they are arguments, as of `scan`.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.spark_lake.jvm.engine import choose_engine, divided, jvm_frame
from strandline.spark_lake.options.options import Engine
from strandline.spark_lake.plan.splits import Split
from strandline.spark_lake.query.arrow_scan import FilterTuple, OptionValue, make_query
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.spark.source import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    columns: str | Sequence[str] | None = None,
    filters: Sequence[FilterTuple] = (),
    options: Mapping[str, OptionValue] | None = None,
) -> DataFrame:
    """Returns the records that are archived now, with the arguments of `scan`.

    Each action over the frame reads the same plan again, without later records.
    Raises what `scan` raises; tasks raise what `Query.read` raises.
    """
    query = make_query(path, topics, columns=columns, filters=filters, options=options)
    query.task_slots = task_slots(spark)
    reader = query.open()
    plan = query.plan(reader)
    choice = choose_engine(query, plan, spark=spark)
    query.log_plan(plan, reader, choice.fields())
    if choice.engine is Engine.JVM:
        inside, others = divided(plan, reader)
        frame = jvm_frame(spark, query, plan, inside, reader)
        return frame.unionAll(_mapped(spark, query, others)) if others else frame
    return _mapped(spark, query, plan.splits)


def task_slots(spark: SparkSession) -> int | None:
    """Returns how many tasks run at once; None for Spark Connect, whose clients cannot know."""
    from pyspark.errors import PySparkException

    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:  # unknown to a client of Spark Connect
        return None


def _mapped(spark: SparkSession, query: Query, wanted: Sequence[Split]) -> DataFrame:
    # Each task unpickles the whole list and needs one split: bytes are unpickled fastest.
    splits = [pickle.dumps(split) for split in wanted]

    def read(numbers: Iterator[Any]) -> Iterator[Any]:
        reader = query.open()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from query.read(pickle.loads(splits[number]), reader)

    tasks = spark.range(0, len(splits), 1, max(1, len(splits)))
    return tasks.mapInArrow(read, spark_schema(query.columns, query.values))
