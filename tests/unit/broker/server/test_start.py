"""What a broker loads before it is ready: it costs a start, and memory for good."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess

# Loaded where it is needed: for a remote tier, compaction, the lake, people at a terminal.
NEVER_AT_START = (
    "boto3",
    "botocore",
    "confluent_kafka",
    "encodings.idna",
    "multiprocessing.connection",
    "numba",
    "numpy",
    "pyarrow",
    "re2",
    "rich",
    "strandline.broker.server.upkeep.archive_upkeep",
    "strandline.broker.server.remote_tier",
    "strandline.broker.server.replica",
    "strandline.broker.commands.restore",
    "strandline.broker.tools.commands.arguments",
    "strandline.spark_lake",
    "strandline.storage.remote.manifest.entries",
    "strandline.storage.remote.manifest.manifest",
    "strandline.storage.remote.reader.chunk_cache",
    "strandline.storage.remote.reader.cold_reader",
    "strandline.storage.tiering.log.remote_log",
    "strandline.storage.tiering.log.statistics",
    "strandline.storage.tiering.manager.manager",
    "urllib3",
)


def loaded_modules(log_text: str) -> set[str]:
    """The modules whose import is complete, from what PYTHONVERBOSE prints."""
    return set(re.findall(r"^import '([\w.]+)'", log_text, re.MULTILINE))


@pytest.fixture
def verbose(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, environment={"PYTHONVERBOSE": "1"}) as broker:
        yield broker


@pytest.mark.slow
def test_a_broker_that_starts_loads_nothing_that_it_may_never_need(verbose: BrokerProcess) -> None:
    loaded = loaded_modules(verbose.log_text())
    assert "strandline.broker.server.broker" in loaded
    assert loaded.isdisjoint(NEVER_AT_START)
