"""The archive as a DataFrame by the shorter way: planned here, read by `mapInArrow`.

    driver    options, filters -> plan, at once       splits 0 .. n-1
    Spark     range(n) in n partitions                one number per task
    executor  number -> its split -> Arrow batches    what `format("strandline")` reads, too

Spark copies each row of a Python data source once more than those of `mapInArrow`, which makes the
data source the slower of two ways through the same reading (docs/decisions, 21). What is lost is
that Spark pushes the filters of a query down: here they are given, as to `scan`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.spark_lake.arrow_scan import FilterTuple, OptionValue, make_query
from strandline.spark_lake.source import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(
    spark: SparkSession,
    path: str,
    topics: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    filters: Sequence[FilterTuple] = (),
    options: Mapping[str, OptionValue] | None = None,
) -> DataFrame:
    """The records that are archived now, with the arguments of `scan`.

    Each action over the frame reads the same plan again: what is archived later is not in it.
    Raises what `scan` raises; tasks raise what `Query.read` raises.
    """
    query = make_query(path, topics, columns=columns, filters=filters, options=options)
    reader = query.open()
    plan = query.plan(reader)
    query.tell_plan(plan, reader)
    # Each task unpickles all of this and needs one: bytes are unpickled fastest.
    splits = [pickle.dumps(split) for split in plan.splits]

    def read(numbers: Iterator[Any]) -> Iterator[Any]:
        reader = query.open()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from query.read(pickle.loads(splits[number]), reader)

    tasks = spark.range(0, len(splits), 1, max(1, len(splits)))
    return tasks.mapInArrow(read, spark_schema(query.columns, query.values))
