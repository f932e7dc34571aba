"""Existing clients produce and consume unchanged: every codec, headers, nulls, 1 B to 1 MB."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from tests.support.broker import BrokerProcess
from tests.system.clients.samples import Sample, samples

pytestmark = [pytest.mark.clients, pytest.mark.slow]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
READ_TIMEOUT_S = 60.0
# Of a client that has nothing to wait for.
# The Python clients assert that a record has a key or a value.
PYTHON_SAMPLES = samples(with_empty_record=False)


def produce_with_librdkafka(broker: BrokerProcess, topic: str, codec: str, **extra: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, **extra})
    failures: list[object] = []
    for sample in samples():
        producer.produce(
            topic,
            key=sample.key,
            value=sample.value,
            headers=list(sample.headers),
            timestamp=sample.timestamp_ms,
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(READ_TIMEOUT_S) == 0
    assert failures == []


def consume_with_librdkafka(broker: BrokerProcess, topic: str, count: int) -> list[Sample]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    out: list[Sample] = []
    deadline_s = time.monotonic() + READ_TIMEOUT_S
    while len(out) < count and time.monotonic() < deadline_s:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None, message.error()
            assert message.offset() == len(out)
            out.append(
                Sample(
                    message.key(),
                    message.value(),
                    message.timestamp()[1],
                    tuple(message.headers() or ()),
                )
            )
    consumer.close()
    return out


def produce_with_kafka_python(broker: BrokerProcess, topic: str, codec: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        compression_type=None if codec == "none" else codec,
    )
    pending = [
        producer.send(
            topic,
            key=sample.key,
            value=sample.value,
            headers=list(sample.headers),
            timestamp_ms=sample.timestamp_ms,
            partition=0,
        )
        for sample in PYTHON_SAMPLES
    ]
    producer.flush(READ_TIMEOUT_S)
    for number, future in enumerate(pending):
        assert future.get(READ_TIMEOUT_S).offset == number
    producer.close()


def consume_with_kafka_python(broker: BrokerProcess, topic: str, count: int) -> list[Sample]:
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        consumer_timeout_ms=int(READ_TIMEOUT_S * 1000),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.assign([PythonTopicPartition(topic, 0)])
    out: list[Sample] = []
    for message in consumer:
        assert message.offset == len(out)
        out.append(
            Sample(message.key, message.value, message.timestamp, tuple(message.headers or ()))
        )
        if len(out) == count:
            break
    consumer.close()
    return out


async def produce_with_aiokafka(broker: BrokerProcess, topic: str, codec: str) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap,
        compression_type=None if codec == "none" else codec,
    )
    await producer.start()
    try:
        for number, sample in enumerate(PYTHON_SAMPLES):
            # One by one for the first, so that the order is theirs; the batch for the rest.
            future = await producer.send(
                topic,
                value=sample.value,
                key=sample.key,
                partition=0,
                timestamp_ms=sample.timestamp_ms,
                headers=list(sample.headers),
            )
            if number < 20:
                await future
        await producer.flush()
    finally:
        await producer.stop()


async def consume_with_aiokafka(broker: BrokerProcess, topic: str, count: int) -> list[Sample]:
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([AioTopicPartition(topic, 0)])
        await consumer.seek_to_beginning()
        out: list[Sample] = []
        while len(out) < count:
            message = await asyncio.wait_for(consumer.getone(), READ_TIMEOUT_S)
            assert message.offset == len(out)
            out.append(
                Sample(message.key, message.value, message.timestamp, tuple(message.headers or ()))
            )
        return out
    finally:
        await consumer.stop()


def assert_same(got: Sequence[Sample], wanted: Sequence[Sample]) -> None:
    assert len(got) == len(wanted)
    for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert one == other, f"record {number} differs"


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_gets_back_what_it_sent(
    broker: BrokerProcess, make_topic: Callable[..., str], codec: str
) -> None:
    topic = make_topic()
    produce_with_librdkafka(broker, topic, codec)
    assert_same(consume_with_librdkafka(broker, topic, len(samples())), samples())


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_gets_back_what_it_sent(
    broker: BrokerProcess, make_topic: Callable[..., str], codec: str
) -> None:
    topic = make_topic()
    produce_with_kafka_python(broker, topic, codec)
    got = consume_with_kafka_python(broker, topic, len(PYTHON_SAMPLES))
    assert_same(got, PYTHON_SAMPLES)


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka_gets_back_what_it_sent(
    broker: BrokerProcess, make_topic: Callable[..., str], codec: str
) -> None:
    topic = make_topic()
    asyncio.run(produce_with_aiokafka(broker, topic, codec))
    got = asyncio.run(consume_with_aiokafka(broker, topic, len(PYTHON_SAMPLES)))
    assert_same(got, PYTHON_SAMPLES)


def test_what_one_client_wrote_every_other_client_reads(
    broker: BrokerProcess, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    produce_with_librdkafka(broker, topic, "zstd", **{"enable.idempotence": True})
    assert_same(consume_with_kafka_python(broker, topic, len(samples())), samples())
    got = asyncio.run(consume_with_aiokafka(broker, topic, len(samples())))
    assert_same(got, samples())


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_setting_delivers(
    broker: BrokerProcess, make_topic: Callable[..., str], acks: str
) -> None:
    topic = make_topic()
    produce_with_librdkafka(broker, topic, "lz4", acks=acks)
    assert_same(consume_with_librdkafka(broker, topic, len(samples())), samples())


def test_librdkafka_lists_all_topics(broker: BrokerProcess, make_topic: Callable[..., str]) -> None:
    topic = make_topic(3)
    listed = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).topics
    assert len(listed[topic].partitions) == 3
