"""Several brokers have one archive: each writes what it leads, one of them what is done once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.broker.cluster.metadata.log_reader import read_history
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.cluster_info import load_cluster_info
from strandline.storage.remote.manifest.topic_info import list_topics
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.open_store import open_store
from tests.conftest import S3Bucket
from tests.support.broker import BrokerProcess, eventually
from tests.support.own_process import Printed, run_here
from tests.support.several_brokers import SeveralBrokers
from tests.system.cluster.test_several_brokers import WAIT_S, fill, leaders, read
from tests.system.tiers.tiered_broker import REGION, REPLICA

pytestmark = [pytest.mark.slow]

TIERED = {"remote.storage.enable": "true", "segment.ms": "500", "segment.bytes": "1048576"}
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "300",
    "strandline.remote.groups.upload.ms": "300",
    "strandline.remote.delete.grace.ms": "100",
    "strandline.remote.check.interval.ms": "1000",
    "offsets.topic.num.partitions": "3",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    # Segments are closed by their age.
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
}


class Archived:
    """A cluster with an archive, in a folder if there is no bucket of S3."""

    def __init__(self, folder: Path, s3: S3Bucket | None = None) -> None:
        self.folder = folder
        self.bucket = folder / "bucket"
        self.bucket.mkdir(parents=True)
        self.url = f"file://{self.bucket}"
        self._access: dict[str, str] = {}
        settings = dict(SETTINGS)
        if s3 is not None:
            self.url = s3.url
            self._access = {"endpoint_url": s3.endpoint_url, "region": REGION}
            settings["strandline.remote.s3.endpoint.url"] = s3.endpoint_url
            settings["strandline.remote.s3.region"] = REGION
        self.settings = {**settings, "strandline.remote.url": self.url}
        words = (f"{name}={value}" for name, value in self.settings.items())
        self.brokers = SeveralBrokers(folder / "brokers", *words)

    @property
    def store(self) -> ObjectStore:
        return open_store(self.url, **self._access)

    def create(
        self,
        topic: str,
        *,
        partitions: int = 6,
        replicas: int = 1,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> AdminClient:
        admin = AdminClient({"bootstrap.servers": self.brokers.bootstrap})
        new = NewTopic(topic, partitions, replicas, config={**TIERED, **config})
        admin.create_topics([new])[topic].result(WAIT_S)
        return admin

    def archived(self, topic: str) -> int:
        """How many offsets of a topic the closed segments in the bucket have."""
        manifests = (
            manifest_store.load(self.store, TopicIdPartition(topic, info.topic_id, number))
            for info in list_topics(self.store)
            if info.topic == topic
            for number in range(info.partition_count)
        )
        return sum(one.manifest.end_offset for one in manifests if one is not None)

    def run(self, *words: str) -> str:
        access = (f"--{name.replace('_', '-')}={text}" for name, text in self._access.items())
        done = run_here(
            [*words, "--remote", self.url, *access],
            environment=dict(os.environ),
            folder=self.folder,
        )
        assert done.code == 0, done.text
        return done.text

    def led_by(self, topic: str, *, asked: int = 2) -> set[int]:
        """The leaders, as a broker says that does not stand still."""
        address = f"127.0.0.1:{self.brokers.port + asked - 1}"
        return set(leaders(AdminClient({"bootstrap.servers": address}), topic))

    def in_sync(self, topic: str, *, asked: int) -> list[int]:
        """The replicas in sync of a topic's only partition, as that broker says."""
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.brokers.port + asked - 1}"})
        return sorted(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions[0].isrs)

    def local_start(self, topic: str, node_id: int) -> int:
        """The first offset on a broker's disk of a topic's only partition."""
        folder = self.brokers.data / f"broker-{node_id}" / f"{topic}-0"
        return min(int(path.stem) for path in folder.glob("*.log"))

    def pid_of(self, node_id: int) -> int:
        """The present process of a broker."""
        return self.brokers.present_pids()[f"broker {node_id}"]

    def cluster_remove(self, *words: str) -> Printed:
        servers = ("--bootstrap-server", f"127.0.0.1:{self.brokers.port}")
        return run_here(
            ["cluster", "remove", *words, "--remote", self.url, *servers],
            environment=dict(os.environ),
            folder=self.folder,
        )

    def mirrored(self) -> set[str]:
        """The topics in the mirror of the metadata."""
        info = load_cluster_info(self.store)
        assert info is not None
        return set(read_history(self.store, cluster_id=info.cluster_id).image.topics)

    def folders_of(self, topic: str) -> list[Path]:
        return [*self.bucket.glob(f"topics/{topic}-????????-*")]


class ReplicaProcess(BrokerProcess):
    """A broker that follows an archive."""

    command = ("serve", "--read-only")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    archived = Archived(tmp_path_factory.mktemp("archived"))
    with archived.brokers:
        yield archived


def test_each_broker_archives_what_it_leads(cluster: Archived) -> None:
    cluster.create("shared")
    values = [b"%d" % number for number in range(900)]
    fill(cluster.brokers, "shared", values)
    eventually(lambda: cluster.archived("shared") == 900)
    assert {path.name for path in (cluster.bucket / "changes").iterdir()} == {
        "1.json",
        "2.json",
        "3.json",
    }
    assert not (cluster.bucket / "changes.json").exists()
    assert "whole" in cluster.run("archive", "verify", "--topic", "shared")


def test_a_killed_broker_goes_on_with_its_archive_under_its_next_epoch(cluster: Archived) -> None:
    cluster.create("killed")
    fill(cluster.brokers, "killed", [b"%d" % number for number in range(300)])
    eventually(lambda: cluster.archived("killed") == 300)
    for name in ("broker 1", "controller", "broker 3"):
        cluster.brokers.kill(name)
        fill(cluster.brokers, "killed", [name.encode()] * 300)
    eventually(lambda: cluster.archived("killed") == 1200)
    assert len(read(cluster.brokers, "killed", 1200)) == 1200
    assert "whole" in cluster.run("archive", "verify", "--topic", "killed")


def test_a_deleted_topic_leaves_nothing_in_the_bucket(cluster: Archived) -> None:
    admin = cluster.create("doomed")
    fill(cluster.brokers, "doomed", [b"%d" % number for number in range(300)])
    eventually(lambda: cluster.archived("doomed") == 300)
    admin.delete_topics(["doomed"])["doomed"].result(WAIT_S)
    eventually(lambda: not cluster.folders_of("doomed"))
    eventually(lambda: "doomed" not in cluster.mirrored())


def test_another_broker_looks_after_the_archive_while_the_caretaker_stands_still(
    cluster: Archived,
) -> None:
    """What it does when it wakes up changes nothing."""
    cluster.create("left")
    fill(cluster.brokers, "left", [b"%d" % number for number in range(300)])
    eventually(lambda: cluster.archived("left") == 300)
    pid = cluster.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: cluster.led_by("left") == {-1, 2, 3})
        others = f"127.0.0.1:{cluster.brokers.port + 1}"
        admin = AdminClient({"bootstrap.servers": others})
        admin.delete_topics(["left"])["left"].result(WAIT_S)
        eventually(lambda: not cluster.folders_of("left"))
        new = NewTopic("meanwhile", 2, 1, config=TIERED)
        admin.create_topics([new])["meanwhile"].result(WAIT_S)
        eventually(lambda: "meanwhile" in cluster.mirrored())
    finally:
        os.kill(pid, signal.SIGCONT)
    cluster.create("afterwards")
    fill(cluster.brokers, "afterwards", [b"%d" % number for number in range(300)])
    eventually(lambda: cluster.archived("afterwards") == 300)
    eventually(lambda: {"meanwhile", "afterwards"} <= cluster.mirrored())
    # It purges once more, because late uploads may have come.
    eventually(lambda: not cluster.folders_of("left"))
    assert "left" not in cluster.mirrored()
    assert "whole" in cluster.run("archive", "verify")


def test_the_next_leader_goes_on_with_the_archive_of_one_that_stood_still(
    cluster: Archived,
) -> None:
    cluster.create("moved", partitions=3, replicas=3)
    fill(cluster.brokers, "moved", [b"%d" % number for number in range(300)])
    eventually(lambda: cluster.archived("moved") == 300)
    pid = cluster.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: cluster.led_by("moved") == {2, 3})
        fill(cluster.brokers, "moved", [b"%d" % number for number in range(300)])
        eventually(lambda: cluster.archived("moved") == 600)
    finally:
        os.kill(pid, signal.SIGCONT)
    fill(cluster.brokers, "moved", [b"%d" % number for number in range(300)])
    eventually(lambda: cluster.archived("moved") == 900)
    assert len(read(cluster.brokers, "moved", 900)) == 900
    assert "whole" in cluster.run("archive", "verify", "--topic", "moved")


def test_a_follower_that_was_away_while_its_leader_freed_goes_on_behind_the_archive_and_leads(
    cluster: Archived,
) -> None:
    brokers, sent = cluster.brokers, [b"%d" % number for number in range(1500)]
    short = {"local.retention.ms": "500", "min.insync.replicas": "2"}
    cluster.create("away", partitions=1, replicas=3, config=short)
    fill(brokers, "away", sent[:300])
    (leader,) = cluster.led_by("away", asked=1)
    away = next(number for number in (1, 2, 3) if number != leader)
    others = [number for number in (1, 2, 3) if number != away]
    pid = cluster.pid_of(away)
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: cluster.in_sync("away", asked=leader) == others)
        fill(brokers, "away", sent[300:900])
        # Followers free what the archive has, too.
        eventually(lambda: all(cluster.local_start("away", one) == 900 for one in others))
    finally:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: cluster.in_sync("away", asked=leader) == [1, 2, 3])
    fill(brokers, "away", sent[900:1200])
    for number in others:
        os.kill(cluster.pid_of(number), signal.SIGKILL)
    eventually(lambda: cluster.led_by("away", asked=away) == {away})
    eventually(lambda: cluster.in_sync("away", asked=away) == [1, 2, 3])
    fill(brokers, "away", sent[1200:])
    eventually(lambda: cluster.archived("away") == 1500)
    assert read(brokers, "away", 1500) == sent
    assert "whole" in cluster.run("archive", "verify", "--topic", "away")


def test_what_a_lost_broker_archived_is_taken_over_by_others(tmp_path: Path) -> None:
    """It stands still, so that it wakes up as a former leader."""
    lost = Archived(tmp_path)
    with lost.brokers as brokers:
        lost.create("kept")
        values = [b"%d" % number for number in range(900)]
        fill(brokers, "kept", values)
        commits = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "readers"})
        commits.commit(offsets=[TopicPartition("kept", 0, 17)], asynchronous=False)
        commits.close()
        eventually(lambda: lost.archived("kept") == 900)
        eventually(lambda: [*lost.bucket.glob("groups/*.log")])
        pid = lost.pid_of(3)
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: -1 in lost.led_by("kept"))
            refused = lost.cluster_remove("2", "--yes")
            assert (refused.code, "broker 2 serves" in refused.text) == (1, True)
            asked = lost.cluster_remove("3")
            assert asked.code == 2
            assert "kept-" in asked.text
            assert "what was written from" in asked.text
            assert -1 in lost.led_by("kept"), "nothing was done yet"
            done = lost.cluster_remove("3", "--yes")
            assert done.code == 0, done.text
            assert lost.led_by("kept") == {1, 2}
            assert sorted(read(brokers, "kept", 900)) == sorted(values)
            fill(brokers, "kept", [b"later"] * 600)
        finally:
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: lost.archived("kept") == 1500)
        found = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "readers"})
        (committed,) = found.committed([TopicPartition("kept", 0)], timeout=WAIT_S)
        found.close()
        assert committed.offset == 17
        assert len(read(brokers, "kept", 1500)) == 1500
        assert "whole" in lost.run("archive", "verify")


@pytest.mark.s3
def test_what_was_archived_is_restored_as_one_broker(tmp_path: Path, s3_bucket: S3Bucket) -> None:
    """From a bucket of S3, which a read-only replica has followed meanwhile."""
    archived = Archived(tmp_path, s3_bucket)
    with archived.brokers as brokers:
        archived.create("kept")
        values = [b"%d" % number for number in range(900)]
        fill(brokers, "kept", values)
        commits = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "readers"})
        commits.commit(offsets=[TopicPartition("kept", 0, 17)], asynchronous=False)
        commits.close()
        eventually(lambda: archived.archived("kept") == 900)
        replica = ReplicaProcess(
            tmp_path / "replica", settings={**archived.settings, **REPLICA, "node.id": "9"}
        )
        with replica:
            assert sorted(read(replica, "kept", 900)) == sorted(values)
            fill(brokers, "kept", values)
            assert sorted(read(replica, "kept", 1800)) == sorted(values * 2)
        assert brokers.stop() == 0
    settings = {**archived.settings, "node.id": "7"}
    lone = tmp_path / "lone"
    restored = run_here(
        [
            "restore",
            *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
            *("--set", f"log.dirs={lone / 'data'}"),
        ],
        environment=dict(os.environ),
        folder=tmp_path,
    )
    assert restored.code == 0, restored.text
    with BrokerProcess(lone, settings=settings) as broker:
        assert sorted(read(broker, "kept", 1800)) == sorted(values * 2)
        fill(broker, "kept", values)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
        (found,) = consumer.committed([TopicPartition("kept", 0)], timeout=WAIT_S)
        consumer.close()
        assert found.offset == 17
        eventually(lambda: archived.archived("kept") == 2700)
    assert "whole" in archived.run("archive", "verify")


def test_the_archive_of_a_lone_broker_goes_on_as_that_of_several(tmp_path: Path) -> None:
    archived = Archived(tmp_path)
    values = [b"%d" % number for number in range(300)]
    with BrokerProcess(archived.brokers.folder, settings=archived.settings) as lone:
        admin = AdminClient({"bootstrap.servers": lone.bootstrap})
        admin.create_topics([NewTopic("kept", 3, 1, config=TIERED)])["kept"].result(WAIT_S)
        fill(lone, "kept", values)
        eventually(lambda: archived.archived("kept") == 300)
        assert lone.stop() == 0
    with archived.brokers as brokers:
        fill(brokers, "kept", values)
        archived.create("spread")
        fill(brokers, "spread", values)
        eventually(lambda: (archived.archived("kept"), archived.archived("spread")) == (600, 300))
        eventually(lambda: archived.mirrored() >= {"kept", "spread"})
        assert sorted(read(brokers, "kept", 600)) == sorted(2 * values)
        assert brokers.stop() == 0
    assert "whole" in archived.run("archive", "verify")
