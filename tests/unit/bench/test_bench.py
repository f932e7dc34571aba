"""What the comparison with Apache Kafka keeps, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.comparison import results
from bench.comparison.page import lines_of
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


@pytest.mark.parametrize(("figure", "is_met"), [(39.0, True), (41.0, False)])
def test_a_goal_of_our_own_figure_is_judged_whatever_kafka_has(
    figure: float, is_met: bool, tmp_path: Path
) -> None:
    found = results.Results(tmp_path, ROWS, size=1)
    found.add("tls-idle", "strandline", {"connection_kib": figure})
    found.add("tls-idle", "Kafka", {"connection_kib": 10.0})
    (line,) = lines_of(ROWS, found)
    assert line.is_met is is_met
    assert line.ratio == figure / 10


def test_warming_the_page_cache_leaves_no_file(tmp_path: Path) -> None:
    warm_page_cache(tmp_path, 3_000_001)
    assert not list(tmp_path.iterdir())
