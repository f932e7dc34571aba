"""What a broker loads before it is ready: it costs a start, and memory for good."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess

# Loaded where it is needed: for S3, for compaction, for the lake, for people at a terminal, and
# what the checksum's package would bring.
NEVER_AT_START = (
    "boto3",
    "botocore",
    "confluent_kafka",
    "ctypes",
    "difflib",
    "email",
    "hashlib",
    "importlib.metadata",
    "lzma",
    "multiprocessing.connection",
    "numba",
    "numpy",
    "pyarrow",
    "re2",
    "rich",
    "shutil",
    "ssl",
    "strandline.broker.archive_upkeep",
    "strandline.broker.handlers.admin",
    "strandline.broker.handlers.groups",
    "strandline.broker.handlers.sasl",
    "strandline.broker.replica",
    "strandline.broker.restore",
    "strandline.broker.sasl_settings",
    "strandline.broker.security.scram",
    "strandline.broker.telemetry.collector",
    "strandline.broker.tools.arguments",
    "strandline.spark_lake",
    "strandline.storage.local.cleaning",
    "strandline.storage.remote.chunk_cache",
    "strandline.storage.remote.reader",
    "strandline.storage.tiering.manager",
    "urllib3",
)


@pytest.mark.slow
def test_a_broker_that_starts_loads_nothing_that_it_may_never_need(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings={}, environment={"PYTHONVERBOSE": "1"}) as broker:
        loaded = set(re.findall(r"^import '([\w.]+)'", broker.log_text(), re.MULTILINE))
    assert "strandline.broker.app" in loaded
    assert loaded.isdisjoint(NEVER_AT_START)


@pytest.mark.slow
def test_tls_can_be_had_after_a_start() -> None:
    program = "from strandline.broker.cli import _asyncio_without_tls as load\nload()\n"
    program += "import ssl, urllib.request; ssl.create_default_context()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
