"""A short run of `exactly_once.py`; `make exactly-once` runs it for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.transactions.exactly_once import Trial, run

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.clients]


def test_each_input_counts_once_whatever_is_killed(tmp_path: Path) -> None:
    found = run(tmp_path, Trial(), seed=11, rounds=5)
    assert {value: count for value, count in found.items() if count != 1} == {}
