"""What several tests of the lake share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.unit.spark_lake.fake_registry import FakeRegistry


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    server = FakeRegistry()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
