"""Whatever is asked, by whatever way Spark reads it: the rows that a full scan has, filtered."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit, unix_millis

from strandline.spark_lake import load
from strandline.spark_lake.options.given_options import option_text
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.random_questions import (
    Question,
    Questions,
    RandomArchive,
    described,
    told,
)

QUESTIONS = 8

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

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


@pytest.mark.parametrize("seed", [1, 2])
def test_random_questions_have_the_same_rows_by_every_way(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    source = random.Random(seed)
    # Values large enough for some segments to have several chunks.
    asked = RandomArchive(tmp_path, source, value_bytes=60_000 if seed % 2 else 40)
    # Tasks cost more here than what they read.
    questions = Questions(asked, source, records_max=(60, 300))
    for number in range(QUESTIONS):
        question = questions.next()
        told_of = f"seed {seed}, question {number}: {described(question)}"
        ways = {
            # By either reader in turn.
            "source": by_source(spark, asked.archive, question, "python" if number % 2 else "auto"),
            "jvm": by_load(spark, asked.archive, question, "jvm"),
            "python": by_load(spark, asked.archive, question, "python"),
        }
        for way, frame in ways.items():
            columns = frame.columns
            answer = [told(row, columns) for row in question.answer(asked.rows)]
            assert as_set(rows_of(frame)) == as_set(answer), f"{way}, {told_of}"
