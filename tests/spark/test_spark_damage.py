"""Whatever happens to an object, by whatever way Spark reads it: rows, or the object's name."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.storage.errors import StrandlineError
from strandline.storage.tiering.copy import inspection
from tests.spark.asked import as_set, by_load, by_source, rows_of
from tests.support.heavy import heavy
from tests.unit.spark_lake.random_damage import Vandal
from tests.unit.spark_lake.random_questions import (
    Question,
    Questions,
    RandomArchive,
    described,
    told,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("seed", "damages"), [(1, 4), heavy(1, 12), heavy(2, 12)])
def test_a_damaged_object_is_named_or_costs_nothing_by_every_way(
    spark: SparkSession, tmp_path: Path, seed: int, damages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "CHUNK_BYTES_MIN", 300)
    source = random.Random(seed)
    # Values large enough for segments that are cut, and whose `.meta` is asked.
    asked = RandomArchive(tmp_path / "ours", source, value_bytes=60_000)
    RandomArchive(tmp_path / "others", random.Random(seed + 1000), value_bytes=60_000)
    questions = Questions(asked, source, records_max=(60, 300))
    vandal = Vandal(asked.archive.path, tmp_path / "others", source)

    def ask(question: Question, way: str) -> list[str]:
        archive = asked.archive
        frame = (
            by_source(spark, archive, question)
            if way == "source"
            else by_load(spark, archive, question, way)
        )
        answer = as_set([told(row, frame.columns) for row in question.answer(asked.rows)])
        assert as_set(rows_of(frame)) == answer, f"{way}: {described(question)}"
        return answer

    refused = 0
    for _ in range(damages):
        question = questions.next()
        with vandal.damage() as damage:
            for way in ("source", "python", "jvm"):
                found = damage.answer(
                    partial(ask, question, way), StrandlineError, PySparkException, Py4JJavaError
                )
                refused += found is None
    assert refused
