"""A reassignment with a throttle, as kafka-reassign-partitions makes it (Kafka's throttling_test).

`make reassign` runs the tool itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from strandline.broker.cluster.in_sync.throttle import FOLLOWERS, LEADERS
from tests.support.broker import eventually
from tests.support.metrics import METRICS_ON, metric
from tests.system.cluster.bounced import WAIT_S, BouncedCluster, bounced_cluster

pytestmark = pytest.mark.slow

VALUES = [b"%d " % number + b"." * 100_000 for number in range(30)]
HERE = TopicPartition("t", 0)
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BouncedCluster]:
    with bounced_cluster(tmp_path, METRICS_ON) as made:
        yield made


class Tool:
    """What kafka-reassign-partitions asks for."""

    def __init__(self, cluster: BouncedCluster) -> None:
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self._python = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))

    def close(self) -> None:
        self._python.close()

    def replicas(self) -> tuple[int, ...]:
        found = self._admin.list_topics("t", timeout=WAIT_S).topics["t"].partitions[0]
        return tuple(found.replicas)

    def reassign(self, replicas: list[int] | None) -> None:
        assert self._python.alter_partition_reassignments({HERE: replicas}) == {HERE: None}

    def is_going_on(self) -> bool:
        return HERE in self._python.list_partition_reassignments()

    def throttle(self, leader: int, follower: int, rate: int | None) -> None:
        """Bytes a second for a move from one broker to another; None: no throttle."""
        covered = ((LEADERS, f"0:{leader}"), (FOLLOWERS, f"0:{follower}"))
        self._set(ConfigResource.Type.TOPIC, "t", dict(covered), is_set=rate is not None)
        for broker in (leader, follower):
            rates = dict.fromkeys(RATES, str(rate))
            self._set(ConfigResource.Type.BROKER, str(broker), rates, is_set=rate is not None)

    def _set(
        self, kind: ConfigResource.Type, name: str, texts: dict[str, str], *, is_set: bool
    ) -> None:
        operation = AlterConfigOpType.SET if is_set else AlterConfigOpType.DELETE
        entries = [
            ConfigEntry(key, text, incremental_operation=operation) for key, text in texts.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        for done in self._admin.incremental_alter_configs([resource]).values():
            done.result(WAIT_S)


def copied_bytes(cluster: BouncedCluster, broker: int) -> int:
    folder = cluster.brokers[broker - 1].data / "t-0"
    return sum(one.stat().st_size for one in folder.glob("*.log"))


def read(cluster: BouncedCluster) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
    consumer.assign([ConfluentPartition("t", 0, 0)])
    values: list[bytes] = []

    def is_read() -> bool:
        found = consumer.consume(len(VALUES), timeout=1)
        values.extend(one.value() or b"" for one in found if one.error() is None)
        return len(values) >= len(VALUES)

    eventually(is_read)
    consumer.close()
    return values


def test_a_throttled_move_waits_for_its_rate_is_cancelled_and_ends_when_that_is_raised(
    cluster: BouncedCluster,
) -> None:
    cluster.create("t")
    cluster.fill("t", 0, VALUES)
    tool = Tool(cluster)
    (old,) = tool.replicas()
    new = next(one for one in (1, 2, 3) if one != old)
    size_bytes = copied_bytes(cluster, old)
    tool.throttle(old, new, 1000)
    tool.reassign([new])
    eventually(lambda: copied_bytes(cluster, new) > 0)
    for broker, side in ((old, "leader"), (new, "follower")):
        name = f"kafka_server_{side}replication_byte_rate"
        eventually(lambda broker=broker, name=name: metric(cluster.brokers[broker - 1], name) > 0)
    # The first answer is a megabyte, for which the rate wants a quarter of an hour.
    assert tool.is_going_on()
    assert copied_bytes(cluster, new) < size_bytes
    tool.reassign(None)
    eventually(lambda: tool.replicas() == (old,) and not tool.is_going_on())
    eventually(lambda: copied_bytes(cluster, new) == 0)

    tool.reassign([new])
    assert tool.is_going_on()
    tool.throttle(old, new, 10**9)
    eventually(lambda: tool.replicas() == (new,) and not tool.is_going_on())
    tool.throttle(old, new, None)
    tool.close()
    assert read(cluster) == VALUES
