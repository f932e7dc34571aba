"""`strandline table sync` and SIGTERM: a batch sync that did not end exits with 143."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import S3Bucket
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.ministack import REPOSITORY
from tests.system.tables.bucket_table import BucketTable

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TERMINATED = 143
WAIT_S = 60


@pytest.fixture
def table(s3_bucket: S3Bucket, tmp_path: Path) -> BucketTable:
    made = BucketTable(s3_bucket, tmp_path)
    made.add(0, 40)
    return made


def sync(
    table: BucketTable, endpoint_url: str, catalog: str, *more: str
) -> subprocess.Popen[bytes]:
    command = ["table", "sync", "--remote", table.bucket.url, "--topic", "orders"]
    command += [
        "--table",
        "lake.orders",
        "--endpoint-url",
        endpoint_url,
        "--catalog",
        catalog,
        *more,
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "strandline", *command],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / ".namespace")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=WAIT_S)
    return process.returncode, said.decode()


@pytest.mark.heavy
def test_a_sync_that_is_told_before_its_first_round_says_that_it_stopped(
    table: BucketTable, fault_proxy: FaultProxy
) -> None:
    """It waits for a manifest meanwhile."""
    rule = fault_proxy.add(
        Rule(action=Action.LATENCY, method="GET", path="orders", delay_s=5, times=1)
    )
    process = sync(table, fault_proxy.endpoint_url, table.request["catalog"])
    eventually(lambda: rule.hit_count)
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == TERMINATED, said
    assert "stopped before the end, run it again" in said
    assert not [one for one in table.stored() if one.endswith(".parquet")]


@pytest.mark.parametrize("more", [(), ("--interval", "1s")])
def test_a_sync_that_waits_for_its_catalog_ends_at_once(
    table: BucketTable, fault_proxy: FaultProxy, more: Sequence[str]
) -> None:
    rule = fault_proxy.add(Rule(action=Action.HANG, path="/v1/config"))
    process = sync(table, table.bucket.endpoint_url, fault_proxy.endpoint_url, *more)
    eventually(lambda: rule.hit_count)
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == TERMINATED, said
    assert "interrupted" in said
