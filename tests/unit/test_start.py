"""What a broker loads before it is ready: it costs a start, and memory for good."""

from __future__ import annotations

import subprocess
import sys

# Loaded where it is needed: for S3, for compaction, for the lake, for people at a terminal, and
# what the checksum's package would bring.
NEVER_AT_START = (
    "boto3",
    "botocore",
    "confluent_kafka",
    "difflib",
    "email",
    "importlib.metadata",
    "multiprocessing.connection",
    "numba",
    "numpy",
    "pyarrow",
    "re2",
    "rich",
    "strandline.broker.replica",
    "strandline.broker.restore",
    "strandline.broker.tools.arguments",
    "strandline.spark_lake",
    "urllib3",
)


def test_a_broker_that_starts_loads_nothing_that_it_may_never_need() -> None:
    program = "import sys, strandline.broker.cli, strandline.broker.app; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert set(run.stdout.split()).isdisjoint(NEVER_AT_START)
