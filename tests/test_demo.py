"""The demo itself, as `make demo` runs it: the broadest test, and the newcomer's first hour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import ReservedPort

ROOT = Path(__file__).resolve().parent.parent
# It takes about a minute; the promise is three, on a machine that does nothing else.
SECONDS_MAX = 400
# The way outside may lead through a proxy; nothing of the demo goes that way.
NOBODY = "http://127.0.0.1:9"


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.spark
@pytest.mark.clients
@pytest.mark.timeout(SECONDS_MAX + 30)
def test_the_main_job_runs_to_its_end_and_every_comparison_holds(tmp_path: Path) -> None:
    returncode, output = run_demo(tmp_path / "data")
    assert returncode == 0, output
    assert "All comparisons held" in output
    assert "✗" not in output
    # What a user goes on with is named as it was really run.
    assert "archive show --remote s3://" in output
    assert "NO_PROXY=127.0.0.1 no_proxy=127.0.0.1" in output


def run_demo(data: Path) -> tuple[int, str]:
    """Exit code and output. A demo that takes too long is interrupted: it stops its servers."""
    # Kept until the demo listens there: other tests are given ports meanwhile.
    broker_port, s3_port = ReservedPort(), ReservedPort()
    command = [sys.executable, "-m", "demo", "--data", str(data)]
    with subprocess.Popen(
        [*command, "--broker-port", str(broker_port.number), "--s3-port", str(s3_port.number)],
        cwd=ROOT,
        env=os.environ | dict.fromkeys(("http_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOBODY),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        try:
            output, _ = demo.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            demo.terminate()
            output, _ = demo.communicate(timeout=60)
        return demo.returncode, output


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.clients
def test_a_cluster_whose_broker_is_killed_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo.cluster", "--data", str(tmp_path / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done
    assert "All comparisons held" in done.stdout
    assert "the gap: " in done.stdout
