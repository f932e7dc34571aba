"""The checkers find faults that are planted into replication: in one of a few worlds, each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.several.faults import Fault, by_name
from tests.sim.several.planted_in_replication import (
    acknowledged_before_the_high_watermark,
    divergence_is_not_looked_for,
    nothing_is_truncated,
    the_high_watermark_is_the_leaders_end,
)
from tests.sim.several.scenarios import records

# What makes followers late, and takes the leader away then.
LATE = ("slow link", "cut", "kill", "pause", "lossy")
SAYS_LOST = ("lost", "twice", "changed", "replicas differ", "acknowledged twice")


FAULTS = by_name(
    (
        Fault(
            plant=acknowledged_before_the_high_watermark,
            clients=records,
            words=SAYS_LOST,
            only=LATE,
            replicas=3,
        ),
        Fault(
            plant=the_high_watermark_is_the_leaders_end,
            clients=records,
            words=SAYS_LOST,
            only=LATE,
            replicas=3,
        ),
        Fault(
            plant=nothing_is_truncated,
            clients=records,
            words=(*SAYS_LOST, "not in sync again", "hangs"),
            only=LATE,
            replicas=3,
        ),
        Fault(
            plant=divergence_is_not_looked_for,
            clients=records,
            words=(*SAYS_LOST, "not in sync again", "hangs"),
            only=LATE,
            replicas=3,
        ),
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_planted_in_replication_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    assert fault.world_that_reveals(tmp_path) is not None
