"""Faults that are planted into the brokers of a run: each must be found by a check.

Those of replication are planted in the simulated cluster too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.sim.several import planted_in_replication as replication

FAULTS: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    one.__name__: one
    for one in (
        replication.acknowledged_before_the_high_watermark,
        replication.the_high_watermark_is_the_leaders_end,
        replication.logs_are_cut_at_the_high_watermark,
        replication.divergence_is_not_looked_for,
    )
}


def plant(name: str) -> None:
    """For as long as the process runs."""
    FAULTS[name](pytest.MonkeyPatch())
