"""The disk of one of three brokers is full: others lead what it led, until there is room again."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.broker.cluster.membership.folder_assignments import CHECK_S, FULL_S
from tests.support.broker import eventually
from tests.support.several_brokers import SeveralBrokers

# It is half a minute until others lead, and a minute or more until it is in sync again.
pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.heavy]

WAIT_S = 120.0
RECORDS = 2000
TOPIC = "orders"
# A longer file is refused as for want of room.
ROOM_BYTES = 64 * 1024
# Until the controller is told that there is room: so long after the last refusal a folder counts as
# full, and then it is looked at.
ROOM_TOLD_S = FULL_S + CHECK_S


def placed(admin: AdminClient) -> list[tuple[int, list[int]]]:
    found = admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions
    return [(found[number].leader, sorted(found[number].isrs)) for number in sorted(found)]


def test_what_a_full_broker_led_goes_on_elsewhere_and_nothing_is_lost(tmp_path: Path) -> None:
    with SeveralBrokers(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic(TOPIC, 3, replication_factor=3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])[TOPIC].result(WAIT_S)
        eventually(lambda: [isr for _, isr in placed(admin)] == [[1, 2, 3]] * 3)
        pid = cluster.pids["broker 2"]
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (ROOM_BYTES, before[1]))
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "delivery.timeout.ms": int(1000 * WAIT_S),
                "linger.ms": 5,
            }
        )
        acknowledged: list[int] = []

        def note(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            acknowledged.append(int(message.key() or b""))

        for number in range(RECORDS):
            producer.produce(
                TOPIC, b"x" * 400, key=b"%d" % number, partition=number % 3, on_delivery=note
            )
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        assert sorted(acknowledged) == list(range(RECORDS))
        eventually(lambda: all(leader != 2 and 2 not in isr for leader, isr in placed(admin)))
        assert "no room for records of the leader" in cluster.log_text()
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        eventually(
            lambda: [isr for _, isr in placed(admin)] == [[1, 2, 3]] * 3,
            timeout_s=ROOM_TOLD_S + WAIT_S,
        )
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "all"})
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(3)])
        found: list[int] = []
        while len(found) < RECORDS:
            found += [int(one.key() or b"") for one in consumer.consume(RECORDS, 1.0)]
        consumer.close()
        assert sorted(found) == list(range(RECORDS))
        assert "Traceback" not in cluster.log_text()
