"""Some thousand replicas: topics are made, written to, read, led by others and deleted: kafkatest's
replica_scale_test, on three brokers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import eventually
from tests.system.cluster.bounced import BouncedCluster, bounced_cluster

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.heavy]

TOPICS, PARTITIONS, REPLICAS = 50, 34, 3
PATIENCE_S = 300
RECORDS = 20_000
NAMES = [f"scaled-{number}" for number in range(TOPICS)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BouncedCluster]:
    with bounced_cluster(tmp_path_factory.mktemp("scaled")) as running:
        yield running


def are_in_sync(admin: AdminClient) -> bool:
    found = admin.list_topics(timeout=PATIENCE_S).topics
    return all(
        len(one.isrs) == REPLICAS and one.leader >= 0
        for name in NAMES
        for one in found[name].partitions.values()
    )


def test_a_thousand_partitions_outlive_a_restart_of_each_broker_and_are_deleted(
    cluster: BouncedCluster,
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    config = {"min.insync.replicas": "2"}
    made = admin.create_topics(
        [NewTopic(one, PARTITIONS, REPLICAS, config=config) for one in NAMES]
    )
    for future in made.values():
        future.result(PATIENCE_S)
    eventually(lambda: are_in_sync(admin), timeout_s=PATIENCE_S)
    written = write(cluster, NAMES[:3])
    for broker in cluster.brokers:
        cluster.bounce(broker, is_clean=True)
        eventually(lambda: are_in_sync(admin), timeout_s=PATIENCE_S)
    assert read(cluster, NAMES[:3]) == written
    for future in admin.delete_topics(NAMES).values():
        future.result(PATIENCE_S)
    eventually(
        lambda: not any((one.data / f"{NAMES[0]}-0").exists() for one in cluster.brokers),
        timeout_s=PATIENCE_S,
    )


def write(cluster: BouncedCluster, topics: list[str]) -> list[int]:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "message.timeout.ms": PATIENCE_S * 1000,
        }
    )
    failed: list[object] = []
    for number in range(RECORDS):
        producer.produce(
            topics[number % len(topics)],
            b"%d" % number,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []
    return list(range(RECORDS))


def read(cluster: BouncedCluster, topics: list[str]) -> list[int]:
    """All values that a group finds, sorted."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reads-all",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(topics)
    found: list[int] = []

    def is_read() -> bool:
        found.extend(
            int(one.value() or b"-1") for one in consumer.consume(5000, 0.5) if not one.error()
        )
        return len(found) >= RECORDS

    eventually(is_read, timeout_s=PATIENCE_S)
    consumer.close()
    return sorted(found)
