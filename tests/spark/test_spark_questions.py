"""Whatever is asked, by whatever way Spark reads it: the rows that a full scan has, filtered."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.asked import as_set, by_load, by_source, rows_of
from tests.support.heavy import heavy
from tests.unit.spark_lake.random_questions import (
    Questions,
    RandomArchive,
    described,
    told,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("seed", "count"), [(1, 1), heavy(1, 8), heavy(2, 8)])
def test_random_questions_have_the_same_rows_by_every_way(
    spark: SparkSession, tmp_path: Path, seed: int, count: int
) -> None:
    source = random.Random(seed)
    # Values large enough for some segments to have several chunks.
    asked = RandomArchive(tmp_path, source, value_bytes=60_000 if seed % 2 else 40)
    # Tasks cost more here than what they read.
    questions = Questions(asked, source, records_max=(60, 300))
    for number in range(count):
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
