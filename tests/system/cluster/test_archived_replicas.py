"""An archive in S3 of partitions with three replicas, whose leaders die and move meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from strandline.broker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from strandline.storage.crash_points import COPY_BEFORE_COMMIT, ENVIRONMENT_VARIABLE
from tests.conftest import S3Bucket, make_bucket
from tests.support.broker import eventually
from tests.support.ministack import ServerProcess
from tests.support.wire import WireClient
from tests.system.cluster.test_archive import Archived
from tests.system.cluster.test_several_brokers import WAIT_S, fill, read

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.crash]

FREED = {"local.retention.ms": "500"}
EVERYBODY = [1, 2, 3]


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, ministack: ServerProcess
) -> Iterator[Archived]:
    bucket = make_bucket(ministack.endpoint_url)
    archived = Archived(tmp_path_factory.mktemp("replicas"), bucket)
    with archived.brokers as brokers:
        yield archived
        assert "Traceback" not in brokers.log_text(), brokers.log_text()[-4000:]


def reassign(cluster: Archived, topic: str, replicas: list[int]) -> None:
    """Moves its only partition; returns when these are in sync, and the first one leads."""
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    wanted = ReassignableTopic(name=topic, partitions=[partition])
    with WireClient(cluster.brokers.port) as client:
        answer = client.ask(
            AlterPartitionReassignmentsRequest(topics=[wanted]),
            AlterPartitionReassignmentsResponse,
            0,
        )
    assert answer.error_code == 0
    assert answer.responses[0].partitions[0].error_code == 0
    eventually(lambda: cluster.in_sync(topic, asked=replicas[0]) == sorted(replicas))
    eventually(lambda: cluster.led_by(topic, asked=replicas[0]) == {replicas[0]})


def told_by(cluster: Archived, topic: str, node_id: int, epoch_count: int) -> tuple[object, object]:
    """What a leader says of the producers of a partition, and of the ends of its epochs."""
    producers = DescribeProducersRequest(
        topics=[DescribeProducersTopic(name=topic, partition_indexes=[0])]
    )
    with WireClient(cluster.brokers.port + node_id - 1) as client:
        described = client.ask(producers, DescribeProducersResponse, 0).topics[0].partitions[0]
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
    cluster.create("joined", partitions=1, config=FREED)
    (home,) = cluster.led_by("joined")
    sent = [b"%d" % number for number in range(900)]
    producers = [
        Producer({"bootstrap.servers": cluster.brokers.bootstrap, "enable.idempotence": True})
        for _ in range(2)
    ]
    for number, producer in enumerate(producers):
        send(producer, "joined", sent[300 * number : 300 * (number + 1)])
        # The next leader epoch.
        os.kill(cluster.pid_of(home), signal.SIGKILL)
        eventually(lambda: cluster.led_by("joined", asked=home % 3 + 1) == {-1})
        eventually(lambda: cluster.led_by("joined", asked=home % 3 + 1) == {home})
    eventually(lambda: cluster.archived("joined") == 600)
    eventually(lambda: cluster.local_start("joined", home) == 600)
    before = told_by(cluster, "joined", home, 3)
    others = [number for number in EVERYBODY if number != home]
    reassign(cluster, "joined", others)
    assert [cluster.local_start("joined", one) for one in others] == [600, 600]
    assert told_by(cluster, "joined", others[0], 3) == before
    assert len(before[0]) == 2
    send(producers[1], "joined", sent[600:])
    assert read(cluster.brokers, "joined", 900) == sent
    eventually(lambda: cluster.archived("joined") == 900)
    assert "whole" in cluster.run("archive", "verify", "--topic", "joined")


def test_transactions_are_whole_in_both_tiers_while_leaders_die(cluster: Archived) -> None:
    """Each leader dies once, in the middle of copies."""
    cluster.create("whole", partitions=1, replicas=3, config={**FREED, "min.insync.replicas": "2"})
    producer = Producer(
        {
            "bootstrap.servers": cluster.brokers.bootstrap,
            "transactional.id": "whole",
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(WAIT_S)
    committed: list[bytes] = []
    for number in range(36):
        values = [b"%d-%d" % (number, one) for one in range(20)]
        producer.begin_transaction()
        for value in values:
            producer.produce("whole", value, partition=0)
        if number % 12 == 6:
            eventually(lambda: cluster.in_sync("whole", asked=1) == EVERYBODY)
            (leader,) = cluster.led_by("whole", asked=1)
            os.kill(cluster.pid_of(leader), signal.SIGKILL)
        try:
            if number % 3 == 2:
                # What has not left would not be sent at all.
                producer.flush(WAIT_S)
                producer.abort_transaction(WAIT_S)
                continue
            producer.commit_transaction(WAIT_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(WAIT_S)
            continue
        committed += values
    eventually(lambda: cluster.in_sync("whole", asked=1) == EVERYBODY)
    # Followers free too what the leader archived.
    for one in EVERYBODY:
        eventually(lambda one=one: cluster.local_start("whole", one) > len(committed) * 5 // 4)
    assert read(cluster.brokers, "whole", len(committed)) == committed
    assert "whole" in cluster.run("archive", "verify", "--topic", "whole")


@pytest.mark.heavy
def test_leaders_that_die_between_copy_and_commit_leave_an_archive_that_goes_on(
    tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    """Each one that copies dies before it commits, until all are started again without that."""
    sent = [b"%d" % number for number in range(600)]
    dying = Archived(tmp_path, s3_bucket, {ENVIRONMENT_VARIABLE: COPY_BEFORE_COMMIT})
    with dying.brokers as brokers:
        dying.create("kept", partitions=1, replicas=3, config={"min.insync.replicas": "2"})
        fill(brokers, "kept", sent[:300])
        eventually(lambda: brokers.log_text().count("process ended") >= len(EVERYBODY))
        fill(brokers, "kept", sent[300:])
        assert dying.archived("kept") == 0
        brokers.stop()
    archived = Archived(tmp_path, s3_bucket)
    with archived.brokers as brokers:
        eventually(lambda: archived.archived("kept") == 600)
        assert read(brokers, "kept", 600) == sent
        # What was copied and not committed is nobody's.
        assert "whole" in archived.run("archive", "verify", "--topic", "kept")
