"""A short run of `run.py`, which `make cluster-faults` runs for minutes, and planted faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.heavy import HEAVY, first
from tests.system.cluster_faults.checks import CHECKS
from tests.system.cluster_faults.planted import FAULTS
from tests.system.cluster_faults.run import Size, play

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.clients]

# One process of clients, and a start for each trouble, so that everybody can afford it.
SHORT = Size(seconds=4.0, partitions=2, records_per_s=150, libraries=("librdkafka",))
# What makes followers late, and takes the leader away then.
REVEALING = Size(
    seconds=25.0,
    records_per_s=300,
    libraries=("librdkafka",),
    kinds=("kill", "stop", "cut", "isolate", "elect"),
)
# Rounds that are searched for one that reveals a planted fault.
ROUNDS = 5


@pytest.mark.parametrize("seed", first(1, range(1, 5)))
def test_nothing_acknowledged_is_lost_or_doubled_whatever_happens(
    tmp_path: Path, seed: int
) -> None:
    told = play(tmp_path, seed, SHORT, print)
    assert told.found == []
    assert told.acknowledged > 0
    assert told.read > 0
    assert told.archived > 0
    assert told.troubles > 0


def is_of_a_check(text: str) -> bool:
    """A cluster that a fault only breaks, or that is slow, does not reveal it."""
    return any(f": {check.__name__}: " in text for check in CHECKS)


@pytest.mark.parametrize("fault", [pytest.param(name, marks=HEAVY) for name in FAULTS])
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    for seed in range(1, ROUNDS + 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        told = play(folder, seed, replace(REVEALING, fault=fault), print)
        if any(map(is_of_a_check, told.found)):
            return
    raise AssertionError(f"{fault} was not found in {ROUNDS} rounds")
