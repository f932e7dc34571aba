"""`make reassign`: Apache Kafka's kafka-reassign-partitions with all its verbs, kafka-topics and
kafka-leader-election against `strandline serve --brokers 3`, in three racks with two folders each.

Records are read by Kafka's consumer and librdkafka's from the replica in their rack meanwhile.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from bench.comparison.peers import kafka_java, until
from tests.compat.kafka_brokers import Say, main
from tests.support.several_brokers import SeveralBrokers

WAIT_S = 300.0
TOPIC = "moved"
TOOLS = "org.apache.kafka.tools."
REASSIGN = TOOLS + "reassign.ReassignPartitionsCommand"
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
# A tool starts in less time and memory.
JAVA_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
RECORD = b"x" * 1000
RECORDS = 20_000
# Bytes a second of the move that is measured.
THROTTLE = 2_000_000
# With that it does not end while others look at it.
SLOW = 1000


class Brokers:
    """The cluster, the tools that are run against it, and what they printed."""

    def __init__(self, cluster: SeveralBrokers, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self.folders = [folder / "disk-a", folder / "disk-b"]
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def tool(self, name: str, *arguments: str, fails: bool = False) -> str:
        where = ("--bootstrap-server", self.bootstrap)
        command = kafka_java(name, *where, *arguments, options=JAVA_OPTIONS)
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, said
        return said

    def plan(self, replicas: dict[int, list[int]], **folders: list[str]) -> tuple[str, str]:
        """Returns the options that name a plan; `p0` are the folders of partition 0."""
        rows = []
        for number, nodes in replicas.items():
            row = {"topic": TOPIC, "partition": number, "replicas": nodes}
            if f"p{number}" in folders:
                row["log_dirs"] = folders[f"p{number}"]
            rows.append(row)
        path = self._folder / "plan.json"
        path.write_text(json.dumps({"version": 1, "partitions": rows}))
        return "--reassignment-json-file", str(path)

    def await_done(self, plan: Sequence[str]) -> str:
        said = ""

        def is_done() -> bool:
            nonlocal said
            said = self.tool(REASSIGN, *plan, "--verify")
            return "in progress" not in said

        until(is_done, timeout_s=WAIT_S, interval_s=0.5)
        return said

    def replicas(self) -> dict[int, list[int]]:
        found = self.admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions
        return {number: list(one.replicas) for number, one in sorted(found.items())}

    def in_sync(self) -> dict[int, list[int]]:
        found = self.admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions
        return {number: sorted(one.isrs) for number, one in sorted(found.items())}

    def throttles(self) -> list[str]:
        """Returns what of throttles the brokers and the topic are configured with."""
        asked = [
            ConfigResource(ConfigResource.Type.TOPIC, TOPIC),
            *(ConfigResource(ConfigResource.Type.BROKER, one) for one in "123"),
        ]
        found = [
            one.result(WAIT_S)
            # librdkafka asks about one broker at a time.
            for resource in asked
            for one in self.admin.describe_configs([resource]).values()
        ]
        return [
            f"{name}={entry.value}"
            for entries in found
            for name, entry in entries.items()
            if not entry.is_default and re.search(r"throttled|log\.dirs\.io\.max\.bytes", name)
        ]

    def sent_by(self, broker: int) -> float:
        """Returns the bytes of the topic that a broker sent to clients."""
        with urllib.request.urlopen(f"{self._cluster.metrics}/metrics", timeout=WAIT_S) as page:
            lines = page.read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if "bytesout" in line and f'broker="{broker}"' in line and f'topic="{TOPIC}"' in line
        )


def run(folder: Path, say: Say) -> None:
    """Raises AssertionError at what is not as it must be."""
    with SeveralBrokers(
        folder,
        f"log.dirs={folder / 'disk-a'},{folder / 'disk-b'}",
        "strandline.brokers.racks=a,b,c",
        f"replica.selector.class={RACK_AWARE}",
    ) as cluster:
        brokers = Brokers(cluster, folder)
        fill(brokers)
        say("a topic of two partitions, with replicas on brokers 1 and 2, and 2 and 3")
        generate(brokers, say)
        move_throttled(brokers, say)
        cancel(brokers, say)
        more_and_fewer(brokers, say)
        elect(brokers, say)
        move_folders(brokers, say)
        read_nearby(brokers, say)
        assert "Traceback" not in cluster.log_text(), cluster.log_text()[-4000:]


def fill(brokers: Brokers) -> None:
    brokers.tool(
        *(TOOLS + "TopicCommand", "--create", "--topic", TOPIC, "--replica-assignment", "1:2,2:3")
    )
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(TOPIC, RECORD, b"%d" % number, partition=number % 2)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def generate(brokers: Brokers, say: Say) -> None:
    path = brokers.folders[0].with_name("topics.json")
    path.write_text(json.dumps({"version": 1, "topics": [{"topic": TOPIC}]}))
    said = brokers.tool(
        *(REASSIGN, "--generate", "--topics-to-move-json-file", str(path)),
        *("--broker-list", "1,2,3"),
    )
    assert '"replicas":[1,2]' in said, said
    assert "Proposed partition reassignment configuration" in said, said
    refused = brokers.tool(
        *(REASSIGN, *brokers.plan({0: [1, 9]}), "--execute"),
        fails=True,
    )
    assert "9" in refused, refused
    say("--generate proposes a plan; --execute refuses a broker that is not there")


def move_throttled(brokers: Brokers, say: Say) -> None:
    plan = brokers.plan({0: [3, 2], 1: [2, 1]})
    said = brokers.tool(REASSIGN, *plan, "--execute", "--throttle", str(SLOW))
    assert "The inter-broker throttle limit was set to" in said, said
    assert "Successfully started partition reassignment" in said, said
    throttles = brokers.throttles()
    assert f"leader.replication.throttled.rate={SLOW}" in throttles, throttles
    assert f"follower.replication.throttled.rate={SLOW}" in throttles, throttles
    assert any("leader.replication.throttled.replicas=" in one for one in throttles), throttles
    said = brokers.tool(REASSIGN, "--list")
    assert f"{TOPIC}-0: replicas: 3,2,1. adding: 3. removing: 1" in said, said
    said = brokers.tool(REASSIGN, *plan, "--verify", "--preserve-throttles")
    assert f"Reassignment of partition {TOPIC}-0 is still in progress" in said, said
    began_s = time.monotonic()
    brokers.tool(REASSIGN, *plan, "--execute", "--additional", "--throttle", str(THROTTLE))
    until(
        lambda: {3} <= {*brokers.in_sync()[0]} and {1} <= {*brokers.in_sync()[1]},
        timeout_s=WAIT_S,
        interval_s=0.1,
    )
    took_s = time.monotonic() - began_s
    said = brokers.await_done(plan)
    assert f"Reassignment of partition {TOPIC}-0 is completed" in said, said
    assert "Clearing broker-level throttles" in said, said
    assert "Clearing topic-level throttles" in said, said
    assert brokers.throttles() == [], brokers.throttles()
    assert brokers.replicas() == {0: [3, 2], 1: [2, 1]}, brokers.replicas()
    bytes_moved = RECORDS // 2 * len(RECORD)
    say(
        f"--execute --throttle {THROTTLE}: each broker got {bytes_moved / 1e6:.0f} MB in"
        f" {took_s:.1f} s, {bytes_moved / took_s / 1e6:.2f} MB/s; --list shows it, and --verify"
        " removes the throttles"
    )


def cancel(brokers: Brokers, say: Say) -> None:
    plan = brokers.plan({0: [1, 2]})
    brokers.tool(REASSIGN, *plan, "--execute", "--throttle", "1000")
    refused = brokers.tool(REASSIGN, *brokers.plan({0: [3, 1]}), "--execute", fails=True)
    assert "existing partition assignment" in refused.lower() or "--additional" in refused, refused
    said = brokers.tool(REASSIGN, *plan, "--cancel")
    assert f"Successfully cancelled partition reassignment for: {TOPIC}-0" in said, said
    said = brokers.tool(REASSIGN, "--list")
    assert "No partition reassignments found" in said, said
    # Kafka takes those that were added out of 1, 2, 3: what was to go stays last.
    assert brokers.replicas()[0] == [2, 3], brokers.replicas()
    assert brokers.throttles() == [], brokers.throttles()
    say("--cancel gives the partition its replicas back, and removes the throttles")


def more_and_fewer(brokers: Brokers, say: Say) -> None:
    for replicas in ({0: [1, 2, 3], 1: [3, 2, 1]}, {0: [2], 1: [3]}, {0: [1, 2], 1: [3, 1]}):
        move(brokers, replicas)
    said = brokers.tool(TOOLS + "TopicCommand", *("--alter", "--topic", TOPIC, "--partitions", "3"))
    placed = brokers.replicas()[2]
    assert len(placed) == 2, said
    say(f"more and fewer replicas; kafka-topics adds a partition, on {placed}")


def move(brokers: Brokers, replicas: dict[int, list[int]]) -> None:
    plan = brokers.plan(replicas)
    brokers.tool(REASSIGN, *plan, "--execute")
    until(lambda: brokers.replicas() == replicas, timeout_s=WAIT_S, interval_s=0.2)
    brokers.await_done(plan)
    wanted = {key: sorted(nodes) for key, nodes in replicas.items()}
    assert brokers.in_sync() == wanted, brokers.in_sync()


def elect(brokers: Brokers, say: Say) -> None:
    brokers.tool(
        TOOLS + "LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions"
    )
    said = brokers.tool(TOOLS + "TopicCommand", "--describe", "--topic", TOPIC)
    for number, replicas in brokers.replicas().items():
        assert re.search(rf"Partition: {number}\s+Leader: {replicas[0]}\s", said), said
    say("kafka-leader-election: the first replicas lead")


def move_folders(brokers: Brokers, say: Say) -> None:
    placed = [str(one / "broker-1") for one in brokers.folders]
    here = next(one for one in placed if (Path(one) / f"{TOPIC}-0").exists())
    there = placed[1 - placed.index(here)]
    plan = brokers.plan({0: [1, 2]}, p0=[there, "any"])
    said = brokers.tool(
        *(REASSIGN, *plan, "--execute", "--replica-alter-log-dirs-throttle", str(THROTTLE))
    )
    assert "The replica-alter-dir throttle limit was set to" in said, said
    throttles = brokers.throttles()
    assert f"replica.alter.log.dirs.io.max.bytes.per.second={THROTTLE}" in throttles, throttles
    said = brokers.await_done(plan)
    assert f"Reassignment of replica {TOPIC}-0-1 completed successfully" in said, said
    assert brokers.throttles() == [], brokers.throttles()
    assert (Path(there) / f"{TOPIC}-0").exists()
    said = brokers.tool(TOOLS + "LogDirsCommand", "--describe", "--topic-list", TOPIC)
    found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert [
        one["logDir"]
        for broker in found["brokers"]
        if broker["broker"] == 1
        for one in broker["logDirs"]
        if any(replica["partition"] == f"{TOPIC}-0" for replica in one["partitions"])
    ] == [there]
    say("a plan with log_dirs moves a replica to another folder, throttled")


def read_nearby(brokers: Brokers, say: Say) -> None:
    """Partition 0 is led by broker 1, and followed by broker 2, which is in rack b."""
    before = [brokers.sent_by(one) for one in (1, 2)]
    said = brokers.tool(
        *(TOOLS + "consumer.ConsoleConsumer", "--topic", TOPIC, "--partition", "0"),
        *("--offset", "earliest", "--max-messages", str(RECORDS // 2)),
        *("--command-property", "client.rack=b"),
    )
    assert f"Processed a total of {RECORDS // 2} messages" in said, said[-2000:]
    between = [brokers.sent_by(one) for one in (1, 2)]
    assert between[1] - before[1] >= RECORDS // 2 * len(RECORD), (before, between)
    assert between[0] == before[0], (before, between)
    consumer = Consumer(
        {"bootstrap.servers": brokers.bootstrap, "group.id": "near", "client.rack": "b"}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    count, until_s = 0, time.monotonic() + WAIT_S
    while count < RECORDS // 2 and time.monotonic() < until_s:
        count += sum(one.error() is None for one in consumer.consume(1000, timeout=1))
    consumer.close()
    assert count == RECORDS // 2
    after = [brokers.sent_by(one) for one in (1, 2)]
    assert after[1] - between[1] >= RECORDS // 2 * len(RECORD), (between, after)
    say(
        "consumers of rack b read all records from broker 2, in that rack: Kafka's, and"
        f" librdkafka's, which had {(after[0] - between[0]) / 1e6:.1f} MB from the leader before"
    )


if __name__ == "__main__":
    sys.exit(main(run))
