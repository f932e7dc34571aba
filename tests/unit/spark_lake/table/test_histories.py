"""Random histories: whatever happens, a table has the archive's rows once, and no file too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.heavy import first
from tests.unit.spark_lake.table.random_history import (
    DeltaHistory,
    TableHistory,
    UpsertHistory,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", first(2, range(10)))
def test_a_table_has_the_archives_rows_whatever_happens(tmp_path: Path, seed: int) -> None:
    """`make table-histories` goes on for minutes."""
    run(TableHistory(tmp_path, seed), seed)


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_a_delta_table_has_the_archives_rows_whatever_happens(tmp_path: Path, seed: int) -> None:
    run(DeltaHistory(tmp_path, seed), seed)


@pytest.mark.parametrize("seed", first(1, range(5)))
def test_an_upserted_table_has_the_newest_records_whatever_happens(
    tmp_path: Path, seed: int
) -> None:
    run(UpsertHistory(tmp_path, seed), seed)


def run(history: TableHistory, seed: int) -> None:
    try:
        history.run()
    finally:
        print(f"seed {seed}: {history.steps}")
