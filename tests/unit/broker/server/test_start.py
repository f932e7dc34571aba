"""What a broker loads before it is ready: it costs a start, and memory for good."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient

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
    "strandline.broker.server.archive_upkeep",
    "strandline.broker.handlers.admin.admin",
    "strandline.broker.handlers.groups.groups",
    "strandline.broker.handlers.auth.sasl",
    "strandline.broker.server.replica",
    "strandline.broker.commands.restore",
    "strandline.broker.server.sasl_settings",
    "strandline.broker.security.scram",
    "strandline.broker.telemetry.collector",
    "strandline.broker.tools.commands.arguments",
    "strandline.spark_lake",
    "strandline.storage.local.cleaner.cleaning",
    "strandline.storage.local.log_dirs.revival",
    "strandline.storage.remote.reader.chunk_cache",
    "strandline.storage.remote.reader.cold_reader",
    "strandline.storage.tiering.manager.manager",
    "strandline.storage.tiering.log.timestamp_lookup",
    "urllib3",
)


# Loaded in a thread, soon after the start.
LATE = "strandline.broker.handlers.wiring.late_handlers"


def loaded_modules(log_text: str) -> set[str]:
    """The modules whose import is complete, from what PYTHONVERBOSE prints."""
    return set(re.findall(r"^import '([\w.]+)'", log_text, re.MULTILINE))


@pytest.fixture
def verbose(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, environment={"PYTHONVERBOSE": "1"}) as broker:
        yield broker


@pytest.mark.slow
def test_a_broker_that_starts_loads_nothing_that_it_may_never_need(verbose: BrokerProcess) -> None:
    # On a slow machine the late modules are there already; the first line that names them is older
    # than any module they bring.
    loaded = loaded_modules(verbose.log_text().split(LATE.rpartition(".")[2])[0])
    assert "strandline.broker.server.app" in loaded
    assert loaded.isdisjoint(NEVER_AT_START)


@pytest.mark.slow
def test_the_first_request_of_a_late_kind_finds_its_modules_loaded(verbose: BrokerProcess) -> None:
    """Importing them takes 20 ms of the loop, in which every client would wait."""
    eventually(lambda: LATE in loaded_modules(verbose.log_text()))
    before = loaded_modules(verbose.log_text())
    with WireClient(verbose.port) as client:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        created = client.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 4)
        groups = client.ask(ListGroupsRequest(), ListGroupsResponse, 2)
    assert (created.topics[0].error_code, groups.error_code) == (0, 0)
    assert loaded_modules(verbose.log_text()) == before


@pytest.mark.slow
def test_tls_can_be_had_after_a_start() -> None:
    program = "from strandline.broker.cli import _load_asyncio_without_tls as load\nload()\n"
    program += "import ssl, urllib.request; ssl.create_default_context()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
