"""The part of `make interop` with MirrorMaker 2 over clusters: from three brokers of ours to three.

    python -m tests.compat.mirror_brokers MIRROR_LIBRARIES

Each of its topics has three replicas, and it copies in transactions. A producer goes on while a
broker of each cluster and the controller of the target are killed. In the end each record is in the
target once and in order.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.mirror import FACTORS, MIRROR_S, RECORD_COUNT, WAIT_S, mirror
from tests.support.broker import eventually
from tests.support.ports import ReservedPort
from tests.support.several_brokers import SeveralBrokers

TOPIC, COPY = "orders", "source.orders"
PARTITIONS, REPLICAS, BROKERS = 2, 3, 3
PAUSE_S = 0.02
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


class Copied:
    """What a reader of committed records has of the copy, read on and on."""

    def __init__(self, bootstrap: str) -> None:
        self.values: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
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
                self.values[message.partition() or 0].append(int(message.value() or b""))
        return sum(map(len, self.values.values()))

    def close(self) -> None:
        self._reader.close()


def settings_of(alias: str, cluster: SeveralBrokers) -> dict[str, str]:
    return {f"{alias}.bootstrap.servers": cluster.bootstrap}


def run(libraries: Path, folder: Path, source: SeveralBrokers, target: SeveralBrokers) -> int:
    """Returns how many records were copied."""
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, REPLICAS)])[TOPIC].result(WAIT_S)
    sending = Sending(source.bootstrap)
    sending.start()
    sending.sends(RECORD_COUNT)
    properties = {
        "source->target.topics": TOPIC,
        "refresh.topics.interval.seconds": "2",
        "target.exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{ReservedPort().number}",
        **{f"{name}.factor": str(REPLICAS) for name in FACTORS},
        **settings_of("source", source),
        **settings_of("target", target),
    }
    with mirror(libraries, folder, properties) as said:
        try:
            there = AdminClient({"bootstrap.servers": target.bootstrap})
            eventually(lambda: COPY in there.list_topics(timeout=WAIT_S).topics, timeout_s=MIRROR_S)
            copied = Copied(target.bootstrap)
            for cluster, name in ((target, "broker 1"), (source, "broker 2")):
                eventually(lambda: copied.count() > 0, timeout_s=MIRROR_S)
                cluster.kill_present(name)
                sending.sends(RECORD_COUNT)
            target.kill_present("controller")
            sending.sends(RECORD_COUNT)
            sending.ends.set()
            sending.join(2 * WAIT_S)
            assert not sending.is_alive()
            assert not sending.failures, sending.failures
            eventually(lambda: copied.count() >= sending.sent, timeout_s=MIRROR_S)
        except BaseException:
            print(said.read_text()[-4000:])
            raise
    copied.count()
    copied.close()
    for number, values in copied.values.items():
        count = len(range(number, sending.sent, PARTITIONS))
        assert values == list(range(count)), f"partition {number}: {len(values)} of {count}"
    found = there.list_topics(COPY, timeout=WAIT_S).topics[COPY].partitions
    assert all(len(one.replicas) == REPLICAS for one in found.values())
    return sending.sent


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="strandline-mirror-") as name:
        folder = Path(name)
        # The second looks for ports when the first has its own.
        with (
            SeveralBrokers(folder / "source", *SETTINGS, brokers=BROKERS) as source,
            SeveralBrokers(folder / "target", *SETTINGS, brokers=BROKERS) as target,
        ):
            count = run(Path(arguments[0]), folder, source, target)
            for cluster in (source, target):
                assert "Traceback" not in cluster.log_text(), cluster.log_text()[-4000:]
    print(f"MirrorMaker 2 copied {count} records once each, between clusters of {BROKERS}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
