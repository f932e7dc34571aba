"""Clients are served over a transport that encrypts as over a plain socket."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.broker import REPOSITORY, BrokerProcess
from tests.support.sealing_proxy import SealingProxy
from tests.system.calls import KEEP_EVERYTHING
from tests.system.clients.samples import samples
from tests.system.clients.test_roundtrips import (
    consume_with_kafka_python,
    consume_with_librdkafka,
    produce_with_librdkafka,
)

pytestmark = [pytest.mark.clients, pytest.mark.slow]

RECORD_BYTES = 100_000
RECORD_COUNT = 300


class SealedBroker(BrokerProcess):
    """Serves sealed; `bootstrap` is a proxy for clients that cannot."""

    program = (sys.executable, "-m", "tests.support.sealed_broker")

    def __init__(self, folder: Path) -> None:
        path = f"{REPOSITORY / '.namespace'}:{REPOSITORY}"
        super().__init__(folder, environment={"PYTHONPATH": path})
        self.proxy = SealingProxy(self.port)
        self.settings = {
            **KEEP_EVERYTHING,
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
        }

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.proxy.port}"


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SealedBroker]:
    broker = SealedBroker(tmp_path_factory.mktemp("sealed"))
    broker.start()
    try:
        yield broker
        assert broker.proxy.answered_count > 10
    finally:
        broker.kill()
        broker.proxy.close()


def test_records_of_all_sizes_come_back(sealed: SealedBroker) -> None:
    produce_with_librdkafka(sealed, "sizes", "none", **{"enable.idempotence": True})
    assert consume_with_librdkafka(sealed, "sizes", len(samples())) == samples()
    assert consume_with_kafka_python(sealed, "sizes", len(samples())) == samples()


def test_answers_of_many_megabytes_come_whole(sealed: SealedBroker) -> None:
    """File ranges of several partitions in one answer, each above what a socket takes at once."""
    producer = Producer({"bootstrap.servers": sealed.bootstrap, "linger.ms": 50})
    for number in range(RECORD_COUNT):
        content = number.to_bytes(4, "big") * (RECORD_BYTES // 4)
        producer.produce(f"large-{number % 3}", content)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": sealed.bootstrap,
            "group.id": "large",
            "fetch.max.bytes": 30_000_000,
            "max.partition.fetch.bytes": 10_000_000,
        }
    )
    consumer.assign([TopicPartition(f"large-{number}", 0, 0) for number in range(3)])
    found: set[int] = set()
    while len(found) < RECORD_COUNT:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        content = message.value()
        assert content == content[:4] * (RECORD_BYTES // 4)
        found.add(int.from_bytes(content[:4], "big"))
    assert found == set(range(RECORD_COUNT))
    consumer.commit(asynchronous=False)
    consumer.close()


def test_a_consumer_that_waits_at_the_end_gets_what_comes(sealed: SealedBroker) -> None:
    """Its fetch is parked for longer than the test takes, so the append must have ended it."""
    producer = Producer({"bootstrap.servers": sealed.bootstrap})
    producer.produce("parked", b"first")
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": sealed.bootstrap,
            "group.id": "parked",
            "fetch.wait.max.ms": 250_000,
            "socket.timeout.ms": 300_000,
        }
    )
    consumer.assign([TopicPartition("parked", 0, 0)])
    first = consumer.poll(60)
    assert first is not None
    threading.Timer(0.3, lambda: producer.produce("parked", b"second")).start()
    second = consumer.poll(60)
    assert second is not None
    assert (first.value(), second.value()) == (b"first", b"second")
    consumer.close()
