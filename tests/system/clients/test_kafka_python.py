"""What we do to kafka-python, so that a stall in its tests is a stall of the broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest
from kafka import KafkaProducer
from kafka.cluster import ClusterMetadata
from kafka.protocol.metadata import MetadataResponse

from tests.support.broker import BrokerProcess
from tests.support.kafka_python import KafkaConsumer

pytestmark = [pytest.mark.clients, pytest.mark.slow]

# Of a thread for the other, which it always comes to.
PATIENCE_S = 60.0
RECORDS = 3


def test_a_topic_that_is_subscribed_while_metadata_is_under_way_is_read(
    broker: BrokerProcess, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread waits for the other as the system may let it: see tests/support/kafka_python."""
    topic = make_topic()
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(RECORDS):
        producer.send(topic, b"%d" % number)
    producer.flush(60)
    producer.close()

    is_asked, is_subscribed = threading.Event(), threading.Event()
    asked: list[int] = []
    build, take = ClusterMetadata.metadata_request, ClusterMetadata.update_metadata
    subscribe = ClusterMetadata.set_topics

    def metadata_request(self: ClusterMetadata) -> object:
        request = build(self)
        asked.append(len(self._topics))
        is_asked.set()
        return request

    def set_topics(self: ClusterMetadata, topics: Iterable[str]) -> object:
        assert is_asked.wait(PATIENCE_S)
        done = subscribe(self, topics)
        is_subscribed.set()
        return done

    def update_metadata(self: ClusterMetadata, metadata: MetadataResponse) -> None:
        assert is_subscribed.wait(PATIENCE_S)
        take(self, metadata)

    monkeypatch.setattr(ClusterMetadata, "metadata_request", metadata_request)
    monkeypatch.setattr(ClusterMetadata, "set_topics", set_topics)
    monkeypatch.setattr(ClusterMetadata, "update_metadata", update_metadata)
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        api_version=(4, 3),
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    found = [message.value for _, message in zip(range(RECORDS), consumer, strict=False)]
    consumer.close()
    assert asked[0] == 0, "the race did not happen: see whether kafka-python needs this still"
    assert found == [b"0", b"1", b"2"]
