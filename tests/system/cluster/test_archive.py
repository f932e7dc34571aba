"""Several brokers have one archive: each writes what it leads, one of them what is done once."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from strandline.broker.cluster.metadata.log_reader import read_history
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from strandline.broker.protocol.messages.describe_producers import (
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from strandline.broker.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.keys import GROUPS_PREFIX, state_key
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.cluster_info import load_cluster_info
from strandline.storage.remote.manifest.topic_info import list_topics
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.open_store import open_store
from tests.conftest import S3Bucket
from tests.support.broker import BrokerProcess, eventually
from tests.support.own_process import Printed, run_here
from tests.support.several_brokers import SeveralBrokers
from tests.support.wire import WireClient
from tests.system.calls import fetch, records_in
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

    def __init__(
        self,
        folder: Path,
        s3: S3Bucket | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        settings: Mapping[str, str] = MappingProxyType({}),
        bucket: str = "bucket",
    ) -> None:
        self.folder = folder
        self.bucket = folder / bucket
        self.bucket.mkdir(parents=True, exist_ok=True)
        self.url = f"file://{self.bucket}"
        self._access: dict[str, str] = {}
        self.settings = {**SETTINGS, **settings}
        if s3 is not None:
            self.url = s3.url
            self._access = {"endpoint_url": s3.endpoint_url, "region": REGION}
            self.settings["strandline.remote.s3.endpoint.url"] = s3.endpoint_url
            self.settings["strandline.remote.s3.region"] = REGION
        self.settings["strandline.remote.url"] = self.url
        words = (f"{name}={value}" for name, value in self.settings.items())
        self.brokers = SeveralBrokers(folder / "brokers", *words, environment=environment)

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

    def uploaded(self, topic: str, number: int) -> int:
        """The end of what the bucket has of a partition, with pieces of open segments."""
        info = next((one for one in list_topics(self.store) if one.topic == topic), None)
        if info is None:
            return 0
        key = TopicIdPartition(topic, info.topic_id, number)
        stored = manifest_store.load(self.store, key)
        return 0 if stored is None else stored.manifest.tail_end_offset

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

    def in_sync(self, topic: str, *, asked: int, partition: int = 0) -> list[int]:
        """The replicas in sync, as that broker says."""
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.brokers.port + asked - 1}"})
        found = admin.list_topics(topic, timeout=WAIT_S).topics[topic]
        return sorted(found.partitions[partition].isrs)

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


@pytest.mark.heavy
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


def read_at(port: int, topic: str, count: int) -> list[bytes | None]:
    """Reads so many records from the broker at that port, whoever leads."""
    values: list[bytes | None] = []
    until_s = time.monotonic() + WAIT_S
    with WireClient(port) as client:
        while len(values) < count and time.monotonic() < until_s:
            answer = fetch(client, topic, len(values))
            assert answer.error_code == 0, answer
            values += [one.value for one in records_in(answer) if one.offset >= len(values)]
    return values


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
    # Each replica serves consumers, from the archive too (KIP-392).
    for number in range(3):
        assert read_at(brokers.port + number, "away", len(sent)) == sent
    assert "whole" in cluster.run("archive", "verify", "--topic", "away")


def test_a_follower_that_was_started_again_serves_what_is_archived(cluster: Archived) -> None:
    """All is freed everywhere, so that it learns of the archive by no other way."""
    brokers, sent = cluster.brokers, [b"%d" % number for number in range(300)]
    cluster.create("again", partitions=1, replicas=3, config={"local.retention.ms": "500"})
    fill(brokers, "again", sent)
    for one in (1, 2, 3):
        eventually(lambda one=one: cluster.local_start("again", one) == len(sent))
    (leader,) = cluster.led_by("again")
    follower = next(one for one in (1, 2, 3) if one != leader)
    os.kill(cluster.pid_of(follower), signal.SIGKILL)
    eventually(lambda: cluster.in_sync("again", asked=leader) != [1, 2, 3])
    eventually(lambda: cluster.in_sync("again", asked=leader) == [1, 2, 3])
    assert read_at(brokers.port + follower - 1, "again", len(sent)) == sent


def commit(brokers: SeveralBrokers, topic: str, offset: int) -> None:
    """As the first group of the cluster, whose coordinator may not be there yet."""
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "readers"})

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.COORDINATOR_NOT_AVAILABLE:
                raise
            return False
        return True

    eventually(is_committed)
    consumer.close()


def reassign(cluster: Archived, topic: str, replicas: list[int], *, partition: int = 0) -> None:
    """Moves a partition; returns when these are in sync, and the first one leads."""
    moved = ReassignablePartition(partition_index=partition, replicas=replicas)
    wanted = ReassignableTopic(name=topic, partitions=[moved])
    with WireClient(cluster.brokers.port) as client:
        answer = client.ask(
            AlterPartitionReassignmentsRequest(topics=[wanted]),
            AlterPartitionReassignmentsResponse,
            0,
        )
    assert answer.error_code == 0
    assert answer.responses[0].partitions[0].error_code == 0
    asked = replicas[0]

    def is_done() -> bool:
        return cluster.in_sync(topic, asked=asked, partition=partition) == sorted(replicas)

    eventually(is_done)
    address = f"127.0.0.1:{cluster.brokers.port + asked - 1}"
    admin = AdminClient({"bootstrap.servers": address})
    eventually(lambda: leaders(admin, topic)[partition] == asked)


def told_by(
    cluster: Archived, topic: str, node_id: int, epoch_count: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """What a leader says of the producers of a partition, and of the ends of its epochs."""
    producers = DescribeProducersRequest(
        topics=[DescribeProducersTopic(name=topic, partition_indexes=[0])]
    )
    with WireClient(cluster.brokers.port + node_id - 1) as client:

        def describe() -> DescribeProducersPartition | None:
            found = client.ask(producers, DescribeProducersResponse, 0).topics[0].partitions[0]
            # One that has begun to lead may not know yet what the archive has.
            return None if found.error_code == ErrorCode.KAFKA_STORAGE_ERROR else found

        described = eventually(describe)
        assert isinstance(described, DescribeProducersPartition)
        assert described.error_code == 0
        active = sorted(
            (one.producer_id, one.producer_epoch, one.last_sequence)
            for one in described.active_producers
        )
        ends = []
        for epoch in range(epoch_count):
            asked = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
            request = OffsetForLeaderEpochRequest(
                topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
            )
            answer = client.ask(request, OffsetForLeaderEpochResponse, 3)
            (found,) = answer.topics[0].partitions
            ends.append((found.error_code, found.leader_epoch, found.end_offset))
    return active, ends


def send(producer: Producer, topic: str, values: list[bytes]) -> None:
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_S) == 0


def test_replicas_that_join_begin_behind_the_archive_with_its_epochs_and_producers(
    cluster: Archived,
) -> None:
    cluster.create("joined", partitions=1, config={"local.retention.ms": "500"})
    (home,) = cluster.led_by("joined")
    sent = [b"%d" % number for number in range(900)]
    producers = [
        Producer({"bootstrap.servers": cluster.brokers.bootstrap, "enable.idempotence": True})
        for _ in range(2)
    ]
    send(producers[0], "joined", sent[:300])
    # It is started again, and leads under its next epoch.
    os.kill(cluster.pid_of(home), signal.SIGKILL)
    send(producers[1], "joined", sent[300:600])
    eventually(lambda: cluster.archived("joined") == 600)
    eventually(lambda: cluster.local_start("joined", home) == 600)
    before = active, ends = told_by(cluster, "joined", home, 3)
    assert len(active) == len(producers)
    assert 300 in (end for _, _, end in ends)
    others = [number for number in (1, 2, 3) if number != home]
    reassign(cluster, "joined", others)
    assert [cluster.local_start("joined", one) for one in others] == [600, 600]
    assert told_by(cluster, "joined", others[0], 3) == before
    send(producers[1], "joined", sent[600:])
    assert read(cluster.brokers, "joined", 900) == sent
    eventually(lambda: cluster.archived("joined") == 900)
    assert "whole" in cluster.run("archive", "verify", "--topic", "joined")


def test_a_replica_that_joins_a_coordinators_partition_has_what_its_leader_has(
    cluster: Archived,
) -> None:
    """The bucket has the state of groups too, at other offsets: it is for who is the only one."""
    admin = cluster.create("counted", partitions=1)
    consumer = Consumer({"bootstrap.servers": cluster.brokers.bootstrap, "group.id": "counts"})
    for offset in range(20):
        place = [TopicPartition("counted", 0, offset)]
        consumer.commit(offsets=place, asynchronous=False)
    folder = cluster.brokers.data / "broker-1"
    sizes = {log: log.stat().st_size for log in folder.glob(f"{OFFSETS_TOPIC}-*/*.log")}
    log = max(sizes, key=sizes.__getitem__).relative_to(folder)
    number = int(log.parent.name.rpartition("-")[2])
    eventually(lambda: cluster.bucket.joinpath(state_key(GROUPS_PREFIX, number)).exists())
    leader = leaders(admin, OFFSETS_TOPIC)[number]
    stays, joins = (one for one in (1, 2, 3) if one != leader)
    for replicas in ([leader, stays], [leader, stays, joins]):
        reassign(cluster, OFFSETS_TOPIC, replicas, partition=number)
    consumer.commit(offsets=place, asynchronous=False)
    consumer.close()

    def contents() -> set[bytes]:
        return {(cluster.brokers.data / f"broker-{one}" / log).read_bytes() for one in (1, 2, 3)}

    eventually(lambda: len(contents()) == 1)


def test_what_a_lost_broker_archived_is_taken_over_by_others(tmp_path: Path) -> None:
    """It stands still, so that it wakes up as a former leader."""
    lost = Archived(tmp_path)
    with lost.brokers as brokers:
        lost.create("kept")
        values = [b"%d" % number for number in range(900)]
        fill(brokers, "kept", values)
        commit(brokers, "kept", 17)
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


def test_a_transaction_whose_end_is_lost_with_a_broker_is_aborted(tmp_path: Path) -> None:
    lost = Archived(tmp_path)
    with lost.brokers as brokers:
        admin = lost.create("ended", config={"strandline.remote.active.segment.upload.ms": "300"})
        number = leaders(admin, "ended").index(3)
        writes = Producer({"bootstrap.servers": brokers.bootstrap, "transactional.id": "ends"})
        writes.init_transactions(WAIT_S)
        writes.begin_transaction()
        writes.produce("ended", b"begun", partition=number)
        assert writes.flush(WAIT_S) == 0
        eventually(lambda: lost.uploaded("ended", number) == 1)
        # Its marker stays on the disk.
        paused = ConfigEntry(
            "remote.log.copy.disable", "true", incremental_operation=AlterConfigOpType.SET
        )
        topic = ConfigResource(ResourceType.TOPIC, "ended", incremental_configs=[paused])
        admin.incremental_alter_configs([topic])[topic].result(WAIT_S)
        writes.commit_transaction(WAIT_S)
        eventually(lambda: transaction_states(brokers) == {"CompleteCommit"})
        pid = lost.pid_of(3)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert lost.uploaded("ended", number) == 1
            eventually(lambda: -1 in lost.led_by("ended"))
            done = lost.cluster_remove("3", "--yes")
            assert done.code == 0, done.text
            assert f"ended-{number}: the transaction of producer" in done.text
            assert "from offset 0 on is aborted" in done.text
        finally:
            os.kill(pid, signal.SIGKILL)
        later = Producer({"bootstrap.servers": brokers.bootstrap})
        later.produce("ended", b"later", partition=number)
        assert later.flush(WAIT_S) == 0
        assert first_committed(brokers, "ended", number) == b"later"


EVERY_TRANSACTION = ListTransactionsRequest(state_filters=[], producer_id_filters=[])


def transaction_states(brokers: SeveralBrokers) -> set[str]:
    found = set()
    for number in range(3):
        with WireClient(brokers.port + number) as client:
            answer = client.ask(EVERY_TRANSACTION, ListTransactionsResponse, 1)
            found |= {one.transaction_state for one in answer.transaction_states}
    return found


def first_committed(brokers: SeveralBrokers, topic: str, number: int) -> bytes | None:
    consumer = Consumer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "group.id": "committed",
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0)])
    message = consumer.poll(WAIT_S)
    consumer.close()
    assert message is not None
    return message.value()


@pytest.mark.s3
@pytest.mark.heavy
def test_what_was_archived_is_restored_as_one_broker(tmp_path: Path, s3_bucket: S3Bucket) -> None:
    """From a bucket of S3, which a read-only replica has followed meanwhile."""
    archived = Archived(tmp_path, s3_bucket)
    with archived.brokers as brokers:
        archived.create("kept")
        values = [b"%d" % number for number in range(900)]
        fill(brokers, "kept", values)
        commit(brokers, "kept", 17)
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


@pytest.mark.heavy
def test_a_cluster_of_which_no_disk_is_left_is_a_cluster_again_from_its_bucket(
    tmp_path: Path,
) -> None:
    lost = Archived(tmp_path)
    values = [b"%d" % number for number in range(900)]
    with lost.brokers as brokers:
        lost.create("kept", replicas=3)
        fill(brokers, "kept", values)
        commit(brokers, "kept", 17)
        eventually(lambda: lost.archived("kept") == 900)
        eventually(lambda: [*lost.bucket.glob("groups/*.log")])
        brokers.stop(signal.SIGKILL)
        brokers.await_ends()
    shutil.rmtree(brokers.data)
    settings = {**lost.settings, "log.dirs": str(brokers.data)}
    words = (word for name, value in settings.items() for word in ("--set", f"{name}={value}"))
    restored = run_here(["restore", *words], environment=dict(os.environ), folder=tmp_path)
    assert restored.code == 0, restored.text
    with brokers:
        servers = ("--bootstrap-server", f"127.0.0.1:{brokers.port}")
        balanced = run_here(
            ["cluster", "balance", "--yes", *servers],
            environment=dict(os.environ),
            folder=tmp_path,
        )
        assert balanced.code == 0, balanced.text
        assert len(lost.led_by("kept")) == 3
        assert sorted(read(brokers, "kept", 900)) == sorted(values)
        consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "readers"})
        (found,) = consumer.committed([TopicPartition("kept", 0)], timeout=WAIT_S)
        consumer.close()
        assert found.offset == 17
        fill(brokers, "kept", values)
        eventually(lambda: lost.archived("kept") == 1800)
        assert brokers.stop() == 0
    assert "whole" in lost.run("archive", "verify")


@pytest.mark.heavy
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
