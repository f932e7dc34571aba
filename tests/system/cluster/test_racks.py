"""Consumers with a rack read from the replica there (KIP-392), and go on when it is gone.

Follows Kafka's FetchFromFollowerIntegrationTest and fetch_from_follower_test.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from strandline.broker.config.sections import RACK_AWARE_SELECTOR
from tests.support.broker import eventually
from tests.support.heavy import HEAVY, heavy
from tests.support.several_brokers import SeveralBrokers

pytestmark = [pytest.mark.slow, pytest.mark.clients]

WAIT_S = 60.0
COUNT = 300
VALUES = [b"%d " % number + b"." * 500 for number in range(COUNT)]
RACKS = {1: "a", 2: "b", 3: "c"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeveralBrokers]:
    with SeveralBrokers(
        tmp_path_factory.mktemp("racks") / "brokers",
        f"strandline.brokers.racks={','.join(RACKS.values())}",
        f"replica.selector.class={RACK_AWARE_SELECTOR}",
        "offsets.topic.num.partitions=1",
    ) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(WAIT_S)
        produce(made, VALUES)
        yield made
        assert "Traceback" not in made.log_text(), made.log_text()[-4000:]


def produce(cluster: SeveralBrokers, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for value in values:
        producer.produce("t", value, partition=0)
    assert producer.flush(WAIT_S) == 0


def leader_of(cluster: SeveralBrokers) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return int(admin.list_topics("t", timeout=WAIT_S).topics["t"].partitions[0].leader)


def are_in_sync(cluster: SeveralBrokers, *brokers: int) -> bool:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found = admin.list_topics("t", timeout=WAIT_S).topics["t"].partitions[0]
    return sorted(found.isrs) == sorted(brokers)


def sent_bytes(cluster: SeveralBrokers) -> dict[int, float]:
    """Bytes of the topic that each broker sent to consumers."""
    with urllib.request.urlopen(f"{cluster.metrics}/metrics", timeout=WAIT_S) as page:
        lines = page.read().decode().splitlines()
    name = "kafka_server_brokertopicmetrics_bytesout_total"
    found = [line for line in lines if line.startswith(name) and 'topic="t"' in line]
    return {
        one: sum(float(line.rpartition(" ")[2]) for line in found if f'broker="{one}"' in line)
        for one in RACKS
    }


def by_librdkafka(bootstrap: str, rack: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "client.rack": rack})
    consumer.assign([TopicPartition("t", 0, 0)])
    values: list[bytes] = []
    until_s = time.monotonic() + WAIT_S
    while len(values) < COUNT and time.monotonic() < until_s:
        found = consumer.consume(COUNT, timeout=1)
        values += [one.value() or b"" for one in found if one.error() is None]
    consumer.close()
    return values


def by_kafka_python(bootstrap: str, rack: str) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), client_rack=rack)
    partition = PythonTopicPartition("t", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    values: list[bytes] = []
    until_s = time.monotonic() + WAIT_S
    while len(values) < COUNT and time.monotonic() < until_s:
        for found in consumer.poll(timeout_ms=1000).values():
            values += [one.value for one in found]
    consumer.close()
    return values


def by_aiokafka(bootstrap: str, rack: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, client_rack=rack)
        await consumer.start()
        partition = AioTopicPartition("t", 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        values: list[bytes] = []
        try:
            async with asyncio.timeout(WAIT_S):
                while len(values) < COUNT:
                    found = await consumer.getmany(partition, timeout_ms=1000)
                    values += [one.value for one in found.get(partition, [])]
        finally:
            await consumer.stop()
        return values

    return asyncio.run(read())


@pytest.mark.parametrize("read", [by_librdkafka, heavy(by_kafka_python), by_aiokafka])
def test_a_client_reads_all_from_the_replica_of_its_rack(
    cluster: SeveralBrokers, read: Callable[[str, str], list[bytes]]
) -> None:
    eventually(lambda: are_in_sync(cluster, *RACKS))
    leader = leader_of(cluster)
    near = next(one for one in RACKS if one != leader)
    before = sent_bytes(cluster)
    assert read(cluster.bootstrap, RACKS[near]) == VALUES
    after = sent_bytes(cluster)
    size_bytes = sum(map(len, VALUES))
    assert after[near] - before[near] >= size_bytes
    assert after[leader] == before[leader]
    assert read(cluster.bootstrap, "another") == VALUES
    assert sent_bytes(cluster)[leader] - after[leader] >= size_bytes


@HEAVY
def test_a_consumer_goes_on_while_the_replica_in_its_rack_dies_and_comes_back(
    cluster: SeveralBrokers,
) -> None:
    eventually(lambda: are_in_sync(cluster, *RACKS))
    near = next(one for one in RACKS if one != leader_of(cluster))
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "client.rack": RACKS[near]}
    )
    consumer.assign([TopicPartition("t", 0, COUNT)])
    read: list[bytes] = []

    def has(count: int) -> bool:
        found = consumer.consume(count, timeout=0.5)
        read.extend(one.value() or b"" for one in found if one.error() is None)
        return len(read) >= count

    sent = [b"later %d" % number for number in range(30)]
    before = sent_bytes(cluster)
    produce(cluster, sent[:10])
    eventually(lambda: has(10))
    assert sent_bytes(cluster)[near] > before[near]
    cluster.kill_present(f"broker {near}")
    produce(cluster, sent[10:20])
    eventually(lambda: has(20))
    eventually(lambda: are_in_sync(cluster, *RACKS))
    produce(cluster, sent[20:])
    eventually(lambda: has(30))
    consumer.close()
    assert read == sent
