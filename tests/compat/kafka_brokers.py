"""`make kafka-brokers`: brokers of Apache Kafka in a cluster whose controller is ours.

    strandline  controller, in a process of its own
    Kafka       two brokers: one by controller.quorum.voters, one by bootstrap.servers

They register, are unfenced, and lead topics. Clients produce, consume in a group, write by
transactions and change topics, while the controller is killed and stopped, and brokers are killed
and ended. What was acknowledged is there at the end, once.

The libraries of Kafka come from Maven Central (`make kafka-jars`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from bench.comparison.peers import kafka_java, until
from tests.support.broker import BrokerProcess
from tests.support.ports import ReservedPort

WAIT_S = 120.0
SESSION_MS = 6000
PARTITIONS = 6
LISTENERS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
Say = Callable[[str], None]


class Controller(BrokerProcess):
    """`strandline serve` in the role of a controller."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            settings={
                "process.roles": "controller",
                "node.id": "1000",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": LISTENERS,
                "broker.session.timeout.ms": str(SESSION_MS),
            },
        )
        self.settings["listeners"] = f"CONTROLLER://127.0.0.1:{self.port}"

    @property
    def cluster_id(self) -> str:
        text = (self.data / "meta.properties").read_text()
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)["cluster.id"]


class KafkaBroker:
    """A broker of Apache Kafka in a process of its own."""

    def __init__(self, folder: Path, node_id: int, controllers: dict[str, str]) -> None:
        self.node_id = node_id
        self._folder = folder
        self._reserved = ReservedPort()
        self._controllers = controllers
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._reserved.number}"

    @property
    def log(self) -> str:
        return (self._folder / "kafka.log").read_text(errors="replace")

    def format(self, cluster_id: str) -> None:
        settings = {
            "process.roles": "broker",
            "node.id": str(self.node_id),
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": LISTENERS,
            "log.dirs": str(self._folder / "data"),
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._controllers,
        }
        self._folder.mkdir(parents=True)
        properties = self._folder / "server.properties"
        properties.write_text("".join(f"{key}={text}\n" for key, text in settings.items()))
        arguments = ("format", "--cluster-id", cluster_id, "--config", str(properties))
        command = kafka_java("kafka.tools.StorageTool", *arguments)
        subprocess.run(command, check=True, capture_output=True)

    def start(self) -> None:
        with open(self._folder / "kafka.log", "ab") as log_file:
            self._process = subprocess.Popen(
                kafka_java(
                    "kafka.Kafka",
                    str(self._folder / "server.properties"),
                    options=("-Xmx256m", "-Xms256m"),
                ),
                stdout=log_file,
                stderr=subprocess.STDOUT,
            )

    def end(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Ends it; returns the seconds that took."""
        if self._process is None or self._process.poll() is not None:
            return 0.0
        began_s = time.monotonic()
        self._process.send_signal(number)
        self._process.wait(WAIT_S)
        return time.monotonic() - began_s


class Cluster:
    """What clients see of the cluster."""

    def __init__(self, brokers: Iterable[KafkaBroker]) -> None:
        self.bootstrap = ",".join(broker.bootstrap for broker in brokers)
        self.admin = AdminClient(self.settings())
        self.acknowledged: set[bytes] = set()
        self._sent = 0

    def settings(self, **more: object) -> dict[str, object]:
        """Those of a client; it says nothing of brokers that are away."""
        names = {name.replace("_", "."): value for name, value in more.items()}
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **names}

    def leaders(self, topic: str) -> list[int]:
        found = self.admin.list_topics(topic, timeout=30).topics[topic].partitions
        return [found[number].leader for number in sorted(found)]

    def in_sync(self, topic: str) -> list[set[int]]:
        found = self.admin.list_topics(topic, timeout=30).topics[topic].partitions
        return [set(found[number].isrs) for number in sorted(found)]

    def replicas(self, topic: str) -> list[list[int]]:
        found = self.admin.list_topics(topic, timeout=30).topics[topic].partitions
        return [found[number].replicas for number in sorted(found)]

    def brokers(self) -> set[int]:
        """Those that clients see; none before the first one listens."""
        try:
            return set(self.admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return set()

    def create(
        self, topic: str, partitions: int = PARTITIONS, factor: int = 1, **properties: str
    ) -> None:
        config = {name.replace("_", "."): text for name, text in properties.items()}
        new = NewTopic(topic, partitions, factor, config=config)
        for done in self.admin.create_topics([new]).values():
            done.result(WAIT_S)
        until(lambda: self._is_led(topic, partitions), timeout_s=WAIT_S, interval_s=0.1)

    def _is_led(self, topic: str, partitions: int) -> bool:
        leaders = self.leaders(topic)
        return len(leaders) == partitions and min(leaders) > 0

    def produce(
        self,
        topic: str,
        count: int = 200,
        *,
        partitions: Iterable[int] = (),
        idempotently: bool = True,
    ) -> None:
        """Produces, and notes what is acknowledged. All of it has to be.

        An idempotent producer needs an id, for which its broker may have to ask the controller.
        """
        producer = Producer(self.settings(enable_idempotence=idempotently, acks="all"))
        wanted = list(partitions) or list(range(PARTITIONS))
        failed: list[object] = []

        def note(error: object, message: object) -> None:
            if error is not None:
                failed.append(error)
            else:
                self.acknowledged.add(message.value())  # type: ignore[attr-defined]

        for _ in range(count):
            self._sent += 1
            value = b"%d" % self._sent
            partition = wanted[self._sent % len(wanted)]
            producer.produce(topic, value, partition=partition, on_delivery=note)
        left = producer.flush(WAIT_S)
        assert (left, failed) == (0, []), (left, failed[:3])

    def read(self, topic: str) -> list[bytes]:
        """All records of the topic."""
        consumer = Consumer(self.settings(group_id="reader"))
        values: list[bytes] = []
        for partition in range(PARTITIONS):
            place = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=30)
            consumer.assign([place])
            while end > 0:
                message = consumer.poll(30)
                assert message is not None, f"{topic}-{partition} ends before {end}"
                assert message.error() is None, message.error()
                values.append(message.value())
                if message.offset() + 1 >= end:
                    break
        consumer.close()
        return values

    def consume_in_group(self, topic: str, group: str, count: int) -> None:
        consumer = Consumer(self.settings(group_id=group, auto_offset_reset="earliest"))
        consumer.subscribe([topic])
        seen = 0
        deadline_s = time.monotonic() + WAIT_S
        while seen < count and time.monotonic() < deadline_s:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                seen += 1
        assert seen >= count, f"{seen} of {count}"
        consumer.commit(asynchronous=False)
        consumer.close()

    def transact(self, topic: str, transactional_id: str) -> None:
        producer = Producer(self.settings(transactional_id=transactional_id))
        producer.init_transactions(WAIT_S)
        for value, commits in ((b"committed", True), (b"aborted", False)):
            producer.begin_transaction()
            producer.produce(topic, value)
            if commits:
                producer.commit_transaction(WAIT_S)
            else:
                producer.flush(WAIT_S)
                producer.abort_transaction(WAIT_S)


def run(folder: Path, say: Say) -> None:
    """Raises AssertionError at what is not as it must be."""
    controller = Controller(folder / "controller")
    address = f"127.0.0.1:{controller.port}"
    brokers = [
        KafkaBroker(folder / "kafka1", 1, {"controller.quorum.voters": f"1000@{address}"}),
        KafkaBroker(folder / "kafka2", 2, {"controller.quorum.bootstrap.servers": address}),
    ]
    try:
        controller.start()
        for broker in brokers:
            broker.format(controller.cluster_id)
            broker.start()
        cluster = Cluster(brokers)
        until(lambda: cluster.brokers() == {1, 2}, timeout_s=WAIT_S, interval_s=0.2)
        say("two brokers of Apache Kafka registered with our controller, and were unfenced")
        serve_clients(cluster, brokers[0], say)
        lose_the_controller(cluster, controller, say)
        lose_a_broker(cluster, brokers[0], say)
        end_a_broker(cluster, controller, brokers[1], say)
        values = cluster.read("t")
        lost = cluster.acknowledged - set(values)
        assert not lost, f"{len(lost)} acknowledged records are gone"
        assert len(values) == len(set(values)), "records came twice"
        say(f"{len(cluster.acknowledged)} acknowledged records are there, once each")
    finally:
        for broker in brokers:
            broker.end(signal.SIGKILL)
        controller.kill()


def serve_clients(cluster: Cluster, broker: KafkaBroker, say: Say) -> None:
    cluster.create("t")
    assert set(cluster.leaders("t")) == {1, 2}, cluster.leaders("t")
    say(f"a topic is led by both: {cluster.leaders('t')}")
    cluster.produce("t")
    cluster.consume_in_group("t", "g", 200)
    cluster.create("transacted", 2)
    cluster.transact("transacted", "x")
    say("an idempotent producer, a group, and transactions")
    for done in cluster.admin.create_partitions([NewPartitions("transacted", 4)]).values():
        done.result(WAIT_S)
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        "t",
        incremental_configs=[
            ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    for altered in cluster.admin.incremental_alter_configs([resource]).values():
        altered.result(WAIT_S)

    def is_altered() -> bool:
        asked = ConfigResource(ConfigResource.Type.TOPIC, "t")
        (found,) = cluster.admin.describe_configs([asked]).values()
        return found.result(WAIT_S)["retention.ms"].value == "86400000"

    until(is_altered, timeout_s=WAIT_S, interval_s=0.1)
    for deleted in cluster.admin.delete_topics(["transacted"]).values():
        deleted.result(WAIT_S)
    say("partitions added, a property altered, a topic deleted")
    described = subprocess.run(
        kafka_java(
            "org.apache.kafka.tools.MetadataQuorumCommand",
            "--bootstrap-server",
            broker.bootstrap,
            "describe",
            "--status",
        ),
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    ).stdout
    assert "LeaderId:               1000" in described, described
    say("kafka-metadata-quorum names the controller and its epoch")


def lose_the_controller(cluster: Cluster, controller: Controller, say: Say) -> None:
    controller.kill()
    cluster.produce("t", idempotently=False)
    controller.start()
    cluster.create("after-the-kill")
    say("controller killed: clients went on; started again, it makes topics")
    os.kill(controller.pid, signal.SIGSTOP)
    time.sleep(SESSION_MS / 1000 + 2)
    cluster.produce("t", idempotently=False)
    os.kill(controller.pid, signal.SIGCONT)
    cluster.create("after-the-stop")
    assert "session expired" not in controller.log_path.read_text()
    say("controller stopped for longer than a session: nobody was fenced for it")


def lose_a_broker(cluster: Cluster, broker: KafkaBroker, say: Say) -> None:
    led = [number for number, node in enumerate(cluster.leaders("t")) if node == broker.node_id]
    rest = [number for number in range(PARTITIONS) if number not in led]
    broker.end(signal.SIGKILL)

    def is_without() -> bool:
        leaders = cluster.leaders("t")
        return all(leaders[number] == -1 for number in led)

    until(is_without, timeout_s=WAIT_S, interval_s=0.2)
    cluster.produce("t", partitions=rest)
    say(f"a broker killed: partitions {led} have no leader, the others go on")
    broker.start()
    until(lambda: min(cluster.leaders("t")) > 0, timeout_s=WAIT_S, interval_s=0.2)
    cluster.produce("t", partitions=led)
    say("started again, it leads them again")


def end_a_broker(cluster: Cluster, controller: Controller, broker: KafkaBroker, say: Say) -> None:
    fenced = "broker fenced: its session expired"
    before = controller.log_path.read_text().count(fenced)
    seconds = broker.end()
    assert broker.node_id not in cluster.leaders("t"), "it ended before it handed over"
    assert controller.log_path.read_text().count(fenced) == before
    say(f"a broker ended in a controlled way, in {seconds:.1f} s")
    broker.start()
    until(lambda: min(cluster.leaders("t")) > 0, timeout_s=WAIT_S, interval_s=0.2)
    cluster.produce("t")
    say("started again, it leads again")


def main(run: Callable[[Path, Say], None] = run) -> int:
    """Runs in a folder that is kept if something is not as it must be."""

    def say(text: str) -> None:
        print(f"{text}.", flush=True)

    with tempfile.TemporaryDirectory(prefix="strandline-brokers-") as folder:
        try:
            run(Path(folder), say)
        except (AssertionError, TimeoutError, KafkaException) as error:
            print(f"failed: {error}", file=sys.stderr)
            kept = Path(folder).with_suffix(".failed")
            shutil.copytree(folder, kept)
            print(f"the folders are kept in {kept}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
