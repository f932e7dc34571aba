"""`make mixed`: strandline brokers archive what they lead, under Apache Kafka's controllers.

The controllers keep the feature that marks those brokers, so that one of them looks after the
mirror of the metadata. A broker of Apache Kafka, without a remote tier, lives beside them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.broker.cluster.archive.caretaker import caretaker_of
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.log_reader import read_history
from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.cluster_info import load_cluster_info
from strandline.storage.remote.manifest.topic_info import list_topics
from strandline.storage.remote.open_store import open_store
from tests.compat.mixed.cluster import EACH, RECORDS, WAIT_S, name_of, produce, read
from tests.compat.mixed.nodes import (
    CLUSTER_ID,
    KAFKA_ID,
    SECOND_ID,
    STRANDLINE_ID,
    KafkaNode,
    kafka_broker,
    kafka_controller,
    strandline_broker,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.own_process import run_here
from tests.support.wire import WireClient

REMOTE = {"remote.log.storage.system.enable": "true"}
TIERED = {"remote.storage.enable": "true", "segment.ms": "500", "segment.bytes": "1048576"}
QUICK = {
    "remote.log.manager.task.interval.ms": "300",
    "strandline.remote.groups.upload.ms": "300",
    "strandline.remote.delete.grace.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
}
ON_BOTH = [[STRANDLINE_ID, SECOND_ID], [SECOND_ID, STRANDLINE_ID]]


@dataclass(frozen=True, slots=True)
class Archived:
    """The nodes, and the archive that ours have in common."""

    apache: KafkaNode
    ours: BrokerProcess
    second: BrokerProcess
    url: str
    settings: Mapping[str, str]

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.second.bootstrap})

    def create(self, name: str, assignment: list[list[int]], config: Mapping[str, str]) -> None:
        topic = NewTopic(name, len(assignment), replica_assignment=assignment, config={**config})
        admin = self.admin()
        admin.create_topics([topic])[name].result(WAIT_S)
        firsts = [replicas[0] for replicas in assignment]
        eventually(lambda: self.leaders(name) == firsts)

    def leaders(self, topic: str) -> list[int]:
        found = self.admin().list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        return [found[number].leader for number in sorted(found)]

    def archived(self, topic: str) -> int:
        """How many offsets the closed segments in the archive have."""
        store = open_store(self.url)
        manifests = (
            manifest_store.load(store, TopicIdPartition(topic, info.topic_id, number))
            for info in list_topics(store)
            if info.topic == topic
            for number in range(info.partition_count)
        )
        return sum(one.manifest.end_offset for one in manifests if one is not None)

    def mirror(self) -> MetadataImage:
        info = load_cluster_info(open_store(self.url))
        assert info is not None
        assert info.cluster_id == CLUSTER_ID
        return read_history(open_store(self.url), cluster_id=CLUSTER_ID).image

    def verify(self, folder: Path) -> str:
        done = run_here(
            ["archive", "verify", "--remote", self.url],
            environment=dict(os.environ),
            folder=folder,
        )
        assert done.code == 0, done.text
        return done.text


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    folder = tmp_path_factory.mktemp("archived")
    bucket = folder / "bucket"
    bucket.mkdir()
    settings = {**REMOTE, **QUICK, "strandline.remote.url": f"file://{bucket}"}
    # Longer than a broker on a busy machine is silent.
    sessions = {"broker.session.timeout.ms": "15000"}
    controller = kafka_controller(folder / "controller", {**REMOTE, **sessions})
    apache = kafka_broker(folder / "apache", controller)
    ours, second = (
        strandline_broker(folder / f"ours-{node}", controller, node_id=node, settings=settings)
        for node in (STRANDLINE_ID, SECOND_ID)
    )
    try:
        controller.start()
        apache.start()
        ours.start()
        second.start()
        yield Archived(apache, ours, second, settings["strandline.remote.url"], settings)
        for one in (ours, second):
            assert "Traceback" not in one.log_text(), one.log_text()[-4000:]
    finally:
        ours.kill()
        second.kill()
        for node in (apache, controller):
            node.end(signal.SIGKILL)


def numbered(first: int, count: int = RECORDS) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_controllers_without_the_remote_tier_refuse_tiered_topics(tmp_path: Path) -> None:
    controller = kafka_controller(tmp_path / "controller")
    controller.start()
    settings = {**REMOTE, "strandline.remote.url": f"file://{tmp_path}/bucket"}
    (tmp_path / "bucket").mkdir()
    try:
        with strandline_broker(tmp_path / "ours", controller, settings=settings) as ours:
            admin = AdminClient({"bootstrap.servers": ours.bootstrap})
            with pytest.raises(Exception, match="Tiered Storage functionality is disabled"):
                admin.create_topics([NewTopic("t", 1, config=TIERED)])["t"].result(WAIT_S)
            assert ours.stop() == 0
    finally:
        controller.end()


def test_what_ours_lead_is_archived_and_one_of_them_mirrors_the_metadata(
    cluster: Archived, tmp_path: Path
) -> None:
    name, elsewhere = name_of("tiered"), name_of("elsewhere")
    cluster.create(name, ON_BOTH, TIERED)
    cluster.create(elsewhere, [[KAFKA_ID]], {})
    for partition in (0, 1):
        produce(cluster.apache.address, name, partition, numbered(0), acks="all")
    eventually(lambda: cluster.archived(name) == 2 * RECORDS)
    eventually(lambda: {name, elsewhere} <= set(cluster.mirror().topics))
    image = cluster.mirror()
    assert caretaker_of(image) == SECOND_ID
    assert set(image.brokers) == {KAFKA_ID, SECOND_ID, STRANDLINE_ID}
    assert "whole" in cluster.verify(tmp_path)


def test_another_of_ours_takes_over_when_the_caretaker_is_killed(
    cluster: Archived, tmp_path: Path
) -> None:
    name, doomed = name_of("taken"), name_of("doomed")
    cluster.create(name, ON_BOTH, TIERED)
    cluster.create(doomed, [[STRANDLINE_ID]], TIERED)
    for partition in (0, 1):
        produce(cluster.ours.bootstrap, name, partition, numbered(0), acks="all")
    produce(cluster.ours.bootstrap, doomed, 0, numbered(0))
    eventually(lambda: cluster.archived(name) == 2 * RECORDS)
    eventually(lambda: cluster.archived(doomed) == RECORDS)
    cluster.second.kill()
    admin = AdminClient({"bootstrap.servers": cluster.ours.bootstrap})
    try:
        for partition in (0, 1):
            produce(cluster.ours.bootstrap, name, partition, numbered(RECORDS), acks="all")
        admin.delete_topics([doomed])[doomed].result(WAIT_S)
        eventually(lambda: cluster.archived(name) == 4 * RECORDS)
        eventually(lambda: caretaker_of(cluster.mirror()) == STRANDLINE_ID)
        eventually(lambda: doomed not in cluster.mirror().topics)
        bucket = Path(cluster.url.removeprefix("file://"))
        eventually(lambda: not [*bucket.glob(f"topics/{doomed}-*")])
    finally:
        cluster.second.start()
    eventually(lambda: caretaker_of(cluster.mirror()) == SECOND_ID)
    for partition in (0, 1):
        found = read(cluster.second.bootstrap, name, partition, 2 * RECORDS)
        assert found == numbered(0, 2 * RECORDS)
    assert "whole" in cluster.verify(tmp_path)


def test_apaches_broker_starts_again_beside_tiered_topics_of_ours(cluster: Archived) -> None:
    """It has no remote tier itself, and no replica of them: it says so, and serves."""
    name, both = name_of("beside"), name_of("both")
    cluster.create(name, [[STRANDLINE_ID]], TIERED)
    cluster.create(both, EACH, {})
    cluster.apache.end()
    cluster.apache.start()
    eventually(lambda: cluster.leaders(both) == [one for (one,) in EACH])
    produce(cluster.apache.address, name, 0, numbered(0))
    produce(cluster.ours.bootstrap, both, 0, numbered(0))
    assert read(cluster.apache.address, name, 0, RECORDS) == numbered(0)
    assert read(cluster.ours.bootstrap, both, 0, RECORDS) == numbered(0)
    said = cluster.apache.log_path.read_text().splitlines()
    faults = [line for line in said if "metadata publishing fault" in line]
    assert any(f"Error updating topic {name}" in one for one in faults)
    assert all("remote.storage.enable -> true" in one for one in faults), faults


def test_an_archived_partition_goes_to_apaches_broker_with_all_its_records(
    cluster: Archived,
) -> None:
    """It has no archive: the leader reads for it what its disk has freed."""
    name = name_of("leaving")
    cluster.create(name, [[STRANDLINE_ID]], {**TIERED, "local.retention.ms": "100"})
    for first in (0, RECORDS):
        produce(cluster.ours.bootstrap, name, 0, numbered(first), **{"enable.idempotence": True})
        eventually(lambda first=first: cluster.archived(name) == first + RECORDS)
    folder = cluster.ours.data / f"{name}-0"
    eventually(lambda: min(int(path.stem) for path in folder.glob("*.log")) == 2 * RECORDS)
    move(cluster, name, [KAFKA_ID])
    assert cluster.leaders(name) == [KAFKA_ID]
    assert read(cluster.apache.address, name, 0, 2 * RECORDS) == numbered(0, 2 * RECORDS)
    # And back: the archive goes on where it ended.
    produce(cluster.apache.address, name, 0, numbered(2 * RECORDS))
    move(cluster, name, [STRANDLINE_ID])
    eventually(lambda: cluster.archived(name) == 3 * RECORDS)
    assert read(cluster.ours.bootstrap, name, 0, 3 * RECORDS) == numbered(0, 3 * RECORDS)


def move(cluster: Archived, topic: str, replicas: list[int]) -> None:
    """Returns when the only partition has these replicas alone."""
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    wanted = ReassignableTopic(name=topic, partitions=[partition])
    with WireClient(cluster.second.port) as client:
        answer = client.ask(
            AlterPartitionReassignmentsRequest(topics=[wanted]),
            AlterPartitionReassignmentsResponse,
            0,
        )
    assert answer.responses[0].partitions[0].error_code == 0

    def is_there() -> bool:
        found = cluster.admin().list_topics(topic, timeout=WAIT_S).topics[topic].partitions[0]
        return found.replicas == found.isrs == replicas

    eventually(is_there)


def test_a_restore_makes_one_broker_of_the_archive(cluster: Archived, tmp_path: Path) -> None:
    """It comes last, because it ends ours. What lay on Apache's broker is empty in the archive."""
    name, elsewhere = name_of("restored"), name_of("lost")
    cluster.create(name, ON_BOTH, TIERED)
    cluster.create(elsewhere, [[KAFKA_ID]], {})
    for partition in (0, 1):
        produce(cluster.ours.bootstrap, name, partition, numbered(0), acks="all")
    produce(cluster.ours.bootstrap, elsewhere, 0, numbered(0))
    eventually(lambda: cluster.archived(name) == 2 * RECORDS)
    eventually(lambda: {name, elsewhere} <= set(cluster.mirror().topics))
    assert cluster.ours.stop() == 0
    assert cluster.second.stop() == 0
    settings = {**cluster.settings, "node.id": "7"}
    words = [word for key, text in settings.items() for word in ("--set", f"{key}={text}")]
    lone = tmp_path / "lone"
    done = run_here(
        ["restore", *words, "--set", f"log.dirs={lone / 'data'}"],
        environment=dict(os.environ),
        folder=tmp_path,
    )
    assert done.code == 0, done.text
    with BrokerProcess(lone, settings=settings) as broker:
        for partition in (0, 1):
            assert read(broker.bootstrap, name, partition, RECORDS) == numbered(0)
        listing = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=WAIT_S)
        assert list(listing.brokers) == [7]
        produce(broker.bootstrap, elsewhere, 0, [b"new"])
        assert read(broker.bootstrap, elsewhere, 0, 1) == [b"new"]
        produce(broker.bootstrap, name, 0, numbered(RECORDS))
        eventually(lambda: cluster.archived(name) == 3 * RECORDS)
        assert broker.stop() == 0
    assert "whole" in cluster.verify(tmp_path)
