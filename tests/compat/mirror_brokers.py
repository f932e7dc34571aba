"""`make mirror`: MirrorMaker 2 over clusters, from three brokers of ours to three.

    python -m tests.compat.mirror_brokers MIRROR_LIBRARIES

Each of its topics has three replicas, and it copies in transactions. A producer and a group go on
at the source, while a broker of each cluster and the controller of the target are killed. In the
end each record is in the target once and in order, and the group's offsets are there.

MirrorMaker has rules of its own for the offsets of groups; its classes of these names have them:

* `sync.group.offsets.enabled` is off, and each step waits for its interval: a group is found
  (`refresh.groups.interval.seconds`, 600), its offsets are translated
  (`emit.checkpoints.interval.seconds`, 60) and then written
  (`sync.group.offsets.interval.seconds`, 60). So nothing arrives within the first minute. The
  intervals are shorter here.
* An offset is translated by the last pair of offsets before it in the topic of syncs, to the one
  behind that pair: never too far, and up to `offset.lag.max` records behind.
* It writes to groups that have no members at the target, and no offset goes back.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.mirror import FACTORS, GROUP, MIRROR_S, RECORD_COUNT, WAIT_S, mirror
from tests.support.broker import eventually
from tests.support.ports import ReservedPort
from tests.support.several_brokers import SeveralBrokers

TOPIC, COPY = "orders", "source.orders"
PARTITIONS, REPLICAS, BROKERS = 2, 3, 3
PAUSE_S = 0.02
# Records of a partition: MirrorMaker's default.
OFFSET_LAG_MAX = 100
SETTINGS = (
    f"default.replication.factor={REPLICAS}",
    "min.insync.replicas=2",
    "offsets.topic.num.partitions=6",
    "transaction.state.log.num.partitions=6",
    "broker.session.timeout.ms=3000",
)


class Sending(threading.Thread):
    """Sends numbers to each partition in order, until it is told to end."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.failures: list[str] = []
        self.ends = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )

    def run(self) -> None:
        while not self.ends.is_set():
            self._producer.produce(
                TOPIC,
                b"%d" % (self.sent // PARTITIONS),
                partition=self.sent % PARTITIONS,
                on_delivery=lambda error, _: self.failures.append(str(error)) if error else None,
            )
            self.sent += 1
            self._producer.poll(PAUSE_S)
        if self._producer.flush(WAIT_S):
            self.failures.append("not all was acknowledged")

    def sends(self, more: int) -> None:
        wanted = self.sent + more
        eventually(lambda: self.sent >= wanted or bool(self.failures), timeout_s=MIRROR_S)
        assert not self.failures, self.failures


class Group:
    """A member of the group at the source; `committed` is what it was told of each partition."""

    def __init__(self, bootstrap: str) -> None:
        self.committed: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.subscribe([TOPIC])

    def commits(self, count: int) -> None:
        """Reads up to that number in each partition, and commits it."""

        def is_committed() -> bool:
            self._consumer.consume(1000, timeout=1)
            # Without a coordinator, or with nothing read since the last time, it is refused.
            with suppress(KafkaException):
                # The producer of the source has no transactions, so offsets are numbers.
                for place in self._consumer.commit(asynchronous=False) or ():
                    if place.error is None and place.offset >= 0:
                        self.committed[place.partition] = place.offset
            return min(self.committed.values()) >= count

        eventually(is_committed, timeout_s=MIRROR_S)

    def close(self) -> None:
        self._consumer.close()


class Copied:
    """What a reader of committed records has of the copy, read on and on: offsets and numbers."""

    def __init__(self, bootstrap: str) -> None:
        self.values: dict[int, list[tuple[int, int]]] = {one: [] for one in range(PARTITIONS)}
        self._reader = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "check",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        self._reader.assign([TopicPartition(COPY, number, 0) for number in range(PARTITIONS)])

    def count(self) -> int:
        for message in self._reader.consume(1000, timeout=1):
            if message.error() is None:
                found = (message.offset(), int(message.value()))
                self.values[message.partition()].append(found)
        return sum(map(len, self.values.values()))

    def next_number(self, partition: int, offset: int) -> int:
        """Returns what a consumer reads first that begins there."""
        values = self.values[partition]
        return next((number for at, number in values if at >= offset), len(values))

    def close(self) -> None:
        self._reader.close()


def offsets_of_group(admin: AdminClient) -> dict[int, int]:
    """Of the copied topic."""
    asked = [ConsumerGroupTopicPartitions(GROUP)]
    (answer,) = admin.list_consumer_group_offsets(asked).values()
    found = answer.result(WAIT_S).topic_partitions or []
    return {one.partition: one.offset for one in found if one.topic == COPY}


def properties_of(source: SeveralBrokers, target: SeveralBrokers) -> dict[str, str]:
    return {
        "source.bootstrap.servers": source.bootstrap,
        "target.bootstrap.servers": target.bootstrap,
        "source->target.topics": TOPIC,
        "source->target.groups": GROUP,
        "refresh.topics.interval.seconds": "2",
        "refresh.groups.interval.seconds": "2",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "offset.lag.max": str(OFFSET_LAG_MAX),
        "target.exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{ReservedPort().number}",
        **{f"{name}.factor": str(REPLICAS) for name in FACTORS},
    }


def run(libraries: Path, folder: Path, source: SeveralBrokers, target: SeveralBrokers) -> str:
    """Returns what was seen. Raises AssertionError at what is not as it must be."""
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, REPLICAS)])[TOPIC].result(WAIT_S)
    sending = Sending(source.bootstrap)
    sending.start()
    sending.sends(RECORD_COUNT)
    group = Group(source.bootstrap)
    group.commits(RECORD_COUNT // (2 * PARTITIONS))
    with mirror(libraries, folder, properties_of(source, target)) as said:
        try:
            there = AdminClient({"bootstrap.servers": target.bootstrap})
            eventually(lambda: COPY in there.list_topics(timeout=WAIT_S).topics, timeout_s=MIRROR_S)
            copied = Copied(target.bootstrap)
            eventually(lambda: copied.count() > 0, timeout_s=MIRROR_S)
            began_s = time.monotonic()
            eventually(lambda: len(offsets_of_group(there)) == PARTITIONS, timeout_s=MIRROR_S)
            first_s = time.monotonic() - began_s
            for cluster, name in ((target, "broker 1"), (source, "broker 2")):
                count = copied.count()
                cluster.kill_present(name)
                sending.sends(RECORD_COUNT)
                group.commits(sending.sent // PARTITIONS - RECORD_COUNT // 2)
                eventually(lambda count=count: copied.count() > count, timeout_s=MIRROR_S)
            target.kill_present("controller")
            sending.sends(RECORD_COUNT)
            sending.ends.set()
            sending.join(2 * WAIT_S)
            assert not sending.is_alive()
            assert not sending.failures, sending.failures
            sent = [len(range(number, sending.sent, PARTITIONS)) for number in range(PARTITIONS)]
            group.commits(min(sent))
            eventually(lambda: copied.count() >= sending.sent, timeout_s=MIRROR_S)
            copied.count()
            behind: dict[int, int] = {}

            def have_arrived() -> bool:
                """Whether the group would go on near where it was, and skip nothing."""
                for number, offset in offsets_of_group(there).items():
                    behind[number] = group.committed[number] - copied.next_number(number, offset)
                assert all(count >= 0 for count in behind.values()), behind
                return all(
                    behind.get(one, OFFSET_LAG_MAX + 1) <= OFFSET_LAG_MAX
                    for one in range(PARTITIONS)
                )

            eventually(have_arrived, timeout_s=MIRROR_S)
        except BaseException:
            print(said.read_text()[-4000:])
            raise
    group.close()
    copied.close()
    for number, values in copied.values.items():
        numbers = [one for _, one in values]
        assert numbers == list(range(sent[number])), f"{number}: {len(numbers)} of {sent[number]}"
    found = there.list_topics(COPY, timeout=WAIT_S).topics[COPY].partitions
    assert all(len(one.replicas) == REPLICAS for one in found.values())
    return (
        f"{sending.sent} records once each, between clusters of {BROKERS}; a group's offsets came"
        f" {first_s:.0f} s after the first record, and at the end it has"
        f" {sum(behind.values())} records to read again"
    )


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="strandline-mirror-") as name:
        folder = Path(name)
        # The second looks for ports when the first has its own.
        with (
            SeveralBrokers(folder / "source", *SETTINGS, brokers=BROKERS) as source,
            SeveralBrokers(folder / "target", *SETTINGS, brokers=BROKERS) as target,
        ):
            seen = run(Path(arguments[0]), folder, source, target)
            for cluster in (source, target):
                assert "Traceback" not in cluster.log_text(), cluster.log_text()[-4000:]
    print(f"MirrorMaker 2 copied {seen}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
