"""`make mixed`: partitions move from Apache Kafka's brokers to ours and back, while clients go on.

The commands are those of docs/how-to/move-from-kafka.md. Idempotent and transactional producers, a
group of each kind and an open transaction see nothing but a change of leader: each record is there
once and in order, no committed offset goes back, nothing aborted is read.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.comparison.peers import kafka_java
from strandline.storage.records.batch.record import Record
from strandline.storage.remote.open_store import open_store
from tests.compat.mixed.clients import (
    WAIT_S,
    Client,
    Committing,
    OpenTransaction,
    Reading,
    Writing,
    eventually,
)
from tests.compat.mixed.cluster import produce
from tests.compat.mixed.nodes import (
    HEAP,
    KAFKA_ID,
    SECOND_ID,
    STRANDLINE_ID,
    KafkaNode,
    kafka_broker,
    kafka_controller,
    strandline_broker,
)
from tests.conftest import S3Bucket, make_bucket
from tests.support.broker import BrokerProcess
from tests.support.ministack import ServerProcess
from tests.support.old_formats import CODECS, message_set
from tests.support.page_blocks import ROOT, Block, blocks_of
from tests.support.page_world import ARCHIVE, wanted_environment
from tests.system.tiers.tiered_broker import REGION

# Five JVMs, and one more for each command of the page.
pytestmark = pytest.mark.timeout(3600)

PAGE = ROOT / "docs" / "how-to" / "move-from-kafka.md"
SECOND_KAFKA_ID = 2
APACHES, OURS = (KAFKA_ID, SECOND_KAFKA_ID), (SECOND_ID, STRANDLINE_ID)
INTERNAL = ("__consumer_offsets", "__transaction_state")
USERS = ("orders", "payments")
PARTITIONS = 2
VALUES = [b"%d" % number for number in range(100)]
KEYS, OLD_RUN = 10, 20
NOW_MS = 1_700_000_000_000
TOOLS = {
    "kafka-configs.sh": "ConfigCommand",
    "kafka-reassign-partitions.sh": "reassign.ReassignPartitionsCommand",
}
REPLICATED = {
    "offsets.topic.replication.factor": "2",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "log.initial.task.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "500",
}
# Partition, offset and value of a record.
Row = tuple[int, int, bytes]
# What follows the page's session of Spark.
ROWS_TO = """
import json

found = orders.select("partition", "offset", "value").orderBy("partition", "offset").collect()
with open({!r}, "w") as file:
    json.dump([[row.partition, row.offset, row.value.decode()] for row in found], file)
"""
SMALL_SPARK = "--master local[1] --driver-memory 512m --conf spark.ui.enabled=false pyspark-shell"
REMOTE = {"remote.log.storage.system.enable": "true"}
SESSIONS = {"broker.session.timeout.ms": "15000"}
QUICK = {
    "remote.log.manager.task.interval.ms": "300",
    "strandline.remote.delete.grace.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
    "strandline.remote.s3.region": REGION,
}


@dataclass(frozen=True, slots=True)
class House:
    """Two brokers of Apache Kafka, two of ours, and the bucket of these."""

    apaches: dict[int, KafkaNode]
    ours: dict[int, BrokerProcess]
    folder: Path
    bucket: S3Bucket
    admin: AdminClient

    @property
    def bootstrap(self) -> str:
        """Kafka's brokers: clients know no others."""
        return ",".join(one.address for one in self.apaches.values())

    def join(self) -> None:
        """Ours become brokers of the cluster, if they are not."""
        for broker in self.ours.values():
            if not broker.running:
                broker.start()
        both = len(APACHES) + len(OURS)
        eventually(lambda: len(self.admin.list_topics(timeout=WAIT_S).brokers) == both)

    def create(self, topic: str, **config: str) -> None:
        """Lies on Kafka's brokers, each leads."""
        texts = {key.replace("_", "."): text for key, text in config.items()}
        assignment = [[*APACHES[n % 2 :], *APACHES[: n % 2]] for n in range(PARTITIONS)]
        new = NewTopic(topic, PARTITIONS, replica_assignment=assignment, config=texts)
        self.admin.create_topics([new])[topic].result(WAIT_S)
        eventually(lambda: self.lies_on(topic, APACHES))

    def create_at(self, topic: str, node: int, **config: str) -> None:
        """One partition with one replica."""
        new = NewTopic(topic, 1, replica_assignment=[[node]], config=config)
        self.admin.create_topics([new])[topic].result(WAIT_S)
        eventually(lambda: self.leader(topic) == node)

    def leader(self, topic: str) -> int:
        """Of its first partition."""
        found = self.admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        return int(found[0].leader) if found else -1

    def lies_on(self, topic: str, nodes: tuple[int, ...]) -> bool:
        """Whether these have all partitions in sync, and lead them."""
        found = self.admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions.values()
        return bool(found) and all(
            sorted(one.replicas) == sorted(one.isrs) == sorted(nodes) and one.leader in nodes
            for one in found
        )

    def await_move(self, topics: Iterable[str], nodes: tuple[int, ...]) -> None:
        """Waits until these have all replicas of the topics in sync."""
        eventually(lambda: all(self.lies_on(topic, nodes) for topic in topics))

    def local_start(self, topic: str, partition: int) -> int:
        """The first offset on the disks of ours that has most of a partition."""
        return min(
            int(path.stem)
            for one in self.ours.values()
            for path in (one.data / f"{topic}-{partition}").glob("*.log")
        )

    def archived_objects(self) -> list[str]:
        store = open_store(self.bucket.url, endpoint_url=self.bucket.endpoint_url, region=REGION)
        return [one.key for one in store.list("topics/")]

    def dump(self, node: int, topic: str, partition: int) -> list[str]:
        """The records of a replica, as Kafka's own tool reads them."""
        logs = sorted(self.log_folder(node, topic, partition).glob("*.log"))
        printed = run_java(
            "DumpLogSegments",
            *("--deep-iteration", "--print-data-log", "--files", ",".join(map(str, logs))),
        )
        return [line for line in printed.splitlines() if line.startswith("| offset:")]

    def log_folder(self, node: int, topic: str, partition: int) -> Path:
        ours = self.ours.get(node)
        data = self.folder / f"apache-{node}" / "data" if ours is None else ours.data
        return data / f"{topic}-{partition}"


def run_java(main: str, *words: str) -> str:
    done = subprocess.run(
        kafka_java(f"org.apache.kafka.tools.{main}", *words, options=HEAP),
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


class Operator:
    """Follows the page, in a folder of their own."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._folder = house.folder / "operator"
        self._folder.mkdir(exist_ok=True)
        self._blocks = list(blocks_of(PAGE))

    def block(self, language: str, text: str) -> Block:
        """The first one that has the text."""
        return next(one for one in self._blocks if one.language == language and text in one.text)

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def run(self, block: Block) -> str:
        """Runs its commands; returns what the last one prints, when nothing is in progress."""
        printed = ""

        def is_done(command: str) -> bool:
            nonlocal printed
            printed = self._command(command)
            return "still in progress" not in printed

        for command in block.text.splitlines():
            eventually(lambda command=command: is_done(command))
        return printed

    def _command(self, command: str) -> str:
        text = command.replace("broker1:9092", self._house.bootstrap)
        program, *words = shlex.split(text)
        paths = [str(self._folder / word) if word.endswith(".json") else word for word in words]
        return run_java(TOOLS[program], *paths)

    def plan(self) -> str:
        """Writes `move.json` for the topics in `topics.json`; returns what is `back.json`."""
        printed = self.run(self.block("text", "--generate"))
        present, proposed = (line for line in printed.splitlines() if line.startswith("{"))
        self.write("move.json", proposed)
        return present

    def move(self) -> None:
        self.run(self.block("text", "move.json --execute"))

    def move_back(self, plan: str) -> None:
        self.write("back.json", plan)
        self.run(self.block("text", "back.json --execute"))

    def spark(self) -> list[Row]:
        """What the session of the page has read, by offset."""
        block = self.block("python", "orders.count()").text
        found = self._folder / "found.json"
        text = block.replace(ARCHIVE, self._house.bucket.url) + ROWS_TO.format(str(found))
        done = subprocess.run(
            [sys.executable, "-c", text],
            env={
                **wanted_environment(self._house.bucket.endpoint_url, "", self._folder),
                **{key: os.environ[key] for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")},
                "PYSPARK_SUBMIT_ARGS": SMALL_SPARK,
            },
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=2 * WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        rows = [
            (int(row[0]), int(row[1]), str(row[2]).encode())
            for row in json.loads(found.read_text())
        ]
        assert int(done.stdout.split()[-1]) <= len(rows)
        return rows


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, ministack: ServerProcess) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    bucket = make_bucket(ministack.endpoint_url)
    remote = {
        **REMOTE,
        **QUICK,
        "strandline.remote.url": bucket.url,
        "strandline.remote.s3.endpoint.url": bucket.endpoint_url,
    }
    controller = kafka_controller(folder / "controller", {**SESSIONS, **REMOTE})
    apaches = {
        node: kafka_broker(
            folder / f"apache-{node}", controller, settings={"node.id": str(node), **REPLICATED}
        )
        for node in APACHES
    }
    ours = {
        node: strandline_broker(folder / f"ours-{node}", controller, node_id=node, settings=remote)
        for node in OURS
    }
    try:
        controller.start()
        for node in apaches.values():
            node.begin()
        for node in apaches.values():
            node.await_start()
        addresses = ",".join(one.address for one in apaches.values())
        admin = AdminClient({"bootstrap.servers": addresses})
        eventually(lambda: len(admin.list_topics(timeout=WAIT_S).brokers) == len(APACHES))
        yield House(apaches, ours, folder, bucket, admin)
        for broker in ours.values():
            assert broker.running
            assert "Traceback" not in broker.log_text(), broker.log_text()[-4000:]
    finally:
        for broker in ours.values():
            broker.kill()
        for node in (*apaches.values(), controller):
            node.end(signal.SIGKILL)


def test_a_cluster_moves_to_strandline_and_back_while_clients_go_on(house: House) -> None:
    operator = Operator(house)
    # Records of last month: Kafka's brokers would delete them by their own default.
    kept = {"segment_ms": "8000", "segment_bytes": "1048576", "retention_ms": "-1"}
    for topic in USERS:
        house.create(topic, **kept)
    writing = Writing(house.bootstrap, "orders", PARTITIONS, **{"compression.type": "zstd"})
    committing = Committing(house.bootstrap, "payments", PARTITIONS)
    readings = [
        Reading(house.bootstrap, topic, f"{topic}-{protocol}", protocol)
        for topic in USERS
        for protocol in ("classic", "consumer")
    ]
    clients = [writing, committing, *readings]
    for client in clients:
        client.begin()
    go_on(clients)
    house.join()

    held = OpenTransaction(house.bootstrap, "payments", PARTITIONS, b"held-first")
    operator.write("topics.json", operator.block("json", "orders").text)
    back = operator.plan()
    operator.move()
    house.await_move(USERS, OURS)
    held.commit()
    go_on(clients)

    held = OpenTransaction(house.bootstrap, "payments", PARTITIONS, b"held-second")
    operator.write("topics.json", operator.block("json", "__consumer_offsets").text)
    internal_back = operator.plan()
    operator.move()
    house.await_move(INTERNAL, OURS)
    held.commit()
    go_on(clients)

    operator.run(operator.block("text", "remote.storage.enable=true"))
    eventually(lambda: all(house.local_start("orders", n) > 0 for n in range(PARTITIONS)))
    check_archive(operator.spark(), writing)
    go_on(clients)

    held = OpenTransaction(house.bootstrap, "payments", PARTITIONS, b"held-aborted")
    for plan, topics in ((internal_back, INTERNAL), (back, USERS)):
        operator.move_back(plan)
        house.await_move(topics, APACHES)
    held.abort()
    go_on(clients)
    operator.run(operator.block("text", "remote.log.delete.on.disable=true"))
    eventually(lambda: not house.archived_objects())

    for client in (writing, committing):
        client.end()
    counts = {
        "orders": {number: len(told) for number, told in writing.acknowledged.items()},
        "payments": dict.fromkeys(range(PARTITIONS), len(committing.committed) + 2),
    }
    for reading in readings:
        reading.reads_to(counts[reading.topic])
        reading.end()
    check_records(house, writing, committing, readings)


def go_on(clients: list[Client]) -> None:
    for client in clients:
        client.goes_on()


def check_archive(rows: list[Row], writing: Writing) -> None:
    """What is archived is the beginning of what was written."""
    for number, sent in writing.sent.items():
        found = [(offset, value) for partition, offset, value in rows if partition == number]
        assert found, number
        assert found == list(enumerate(sent[: len(found)]))


def check_records(
    house: House, writing: Writing, committing: Committing, readings: list[Reading]
) -> None:
    """Each record is there once and in order, on both brokers and for each reader."""
    for partition in range(PARTITIONS):
        told = writing.acknowledged[partition]
        assert [offset for offset, _ in told] == list(range(len(told)))
        dumps = [house.dump(node, "orders", partition) for node in APACHES]
        assert dumps[0] == dumps[1]
        assert len(dumps[0]) == len(told)
        for reading in readings:
            values = [value for _, value in reading.read[partition]]
            if reading.topic == "orders":
                assert reading.read[partition] == told
                continue
            assert [one for one in values if b"held" in one] == [b"held-first", b"held-second"]
            assert [one for one in values if b"held" not in one] == committing.committed


def test_logs_of_every_kind_move_and_come_back_record_by_record(house: House) -> None:
    """Of each codec; compacted, with what the cleaner left; of formats from before Kafka 0.11."""
    house.join()
    operator = Operator(house)
    house.create_at("codecs", KAFKA_ID)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(house.bootstrap, "codecs", 0, VALUES, **{"compression.type": codec})
    compacted = {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0"}
    house.create_at("compacted", KAFKA_ID, **compacted)
    fill_compacted(house)
    # Either broker's retention would take what is years old.
    house.create_at("old", KAFKA_ID, **{"retention.ms": "-1"})
    plant_old_messages(house)
    topics = ("codecs", "compacted", "old")
    before = [house.dump(KAFKA_ID, topic, 0) for topic in topics]
    assert [len(one) for one in before] == [5 * len(VALUES), KEYS + 1, 2 * OLD_RUN]
    named = [f'{{"topic": "{topic}"}}' for topic in topics]
    operator.write("topics.json", f'{{"version": 1, "topics": [{", ".join(named)}]}}')
    back = operator.plan()
    operator.move()
    leaders = [house.leader(topic) for topic in topics]
    assert set(leaders) <= set(OURS)
    assert [house.dump(*one, 0) for one in zip(leaders, topics, strict=True)] == before
    operator.move_back(back)
    assert [house.dump(KAFKA_ID, topic, 0) for topic in topics] == before


def fill_compacted(house: House) -> None:
    """Waits until Kafka's cleaner has left the last value of each key."""
    producer = Producer({"bootstrap.servers": house.bootstrap})
    for number in range(5 * KEYS):
        producer.produce("compacted", b"%d" % number, key=b"%d" % (number % KEYS), partition=0)
        producer.flush(WAIT_S)
    time.sleep(1)
    # The open segment is not cleaned.
    producer.produce("compacted", b"open", key=b"open", partition=0)
    assert producer.flush(WAIT_S) == 0

    def is_cleaned() -> bool:
        # The tool fails over a segment that the cleaner replaces meanwhile.
        with suppress(AssertionError):
            return len(house.dump(KAFKA_ID, "compacted", 0)) == KEYS + 1
        return False

    eventually(is_cleaned)


def plant_old_messages(house: House) -> None:
    """As a Kafka of long ago left them, before a batch of today."""
    node = house.apaches[KAFKA_ID]
    node.end()
    folder = house.log_folder(KAFKA_ID, "old", 0)
    for path in folder.glob("0*"):
        path.unlink()
    runs = [
        [Record(offset=n, timestamp_ms=NOW_MS, key=b"k", value=b"%d" % n) for n in numbers]
        for numbers in (range(OLD_RUN), range(OLD_RUN, 2 * OLD_RUN))
    ]
    content = message_set(runs[0], magic=0) + message_set(runs[1], magic=1, codec=CODECS["gzip"])
    (folder / f"{0:020}.log").write_bytes(content)
    node.start()
    eventually(lambda: house.leader("old") == KAFKA_ID)
