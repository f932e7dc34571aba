"""What the comparison with Apache Kafka keeps, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.comparison import results
from bench.comparison.rows import ROWS
from bench.measure import warm_page_cache


def test_figures_taken_in_another_way_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs() -> int:
        return results.Results(tmp_path, ROWS, size=1).runs("base", "Kafka")

    results.Results(tmp_path, ROWS, size=1).add("base", "Kafka", {"produce_cpu": 1.0})
    assert runs() == 1
    monkeypatch.setattr(results, "METHOD", results.METHOD + 1)
    assert runs() == 0


def test_warming_the_page_cache_leaves_no_file(tmp_path: Path) -> None:
    warm_page_cache(tmp_path, 3_000_001)
    assert not list(tmp_path.iterdir())
