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
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import eventually
from tests.support.heavy import heavy
from tests.support.several_brokers import SeveralBrokers

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
def cluster(tmp_path: Path) -> Iterator[SeveralBrokers]:
    with SeveralBrokers(
        tmp_path,
        f"log.dirs={tmp_path / 'disk-a'},{tmp_path / 'disk-b'}",
        "log.segment.bytes=1048576",
        "offsets.topic.num.partitions=1",
    ) as made:
        yield made
        assert "Traceback" not in made.log_text(), made.log_text()[-4000:]


class Disks:
    """The folders of the brokers, and the topic whose partitions are in them."""

    def __init__(self, cluster: SeveralBrokers, folder: Path) -> None:
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self._folder = folder
        topic = NewTopic("t", PARTITIONS, 3, config={"min.insync.replicas": "2"})
        self.admin.create_topics([topic])["t"].result(WAIT_S)
        eventually(lambda: all(one.in_sync == ALL for one in self.states().values()))

    def of(self, broker: int, disk: str) -> Path:
        return self._folder / f"disk-{disk}" / f"broker-{broker}"

    def partitions_in(self, path: Path) -> set[int]:
        return {int(one.name.rpartition("-")[2]) for one in path.glob("t-*")}

    def states(self) -> dict[int, State]:
        found = self.admin.list_topics("t", timeout=WAIT_S).topics["t"].partitions
        return {number: State(one.leader, sorted(one.isrs)) for number, one in found.items()}


class Load:
    """Acknowledged values of each partition."""

    def __init__(self, cluster: SeveralBrokers) -> None:
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

    def read(self, cluster: SeveralBrokers) -> dict[int, list[int]]:
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


# The first folder has the properties of the process.
@pytest.mark.parametrize("disk", [heavy("a"), "b"])
def test_a_folder_that_fails_takes_its_partitions_alone_and_others_lead_them(
    cluster: SeveralBrokers, tmp_path: Path, disk: str
) -> None:
    disks, load = Disks(cluster, tmp_path), Load(cluster)
    load.send()
    victim = next(
        state.leader
        for number, state in disks.states().items()
        if number in disks.partitions_in(disks.of(state.leader, disk))
    )
    path = disks.of(victim, disk)
    lost = disks.partitions_in(path)
    kept = set(range(PARTITIONS)) - lost
    assert lost
    assert kept
    gone = path.rename(path.with_suffix(".gone"))

    def is_left() -> bool:
        load.send()
        states = disks.states()
        return all(
            states[one].leader not in (victim, -1) and victim not in states[one].in_sync
            for one in lost
        )

    eventually(is_left)
    # The broker lives, and goes on with its other folder.
    assert set(disks.admin.list_topics(timeout=WAIT_S).brokers) == {*ALL}
    assert all(disks.states()[one].in_sync == ALL for one in kept)
    pids = cluster.present_pids()
    assert pids[f"broker {victim}"] == cluster.pids[f"broker {victim}"]
    load.send()

    # A start without it begins none of its partitions anew.
    path.write_text("not a folder")
    cluster.kill_present(f"broker {victim}")
    eventually(lambda: all(disks.states()[one].in_sync == ALL for one in kept))
    load.send()
    assert all(victim not in disks.states()[one].in_sync for one in lost)
    other = disks.of(victim, "b" if disk == "a" else "a")
    assert not lost & disks.partitions_in(other)

    # With the folder back the next start has them all in sync again.
    path.unlink()
    gone.rename(path)
    cluster.kill_present(f"broker {victim}")
    eventually(lambda: all(one.in_sync == ALL for one in disks.states().values()))
    load.send()
    assert load.read(cluster) == load.acknowledged
