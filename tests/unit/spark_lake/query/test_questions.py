"""Whatever is asked, pruned or not: the rows that a full scan has, filtered afterwards."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from strandline.spark_lake import count, scan
from strandline.spark_lake.options.options import COLUMNS
from strandline.spark_lake.plan import planner
from strandline.spark_lake.query import pruning
from strandline.storage.tiering.copy import inspection
from tests.support.heavy import first
from tests.unit.spark_lake.random_questions import (
    Questions,
    RandomArchive,
    described,
    rows_of,
    told,
)

QUESTIONS = 40
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", first(2, range(5)))
def test_random_questions_have_the_rows_of_a_full_scan(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small segments are then pruned like large ones, by small chunks.
    if seed % 4:
        monkeypatch.setattr(inspection, "CHUNK_BYTES_MIN", 300)
        monkeypatch.setattr(pruning, "PRUNED_SEGMENT_BYTES_MIN", 1)
        monkeypatch.setattr(planner, "SPLIT_BYTES_MIN", 500)
    source = random.Random(seed)
    asked = RandomArchive(tmp_path, source)
    questions = Questions(asked, source)
    for number in range(QUESTIONS):
        question = questions.next() if number % 3 else questions.of_times()
        answer = question.answer(asked.rows)
        with_headers = question.options.get("includeHeaders", False)
        columns = question.columns or (*COLUMNS, *(["headers"] if with_headers else []))
        how: dict[str, Any] = {"filters": question.filters, "options": question.options}
        told_of = f"seed {seed}, question {number}: {described(question)}"
        found = rows_of(scan(asked.archive.url, columns=question.columns, **how).read_all())
        assert found == [told(row, columns) for row in answer], told_of
        assert count(asked.archive.url, **how) == len(answer), told_of
