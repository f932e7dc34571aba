"""Transactional producers and read_committed consumers of real client libraries."""

from __future__ import annotations

import asyncio
import uuid

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.support.broker import BrokerProcess, eventually
from tests.support.heavy import heavy
from tests.system.calls import MakeTopic

pytestmark = [pytest.mark.slow, pytest.mark.clients]

INPUT_COUNT = 60


def librdkafka_producer(broker: BrokerProcess, name: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": name}
    )
    producer.init_transactions(60)
    return producer


def librdkafka_consumer(broker: BrokerProcess, group_id: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group_id,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def read_committed(broker: BrokerProcess, topic: str, count: int) -> list[bytes]:
    """The first `count` values that librdkafka shows."""
    consumer = librdkafka_consumer(broker, uuid.uuid4().hex)
    consumer.subscribe([topic])
    values: list[bytes] = []

    def poll() -> bool:
        message = consumer.poll(1)
        if message is not None and not message.error():
            values.append(message.value())
        return len(values) >= count

    eventually(poll)
    consumer.close()
    return values


def test_librdkafka_commits_and_aborts(broker: BrokerProcess, topic: str) -> None:
    producer = librdkafka_producer(broker, topic)
    for number in range(6):
        producer.begin_transaction()
        for part in range(3):
            producer.produce(topic, b"%d.%d" % (number, part))
        producer.flush()
        if number % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    expected = [b"%d.%d" % (number, part) for number in (0, 2, 4) for part in range(3)]
    assert read_committed(broker, topic, len(expected)) == expected


def test_librdkafka_fences_the_producer_before(broker: BrokerProcess, topic: str) -> None:
    zombie = librdkafka_producer(broker, topic)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie")
    zombie.flush()
    successor = librdkafka_producer(broker, topic)
    successor.begin_transaction()
    successor.produce(topic, b"successor")
    successor.commit_transaction(60)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        zombie.commit_transaction(60)
    assert raised.value.args[0].fatal()
    assert read_committed(broker, topic, 1) == [b"successor"]


@pytest.mark.parametrize("group_protocol", [heavy("classic"), "consumer"])
def test_librdkafka_consumes_transforms_and_produces_exactly_once(
    broker: BrokerProcess, make_topic: MakeTopic, group_protocol: str
) -> None:
    """Two workers after each other, of which the first abandons a transaction."""
    source, target = make_topic(), make_topic()
    plain = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(INPUT_COUNT):
        plain.produce(source, b"%d" % number)
    plain.flush()
    group_id = uuid.uuid4().hex
    transform(broker, source, target, group_id, group_protocol, batches=2, abandons=True)
    transform(broker, source, target, group_id, group_protocol, batches=4, abandons=False)
    expected = [b"%d" % number for number in range(INPUT_COUNT)]
    assert read_committed(broker, target, INPUT_COUNT) == expected


def transform(
    broker: BrokerProcess,
    source: str,
    target: str,
    group_id: str,
    group_protocol: str,
    *,
    batches: int,
    abandons: bool,
) -> None:
    """Copies batches of ten records; one that abandons leaves its next transaction open."""
    producer = librdkafka_producer(broker, target)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group_id,
            "group.protocol": group_protocol,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    for _ in range(batches):
        send_batch(producer, consumer, target)
        producer.commit_transaction(60)
    if abandons:
        send_batch(producer, consumer, target)
        producer.flush()
    consumer.close()


def send_batch(
    producer: confluent_kafka.Producer, consumer: confluent_kafka.Consumer, target: str
) -> None:
    producer.begin_transaction()
    taken: list[confluent_kafka.Message] = []

    def poll() -> bool:
        message = consumer.poll(1)
        if message is not None and not message.error():
            taken.append(message)
        return len(taken) == 10

    eventually(poll)
    for message in taken:
        producer.produce(target, message.value())
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
    )


def test_kafka_python_commits_and_aborts(broker: BrokerProcess, topic: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=topic, acks="all"
    )
    producer.init_transactions()
    for number, ends in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        producer.send(topic, b"%d" % number)
        producer.flush()
        ends()
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    assert [next(consumer).value for _ in range(2)] == [b"0", b"2"]
    consumer.close()


def test_aiokafka_sends_offsets_within_a_transaction(
    broker: BrokerProcess, topic: str, group_id: str
) -> None:
    async def play() -> tuple[list[bytes | None], int | None]:
        where = aiokafka.TopicPartition(topic, 0)
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, transactional_id=topic
        ) as producer:
            for number, is_committed in enumerate((True, False, True)):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % number)
                await producer.send_offsets_to_transaction({where: number + 1}, group_id)
                if is_committed:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
        async with aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=uuid.uuid4().hex,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            values = [(await consumer.getone()).value for _ in range(2)]
        async with aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap, group_id=group_id
        ) as consumer:
            consumer.assign([where])
            return values, await consumer.committed(where)

    values, committed = asyncio.run(asyncio.wait_for(play(), 120))
    assert values == [b"0", b"2"]
    assert committed == 3
