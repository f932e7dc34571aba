"""A client that speaks as clients of long ago did produces, and reads in a group, unchanged.

kafka-python still knows the protocol of each release, and is told here which one to speak.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka import KafkaProducer

from tests.support.broker import BrokerProcess
from tests.support.kafka_python import KafkaConsumer

pytestmark = [pytest.mark.clients, pytest.mark.slow]

RECORDS = 200
CONSUME_TIMEOUT_MS = 20_000


@pytest.mark.parametrize(
    ("release", "codec"),
    [
        ((0, 8, 2), None),
        ((0, 9), None),
        ((0, 9), "snappy"),
        ((0, 10, 0), "gzip"),
        ((0, 10, 2), "lz4"),
        ((0, 11), None),
    ],
)
def test_clients_of_every_release_produce_and_consume(
    broker: BrokerProcess,
    make_topic: Callable[..., str],
    release: tuple[int, ...],
    codec: str | None,
) -> None:
    topic = make_topic(2)
    values = [b"v%d" % index for index in range(RECORDS)]
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        api_version=release,
        compression_type=codec,
        enable_idempotence=False,
        acks="all",
    )
    for index, value in enumerate(values):
        producer.send(topic, key=b"k%d" % index, value=value)
    producer.flush(60)
    producer.close()

    def consume(count: int) -> list[bytes]:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            api_version=release,
            group_id=f"group-{topic}" if release >= (0, 9) else None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=CONSUME_TIMEOUT_MS,
        )
        found: list[bytes] = []
        for message in consumer:
            found.append(message.value)
            if len(found) == count:
                break
        if release >= (0, 9):
            consumer.commit()
            committed = [consumer.committed(tp) for tp in sorted(consumer.assignment())]
            assert sum(offset or 0 for offset in committed) == count
        consumer.close()
        return found

    assert sorted(consume(RECORDS)) == sorted(values)
