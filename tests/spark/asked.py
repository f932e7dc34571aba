"""One question, asked in each of the ways that Spark has."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit, unix_millis

from strandline.spark_lake import load
from strandline.spark_lake.options.given_options import option_text
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.random_questions import (
    Question,
)

_COMPARED: Mapping[str, Any] = {
    "==": Column.__eq__,
    "!=": Column.__ne__,
    "<": Column.__lt__,
    "<=": Column.__le__,
    ">": Column.__gt__,
    ">=": Column.__ge__,
}


def condition(column: str, symbol: str, wanted: Any) -> Column:
    """A filter of `scan` as Spark's user writes it."""
    if symbol in ("in", "not in"):
        found = col(column).isin([lit(bytearray(v) if isinstance(v, bytes) else v) for v in wanted])
        return found if symbol == "in" else ~found & col(column).isNotNull()
    if column == "timestamp" and isinstance(wanted, int):
        wanted = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=wanted)
    value = lit(bytearray(wanted) if isinstance(wanted, bytes) else wanted)
    made: Column = _COMPARED[symbol](col(column), value)
    return made


def by_source(
    spark: SparkSession, archive: ArchiveBuilder, question: Question, engine: str = "auto"
) -> DataFrame:
    texts = {name: option_text(value) for name, value in question.options.items()}
    texts["engine"] = engine
    if question.columns and "headers" in question.columns:
        texts["includeHeaders"] = "true"
    frame = spark.read.format("strandline").options(**texts).load(archive.url)
    if question.filters:
        frame = frame.where(reduce(Column.__and__, [condition(*one) for one in question.filters]))
    return frame.select(*question.columns) if question.columns else frame


def by_load(
    spark: SparkSession, archive: ArchiveBuilder, question: Question, engine: str
) -> DataFrame:
    return load(
        spark,
        archive.url,
        columns=question.columns,
        filters=question.filters,
        options={**question.options, "engine": engine},
    )


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    if "timestamp" in frame.columns:
        frame = frame.withColumn("timestamp", unix_millis("timestamp"))
    return [in_order(row.asDict(recursive=True)) for row in frame.collect()]


def in_order(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: bytes(v) if isinstance(v, bytearray) else v for name, v in row.items()}


def as_set(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Spark promises no order of a union."""
    return sorted(map(repr, rows))
