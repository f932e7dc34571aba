"""Whatever happens to an object of the archive: the right rows, or an error that names it."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strandline.spark_lake import count, scan
from strandline.spark_lake.options.options import COLUMNS
from strandline.spark_lake.plan import planner
from strandline.spark_lake.query import pruning
from strandline.storage.errors import StrandlineError
from strandline.storage.tiering.copy import inspection
from tests.support.heavy import first
from tests.unit.spark_lake.random_damage import Vandal
from tests.unit.spark_lake.random_questions import (
    Question,
    Questions,
    RandomArchive,
    described,
    rows_of,
    told,
)

DAMAGES = 40

pytestmark = pytest.mark.slow


def columns_of(question: Question) -> tuple[str, ...]:
    return (*COLUMNS, *(["headers"] if question.options.get("includeHeaders") else []))


def rows(url: str, **how: Any) -> list[dict[str, Any]]:
    return rows_of(scan(url, **how).read_all())


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_a_damaged_object_is_named_or_costs_nothing(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small segments are then pruned like large ones, by small chunks.
    monkeypatch.setattr(inspection, "CHUNK_BYTES_MIN", 300)
    monkeypatch.setattr(pruning, "PRUNED_SEGMENT_BYTES_MIN", 1)
    monkeypatch.setattr(planner, "SPLIT_BYTES_MIN", 500)
    source = random.Random(seed)
    asked = RandomArchive(tmp_path / "ours", source)
    # The same records in a cluster of its own, or others.
    RandomArchive(tmp_path / "others", random.Random(seed if seed % 2 else seed + 1000))
    questions = Questions(asked, source)
    vandal = Vandal(asked.archive.path, tmp_path / "others", source)
    url = asked.archive.url
    refused = 0
    for number in range(DAMAGES):
        question = questions.next() if number % 3 else questions.of_times()
        answer = question.answer(asked.rows)
        columns = question.columns or columns_of(question)
        how: dict[str, Any] = {"filters": question.filters, "options": question.options}
        with vandal.damage() as damage:
            told_of = f"seed {seed}, number {number}, {damage}: {described(question)}"
            found = damage.answer(partial(rows, url, columns=columns, **how), StrandlineError)
            counted = damage.answer(partial(count, url, **how), StrandlineError)
        assert found in (None, [told(row, columns) for row in answer]), told_of
        assert counted in (None, len(answer)), told_of
        refused += found is None
    assert refused > DAMAGES / 10
