"""What `format("strandline")` plans for the reader inside the JVM, in the words of a Python source.

    partitions   "strandline-jvm:<jar>:<plan>:"     the splits that the JVM reads, all in one text
                 Split, Split, ...                  those that tasks in Python have to
    or           Split, Split, ...                  all of them; the first has beside it
                 "strandline-told:<words>:<bytes>:" what is read of how much, and how large it is

A Python source can answer a plan with nothing but partitions, which Spark keeps pickled. So the
plan comes as the first of them, and `OwnScans.java`, which alone may ask for one, finds it between
the pickle's bytes: base64 has no colon. Without that text the partitions are Python's, as ever.

The planner runs in one of the driver's Python workers: it has the user's credentials, and the Spark
beside it is the driver's.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pyspark
from pyspark.sql.datasource import InputPartition

from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.jvm.engine import chosen, divided, signed_plan
from strandline.spark_lake.jvm.jar import NoJvmReader, jar_of
from strandline.spark_lake.options.options import Engine
from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.plan.splits import Split
from strandline.spark_lake.query.query import Query

MARK = "strandline-jvm:"
TOLD_MARK = "strandline-told:"


class ToldPartition(InputPartition):
    """A split, and what the plan is that it is of; Spark shows that, and goes by its size."""

    def __init__(self, value: Split | None, told: str) -> None:
        super().__init__(value)
        self.told = told


def partitions_of(query: Query, plan: ScanPlan, reader: ObjectReader) -> list[InputPartition]:
    """The partitions of a plan for the reader that takes it, after the line of the query.

    Compiles the jar if need be. Raises InvalidConfig if the JVM's reader was asked for and cannot
    be had, and what `divided` does.
    """
    jar: list[Path] = []
    choice = chosen(
        query,
        plan,
        lambda: jar.append(_jar()),
        # Spark has been told that nothing is left to compare.
        reason="" if query.predicate.keys is None else "keys are compared in Python",
    )
    query.tell_plan(plan, reader, choice.fields())
    inside, others = (
        divided(plan, reader) if choice.engine is Engine.JVM else ((), tuple(plan.splits))
    )
    if inside:
        text = signed_plan(query, plan, inside, reader, columns=query.columns)
        for_jvm = InputPartition(f"{MARK}{_base64(str(jar[0]))}:{text}:")
        return [for_jvm, *map(InputPartition, others)]
    told = f"{TOLD_MARK}{_base64(str(plan))}:{plan.bytes_planned}:"
    # Of no split there is one partition all the same, of nothing.
    first = ToldPartition(others[0] if others else None, told)
    return [first, *map(InputPartition, others[1:])]


def _jar() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    try:
        home = Path(_find_spark_home())
    except SystemExit as error:  # as of a command
        raise NoJvmReader("this worker does not find Spark: set SPARK_HOME") from error
    return jar_of(pyspark.__version__, home)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
