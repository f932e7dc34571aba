"""A log folder of one of several brokers fails: others lead its partitions (KIP-112, KIP-858).

Follows Kafka's log_dir_failure_test.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.broker.cli import FAILURE
from tests.support.broker import eventually
from tests.system.cluster.bounced import BouncedCluster, bounced_cluster

pytestmark = [pytest.mark.slow, pytest.mark.crash]

WAIT_S = 60.0
PARTITIONS = 4
ALL = [1, 2, 3]
# Two fill a segment, so that a disk that is gone is noticed.
VALUE_BYTES = 600_000


class State(NamedTuple):
    leader: int
    in_sync: list[int]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BouncedCluster]:
    settings = {"log.dirs": "a,b", "log.segment.bytes": "1048576"}
    with bounced_cluster(tmp_path, settings) as made:
        yield made


class Disks:
    """The folders of the brokers, and the topic whose partitions are in them."""

    def __init__(self, cluster: BouncedCluster) -> None:
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self._brokers = cluster.brokers
        cluster.create("t", partitions=PARTITIONS, replicas=3, config={"min.insync.replicas": "2"})
        eventually(lambda: all(one.in_sync == ALL for one in self.states().values()))

    def of(self, broker: int, disk: str) -> Path:
        return self._brokers[broker - 1].folder / disk

    def partitions_in(self, path: Path) -> set[int]:
        return {int(one.name.rpartition("-")[2]) for one in path.glob("t-*")}

    def states(self) -> dict[int, State]:
        found = self.admin.list_topics("t", timeout=WAIT_S).topics["t"].partitions
        return {number: State(one.leader, sorted(one.isrs)) for number, one in found.items()}


class Load:
    """Acknowledged values of each partition."""

    def __init__(self, cluster: BouncedCluster) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "message.max.bytes": 900_000,
            }
        )
        self._sent = 0
        self.acknowledged: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}

    def send(self, *partitions: int) -> None:
        """One record to each; returns when they are acknowledged."""

        def note(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            value = message.value() or b""
            self.acknowledged[message.partition() or 0].append(int(value.split(b" ")[0]))

        for partition in partitions or range(PARTITIONS):
            self._sent += 1
            value = b"%d " % self._sent
            self._producer.produce(
                "t", value.ljust(VALUE_BYTES, b"."), partition=partition, on_delivery=note
            )
        assert self._producer.flush(WAIT_S) == 0

    def read(self, cluster: BouncedCluster) -> dict[int, list[int]]:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "all"})
        consumer.assign([TopicPartition("t", number, 0) for number in range(PARTITIONS)])
        read: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        missing, until_s = self._sent, time.monotonic() + WAIT_S
        while missing > 0 and time.monotonic() < until_s:
            for message in consumer.consume(100, timeout=1):
                assert message.error() is None, message.error()
                value = message.value() or b""
                read[message.partition() or 0].append(int(value.split(b" ")[0]))
                missing -= 1
        consumer.close()
        return read


def test_a_folder_that_fails_takes_its_partitions_alone_and_others_lead_them(
    cluster: BouncedCluster,
) -> None:
    disks, load = Disks(cluster), Load(cluster)
    load.send()
    victim = disks.states()[0].leader
    broker = cluster.brokers[victim - 1]
    path, other = disks.of(victim, "a"), disks.of(victim, "b")
    if 0 not in disks.partitions_in(path):
        path, other = other, path
    lost = disks.partitions_in(path)
    kept = disks.partitions_in(other)
    assert lost
    assert kept
    gone = path.rename(path.with_suffix(".gone"))

    def is_left() -> bool:
        load.send(*lost)
        states = disks.states()
        return all(
            states[one].leader not in (victim, -1) and victim not in states[one].in_sync
            for one in lost
        )

    eventually(is_left)
    # The broker lives, and goes on with its other folder.
    assert broker.running
    assert set(disks.admin.list_topics(timeout=WAIT_S).brokers) == {*ALL}
    assert all(disks.states()[one].in_sync == ALL for one in kept)
    load.send()

    # A start without it begins none of its partitions anew.
    path.write_text("not a folder")
    cluster.bounce(broker, is_clean=True)
    eventually(lambda: all(disks.states()[one].in_sync == ALL for one in kept))
    load.send()
    assert all(victim not in disks.states()[one].in_sync for one in lost)
    assert not lost & disks.partitions_in(other)

    # With the folder back the next start has them all in sync again.
    path.unlink()
    gone.rename(path)
    cluster.bounce(broker, is_clean=False)
    eventually(lambda: all(one.in_sync == ALL for one in disks.states().values()))
    load.send()
    assert load.read(cluster) == load.acknowledged


def test_a_broker_whose_last_folder_fails_ends_and_is_in_sync_again_after_its_next_start(
    cluster: BouncedCluster,
) -> None:
    disks, load = Disks(cluster), Load(cluster)
    load.send()
    victim = disks.states()[0].leader
    broker = cluster.brokers[victim - 1]
    gone = {
        path: path.rename(path.with_suffix(".gone"))
        for path in (disks.of(victim, "a"), disks.of(victim, "b"))
    }

    def has_ended() -> bool:
        load.send()
        return not broker.running

    eventually(has_ended)
    assert broker.wait_for_exit(WAIT_S) == FAILURE
    assert "every log folder is offline" in broker.log_text()
    assert victim not in {one.leader for one in disks.states().values()}
    load.send()

    for path, moved in gone.items():
        moved.rename(path)
    broker.start()
    eventually(lambda: all(one.in_sync == ALL for one in disks.states().values()))
    load.send()
    assert load.read(cluster) == load.acknowledged
