"""A rewind beside live traffic is held back, says so, and gets every batch."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess, eventually
from tests.support.ports import ReservedPort
from tests.system.tiers.log_client import (
    EARLIEST_LOCAL,
    LATEST,
    LogClient,
    end_of,
    make_batches,
)
from tests.system.tiers.tiered_broker import (
    ARCHIVE_ALL,
    BROKER_SETTINGS,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
)

pytestmark = pytest.mark.slow

# Hardly a tick is that early.
NEVER_ON_TIME = {"strandline.remote.fetch.yield.ms": "0.001"}


class Yielding(BrokerProcess):
    """A broker with its archive in a folder, and with metrics."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._metrics = ReservedPort()
        super().__init__(
            folder,
            settings={
                **BROKER_SETTINGS,
                **NEVER_ON_TIME,
                "strandline.remote.url": f"file://{folder / 'archive'}",
                "strandline.metrics.listener": f"http://127.0.0.1:{self._metrics.number}",
                **settings,
            },
        )

    def figure(self, name: str) -> float:
        url = f"http://127.0.0.1:{self._metrics.number}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            page = answer.read().decode()
        found = re.search(rf"^strandline_cold_{name} (\S+)$", page, re.MULTILINE)
        assert found is not None, name
        return float(found[1])


@contextmanager
def live_traffic(port: int) -> Iterator[None]:
    """Somebody produces all the time."""
    stop = threading.Event()
    batches = make_batches(size_bytes=1_000_000, record_count=1, record_bytes=100)

    def produce() -> None:
        with LogClient(port, "live") as client:
            client.create_topic({})
            for batch in batches:
                if stop.wait(0.01):
                    return
                client.produce([batch])

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
        assert thread.is_alive(), "there was no live traffic any more"
    finally:
        stop.set()
        thread.join(WAIT_S)


def fill(client: LogClient, segments: int) -> list[bytes]:
    """As many segments, all of them in the archive alone."""
    client.create_topic({**TIERED, **ARCHIVE_ALL})
    sent = client.produce(make_batches(size_bytes=segments * SEGMENT_BYTES))
    eventually(
        lambda: client.offset_at(EARLIEST_LOCAL) == client.offset_at(LATEST), timeout_s=WAIT_S
    )
    return sent


def test_a_held_rewind_gets_every_batch_and_is_let_go_afterwards(tmp_path: Path) -> None:
    with Yielding(tmp_path) as broker, LogClient(broker.port, "t") as client:
        sent = fill(client, 8)
        with live_traffic(broker.port):

            def was_held() -> bool:
                assert client.read(0, end_of(sent)) == sent
                return broker.figure("held_seconds_total") > 0

            eventually(was_held, timeout_s=WAIT_S)
            assert broker.figure("limit_bytes_per_second") > 0
        eventually(lambda: broker.figure("limit_bytes_per_second") == 0, timeout_s=WAIT_S)
        assert broker.figure("held_answers") == 0
        assert client.read(0, end_of(sent)) == sent
