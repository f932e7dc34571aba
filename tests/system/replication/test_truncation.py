"""A consumer is told when records that it has read are gone after an unclean election: kafkatest's
truncation_test (KIP-101, KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, TopicPartition
from confluent_kafka.error import KafkaException

from tests.support.broker import eventually
from tests.system.cluster.bounced import WAIT_S, BouncedCluster, bounced_cluster
from tests.system.replication.replicated import ReplicatedPartition, admin_of, read_all

pytestmark = [pytest.mark.slow, pytest.mark.crash]

SETTINGS = {"replica.lag.time.max.ms": "3000"}
KEPT, LOST, LATER = ([b"%d" % number for number in range(n, n + 20)] for n in (0, 100, 200))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BouncedCluster]:
    with bounced_cluster(tmp_path_factory.mktemp("truncated"), SETTINGS) as running:
        yield running


def consumed(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []

    def is_read() -> bool:
        found.extend(int(one.value() or b"-1") for one in consumer.consume(100, 0.2))
        return len(found) >= count

    eventually(is_read)
    return found


def test_a_consumer_is_told_that_what_it_has_read_is_gone(cluster: BouncedCluster) -> None:
    partition = ReplicatedPartition(cluster)
    topic = partition.topic
    cluster.fill(topic, 0, KEPT)
    last = partition.leader()
    behind = partition.followers()
    for one in behind:
        assert one.stop() == 0
    partition.await_in_sync([last])
    cluster.fill(topic, 0, LOST)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"reads-{topic}",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumed(consumer, 40) == [int(value) for value in (*KEPT, *LOST)]

    last.kill()
    for one in behind:
        one.start()
    assert partition.state(behind[0]).leader_id == -1
    elected = admin_of(behind).elect_leaders(ElectionType.UNCLEAN, [TopicPartition(topic, 0)])
    refused = elected.result(WAIT_S)
    assert list(refused.values()) == [None]
    assert partition.leader(behind[0]) in behind
    told = eventually(lambda: error_of(consumer))
    assert told == KafkaError._LOG_TRUNCATION
    cluster.fill(topic, 0, LATER)
    last.start()
    partition.await_in_sync(cluster.brokers)
    consumer.close()
    # The former leader has what the others have, also where it leads.
    later = [int(value) for value in (*KEPT, *LATER)]
    for one in behind:
        assert one.stop() == 0
    assert partition.leader(last) is last
    assert read_all({"bootstrap.servers": last.bootstrap}, topic, 40) == later
    for one in behind:
        one.start()


def error_of(consumer: Consumer) -> int | None:
    """What a poll says that has no record."""
    try:
        message = consumer.poll(0.2)
    except KafkaException as raised:
        return int(raised.args[0].code())
    error = None if message is None else message.error()
    return None if error is None else error.code()
