"""The small parts: the waits after failures, and the points where a process may die."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strandline.storage.crash_points import (
    COPY_AFTER_LOG,
    COPY_AFTER_META,
    CRASH_POINTS,
    EXIT_STATUS_KILLED,
    SimulatedCrash,
    crash_point,
    simulated_crash,
)

# --- crash points ------------------------------------------------------------------------------


def test_a_simulated_crash_happens_at_its_point_only_and_only_inside_the_block() -> None:
    with simulated_crash(COPY_AFTER_LOG):
        crash_point(COPY_AFTER_META)
        with pytest.raises(SimulatedCrash):
            crash_point(COPY_AFTER_LOG)
    crash_point(COPY_AFTER_LOG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "status"), [(COPY_AFTER_LOG, EXIT_STATUS_KILLED), (COPY_AFTER_META, 0)]
)
def test_the_environment_makes_the_process_die_at_the_named_point(point: str, status: int) -> None:
    program = (
        "from strandline.storage.crash_points import check_environment, crash_point\n"
        "check_environment()\n"
        f"crash_point({COPY_AFTER_LOG!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"STRANDLINE_CRASH_AT": point, "PYTHONPATH": ":".join(filter(None, sys.path))},
        check=False,
        timeout=30,
    )
    assert done.returncode == status


def test_no_two_crash_points_have_one_name() -> None:
    assert len(set(CRASH_POINTS)) == len(CRASH_POINTS)
