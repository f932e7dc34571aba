"""A rewind beside live traffic is held back, says so, keeps its deadlines, and gets every batch."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.ports import ReservedPort
from tests.support.wire import WireClient
from tests.tiers.log_client import (
    EARLIEST_LOCAL,
    LATEST,
    LogClient,
    end_of,
    make_batches,
    split_batches,
)
from tests.tiers.tiered_broker import ARCHIVE_ALL, BROKER_SETTINGS, SEGMENT_BYTES, TIERED, WAIT_S

pytestmark = pytest.mark.slow

FLOOR = "strandline.remote.fetch.yield.floor.bytes.per.second"
# No tick is that early: whatever is cold counts as harm, so the limit falls to its floor.
NEVER_ON_TIME = {"strandline.remote.fetch.yield.ms": "0.001"}
LEAST = 64 * 1024
BROKER = 4


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

    def set_floor(self, bytes_per_s: int) -> None:
        change = IncrementalConfig(
            name=FLOOR, config_operation=ConfigOperation.SET, value=str(bytes_per_s)
        )
        resource = IncrementalAlterConfigsResource(
            resource_type=BROKER, resource_name="1", configs=[change]
        )
        with WireClient(self.port) as client:
            answer = client.ask(
                IncrementalAlterConfigsRequest(resources=[resource]),
                IncrementalAlterConfigsResponse,
                1,
            )
        assert answer.responses[0].error_code == 0, answer


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
    floor = 4 * SEGMENT_BYTES
    with Yielding(tmp_path, **{FLOOR: str(floor)}) as broker, LogClient(broker.port, "t") as client:
        sent = fill(client, 8)
        with live_traffic(broker.port):

            def at_floor() -> bool:
                assert client.read(0, end_of(sent)) == sent
                return broker.figure("limit_bytes_per_second") == floor

            eventually(at_floor, timeout_s=WAIT_S)
            assert client.read(0, end_of(sent)) == sent
            assert broker.figure("held_seconds_total") > 0
            assert broker.figure("limit_cuts_total") > 0
            # No answer is larger than what goes out in half a second.
            assert broker.figure("limit_bytes_per_second") == floor
            assert len(client.fetch_records(0, bytes_max=16 * SEGMENT_BYTES)) <= floor // 2
        eventually(lambda: broker.figure("limit_bytes_per_second") == 0, timeout_s=WAIT_S)
        assert broker.figure("held_answers") == 0
        assert client.read(0, end_of(sent)) == sent
        assert len(client.fetch_records(0, bytes_max=16 * SEGMENT_BYTES)) > floor // 2


def test_a_fetch_whose_download_is_held_back_is_answered_empty_and_later_whole(
    tmp_path: Path,
) -> None:
    settings = {
        FLOOR: str(LEAST),
        "remote.fetch.max.wait.ms": "100",
        # Whoever reads them all downloads each again.
        "strandline.remote.cache.memory.bytes": str(4 * SEGMENT_BYTES),
    }
    with Yielding(tmp_path, **settings) as broker, LogClient(broker.port, "t") as client:
        sent = fill(client, 12)
        with live_traffic(broker.port):
            # Each segment is a chunk of its own. At 64 KiB/s one of them is let in every 16 s.
            waited_at = _first_empty(client, sent)
            # Whoever has nothing to do with the archive is answered as ever.
            assert client.fetch(end_of(sent), wait_ms=100).records == b""
            broker.set_floor(64 * SEGMENT_BYTES)
            found = split_batches(client.fetch_records(waited_at))
            assert found == [batch for batch in sent if batch in found]
            assert client.read(0, end_of(sent)) == sent


def _first_empty(client: LogClient, sent: Sequence[bytes]) -> int:
    """Reads here and there until an answer is empty because its download may not begin."""
    for _ in range(100):
        for batch in sent[:: len(sent) // 12]:
            offset = end_of([batch]) - 1
            answer = client.fetch(offset, wait_ms=100)
            assert answer.error_code == 0
            if not answer.records:
                return offset
    raise AssertionError("no download was held back")
