"""flush.messages=1: a produce is answered when its records are on the device, and not before.

A page cache survives kill -9, so what is on the device cannot be seen from outside. These brokers
run with `os.fsync` replaced by one that waits for, or fails on, files that the test puts down.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.broker.protocol.messages.end_txn import EndTxnResponse
from strandline.broker.protocol.messages.incremental_alter_configs import ConfigOperation
from strandline.broker.protocol.messages.produce import ProduceResponse
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.support.broker import REPOSITORY, BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import (
    KEEP_EVERYTHING,
    append,
    assert_serves,
    batch,
    create_topic,
    end_offset,
    fetch,
    produce,
    produce_request,
    read_all,
)
from tests.system.config_calls import alter
from tests.system.transactions.committed import committed_values
from tests.system.transactions.wire_producer import WireProducer

pytestmark = [pytest.mark.slow, pytest.mark.crash]

KAFKA_STORAGE_ERROR = 56
EACH_RECORD = {"flush.messages": "1"}
PRODUCERS, BATCHES = 8, 100

# Imported by Python itself when the broker starts. Only log files of the topic that `hold` and
# `fail` name are touched; `synced` gets a line after each fsync of a log file.
SITE_CUSTOMIZE = """
import os, pathlib, time
folder = pathlib.Path(os.environ["FSYNC_FOLDER"])
real = os.fsync

def named(order, path):
    try:
        return (folder / order).read_text() in path
    except FileNotFoundError:
        return False

def fsync(descriptor):
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if path.endswith(".log"):
        deadline = time.monotonic() + 20
        if named("hold", path):
            (folder / "held").write_text(path)
        while named("hold", path) and time.monotonic() < deadline:
            time.sleep(0.005)
        if named("fail", path):
            raise OSError(5, "Input/output error")
    real(descriptor)
    if path.endswith(".log"):
        with open(folder / "synced", "a") as file:
            file.write(path + "\\n")

os.fsync = fsync
"""


class WatchedBroker(BrokerProcess):
    """A broker whose fsyncs can be counted, held up and made to fail."""

    def __init__(self, folder: Path) -> None:
        self.orders = folder / "orders"
        self.orders.mkdir()
        (self.orders / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
        super().__init__(
            folder,
            settings=KEEP_EVERYTHING,
            environment={
                "FSYNC_FOLDER": str(self.orders),
                "PYTHONPATH": f"{self.orders}:{REPOSITORY / '.namespace'}",
            },
        )

    def order(self, what: str, topic: str) -> None:
        """`what` is "hold" or "fail"."""
        (self.orders / what).write_text(f"/{topic}-")

    def withdraw(self, what: str) -> None:
        (self.orders / what).unlink()

    def is_holding(self, topic: str) -> bool:
        held = self.orders / "held"
        return held.exists() and topic in held.read_text()

    def sync_count(self, topic: str) -> int:
        """fsyncs of the topic's log files so far."""
        synced = self.orders / "synced"
        return synced.read_text().count(f"/{topic}-") if synced.exists() else 0


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedBroker]:
    with WatchedBroker(tmp_path_factory.mktemp("watched")) as running:
        assert isinstance(running, WatchedBroker)
        yield running
        assert "Traceback" not in running.log_text(), running.log_text()[-4000:]


@pytest.fixture
def client(watched: WatchedBroker) -> Iterator[WireClient]:
    with WireClient(watched.port) as connected:
        yield connected


def has_something_to_read(client: WireClient) -> bool:
    looking = select.poll()
    looking.register(client._socket, select.POLLIN)
    return bool(looking.poll(0))


def test_the_answer_comes_after_the_fsync_and_nobody_else_waits_for_it(
    watched: WatchedBroker, client: WireClient, topic_name: str
) -> None:
    create_topic(client, topic_name, 1, EACH_RECORD)
    create_topic(client, f"{topic_name}.other")
    watched.order("hold", topic_name)
    with WireClient(watched.port) as producer:
        sent = producer.send(produce_request(topic_name, batch(3)), 9)
        eventually(lambda: watched.is_holding(topic_name))
        # Everything else goes on, also on the same partition.
        assert_serves(watched.port)
        assert append(client, f"{topic_name}.other", batch()) == 0
        assert end_offset(client, topic_name) == 3
        assert not has_something_to_read(producer)
        watched.withdraw("hold")
        answer = producer.receive(ProduceResponse, 9, sent)
        assert answer.topics[0].partitions[0].error_code == 0
    assert watched.sync_count(topic_name) == 1


def test_each_acknowledged_produce_has_been_synced(
    watched: WatchedBroker, client: WireClient, topic_name: str
) -> None:
    create_topic(client, topic_name, 1, EACH_RECORD)
    for number in range(5):
        append(client, topic_name, batch(2))
        assert watched.sync_count(topic_name) == number + 1


def test_those_who_wait_for_an_fsync_share_the_next_one(
    watched: WatchedBroker, client: WireClient, topic_name: str
) -> None:
    create_topic(client, topic_name, 1, EACH_RECORD)
    watched.order("hold", topic_name)
    producers = [WireClient(watched.port) for _ in range(20)]
    sent = [producer.send(produce_request(topic_name, batch()), 9) for producer in producers]
    eventually(lambda: end_offset(client, topic_name) == 20)
    watched.withdraw("hold")
    for producer, correlation_id in zip(producers, sent, strict=True):
        answer = producer.receive(ProduceResponse, 9, correlation_id)
        assert answer.topics[0].partitions[0].error_code == 0
        producer.close()
    # The first went alone, or with those that were there; the rest went together.
    assert watched.sync_count(topic_name) <= 3


def test_producers_write_at_the_same_time(watched: WatchedBroker, topic_name: str) -> None:
    """Some batches come while a flush for others ends."""

    def write(_: int) -> None:
        with WireClient(watched.port) as client:
            append(client, topic_name, *[batch()] * BATCHES)

    with WireClient(watched.port) as client:
        create_topic(client, topic_name, 1, EACH_RECORD)
        with ThreadPoolExecutor(PRODUCERS) as threads:
            list(threads.map(write, range(PRODUCERS)))
        assert end_offset(client, topic_name) == PRODUCERS * BATCHES
    assert_serves(watched.port)


def test_without_flush_messages_nobody_waits_for_a_device(
    watched: WatchedBroker, client: WireClient, topic_name: str
) -> None:
    create_topic(client, topic_name)
    append(client, topic_name, *[batch()] * 20)
    assert watched.sync_count(topic_name) == 0


def test_a_failed_fsync_is_told_to_the_producer_and_to_the_operator(
    watched: WatchedBroker, client: WireClient, topic_name: str
) -> None:
    create_topic(client, topic_name, 1, EACH_RECORD)
    append(client, topic_name, batch())
    watched.order("fail", topic_name)
    answer = produce(client, topic_name, batch())
    watched.withdraw("fail")
    assert (answer.error_code, answer.base_offset) == (KAFKA_STORAGE_ERROR, -1)
    assert answer.error_message
    assert "Input/output error" in watched.log_text()
    assert_serves(watched.port)
    # The folder is away, and taken into service again: whatever is there now was read from disk.
    eventually(lambda: "log folder online again" in watched.log_text())
    eventually(lambda: produce(client, topic_name, batch()).error_code == 0)


def test_what_was_synced_survives_kill_9(watched: WatchedBroker, topic_name: str) -> None:
    with WireClient(watched.port) as client:
        create_topic(client, topic_name, 1, EACH_RECORD)
        append(client, topic_name, *[batch(2)] * 10)
    watched.kill()
    watched.start()
    with WireClient(watched.port) as client:
        assert [record.offset for record in read_all(client, topic_name)] == list(range(20))
        assert append(client, topic_name, batch()) == 20


def test_a_decided_transaction_is_on_the_device_before_any_marker_is_written(
    watched: WatchedBroker, client: WireClient, topic_name: str
) -> None:
    """A loss of power between the two would leave a commit that the coordinator never heard of."""
    create_topic(client, topic_name)
    producer = WireProducer(client, topic_name, version=1)
    producer.begin()
    altered = alter(
        client,
        TRANSACTION_TOPIC,
        ("flush.messages", ConfigOperation.SET, "1"),
        resource_type=ConfigResourceType.TOPIC,
    )
    assert altered.error_code == 0
    producer.send(topic_name, b"v")
    # AddPartitionsToTxn waits for no device: a start aborts what it does not know.
    watched.order("hold", TRANSACTION_TOPIC)
    with WireClient(watched.port) as other:
        sent = other.send(producer.end_request(is_commit=True), 4)
        eventually(lambda: watched.is_holding(TRANSACTION_TOPIC))
        answer = fetch(client, topic_name, 0)
        assert (answer.last_stable_offset, answer.high_watermark) == (0, 1)
        watched.withdraw("hold")
        assert other.receive(EndTxnResponse, 4, sent).error_code == 0
    assert committed_values(client, topic_name) == [b"v"]
