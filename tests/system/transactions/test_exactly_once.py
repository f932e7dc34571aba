"""A short run of `exactly_once.py`; `make exactly-once` runs it for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import S3Bucket
from tests.support.heavy import heavy
from tests.system.transactions.exactly_once import Trial, WireTrial, run

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.crash, pytest.mark.clients]


@pytest.mark.parametrize(
    ("trial", "rounds"),
    [heavy(Trial(), 4), (WireTrial(), 2), heavy(WireTrial(), 4)],
    ids=["version-1", "version-2", "version-2-longer"],
)
def test_each_input_counts_once_whatever_is_killed_for_every_reader(
    tmp_path: Path, s3_bucket: S3Bucket, trial: Trial, rounds: int
) -> None:
    for name, found in run(tmp_path, s3_bucket, trial, seed=11, rounds=rounds).items():
        assert {value: count for value, count in found.items() if count != 1} == {}, name
