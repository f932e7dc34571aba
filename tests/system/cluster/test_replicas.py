"""Three brokers of one machine with three replicas: any of them dies, and no record is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import eventually
from tests.support.several_brokers import SeveralBrokers

pytestmark = [pytest.mark.slow, pytest.mark.crash]

WAIT_S = 60.0
RECORDS = 3000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeveralBrokers]:
    with SeveralBrokers(
        tmp_path_factory.mktemp("replicas") / "brokers", "replica.lag.time.max.ms=5000"
    ) as made:
        yield made
        assert "Traceback" not in made.log_text(), made.log_text()[-4000:]


def state(admin: AdminClient, topic: str) -> tuple[int, list[int]]:
    found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    return (found[0].leader, sorted(found[0].isrs)) if found else (-1, [])


def test_each_broker_dies_in_turn_and_what_was_acknowledged_is_there_once_and_in_order(
    cluster: SeveralBrokers,
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic("replicated", 1, replication_factor=3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["replicated"].result(WAIT_S)
    eventually(lambda: state(admin, "replicated")[1] == [1, 2, 3])
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 2}
    )
    acknowledged: list[int] = []
    alive = [1, 2, 3]

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        acknowledged.append(int(message.value() or b""))

    for number in range(RECORDS):
        producer.produce("replicated", b"%d" % number, on_delivery=note)
        producer.poll(0.001)
        if number % (RECORDS // 3) == RECORDS // 6:
            leader, in_sync = state(admin, "replicated")
            assert leader in in_sync
            victim = leader if leader in alive else alive[0]
            alive.remove(victim)
            cluster.kill(f"broker {victim}")
            # It is back at once; the next one that dies must not be the last in sync.
            eventually(lambda: state(admin, "replicated")[1] == [1, 2, 3])
    assert producer.flush(WAIT_S) == 0
    assert sorted(acknowledged) == list(range(RECORDS))
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "all"})
    consumer.assign([TopicPartition("replicated", 0, 0)])
    values: list[int] = []
    until_s = time.monotonic() + WAIT_S
    while len(values) < RECORDS and time.monotonic() < until_s:
        found = consumer.consume(RECORDS, timeout=1)
        values += [int(one.value() or b"") for one in found if one.error() is None]
    consumer.close()
    assert values == list(range(RECORDS))


@pytest.mark.heavy
def test_a_group_goes_on_where_it_was_after_its_coordinator_died(cluster: SeveralBrokers) -> None:
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "moving",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("moved", 1, replication_factor=3)])["moved"].result(WAIT_S)
    for number in range(10):
        producer.produce("moved", b"%d" % number)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer(settings)
    consumer.subscribe(["moved"])
    read: list[bytes] = []
    while len(read) < 5:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            read.append(message.value() or b"")
            consumer.commit(message, asynchronous=False)
    kept = admin.list_topics("__consumer_offsets", timeout=WAIT_S).topics["__consumer_offsets"]
    assert all(len(one.replicas) == 3 for one in kept.partitions.values())
    described = admin.describe_consumer_groups(["moving"])["moving"].result(WAIT_S)
    cluster.kill_present(f"broker {described.coordinator.id}")
    (found,) = consumer.committed([TopicPartition("moved", 0)], timeout=WAIT_S)
    assert found.offset == 5
    while len(read) < 10:
        message = consumer.poll(1)
        if message is not None and message.error() is None and message.value() not in read:
            read.append(message.value() or b"")
    assert read == [b"%d" % number for number in range(10)]
    consumer.close()
