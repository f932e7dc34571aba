"""Log folders that are full, break, or are not there: the others work on, and coming back."""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from strandline.broker.cli import main
from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from strandline.broker.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from strandline.broker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.metrics import METRICS_ON, numbers
from tests.support.wire import WireClient
from tests.system.calls import (
    EARLIEST,
    LATEST,
    batch,
    create_topic,
    delete_records,
    end_offset,
    fetch,
    offset_at,
    produce,
    read_all,
)

pytestmark = pytest.mark.slow

UNKNOWN_TOPIC_OR_PARTITION = 3
KAFKA_STORAGE_ERROR = 56
SEGMENT_BYTES = 1024 * 1024
PARTITIONS = 4


@pytest.fixture
def two_folders(tmp_path: Path) -> Iterator[BrokerProcess]:
    folders = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    settings = {
        "log.dirs": folders,
        "log.retention.ms": "-1",
        "log.segment.bytes": str(SEGMENT_BYTES),
        "offsets.topic.num.partitions": "1",
        **METRICS_ON,
    }
    with BrokerProcess(tmp_path, settings=settings) as broker:
        yield broker
        assert "Traceback" not in broker.log_text(), broker.log_text()[-4000:]


def partitions_in(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("topic-*"))


def folder_errors(client: WireClient) -> dict[str, int]:
    described = client.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
    return {Path(result.log_dir).name: result.error_code for result in described.results}


def served_and_offline(broker: BrokerProcess) -> tuple[float, float]:
    """Counts of partitions, as the alert and `strandline status` read them."""
    served, offline, without_leader = numbers(
        broker,
        "kafka_server_replicamanager_partitioncount",
        "kafka_server_replicamanager_offlinereplicacount",
        "kafka_controller_kafkacontroller_offlinepartitionscount",
    )
    assert without_leader == offline
    return served, offline


def codes_of_questions(client: WireClient, partition: int) -> list[int]:
    """What else can be asked of a partition of "topic", and is not changed by the asking."""
    wanted = OffsetForLeaderPartition(partition=partition, leader_epoch=0)
    epochs = client.ask(
        OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic="topic", partitions=[wanted])]
        ),
        OffsetForLeaderEpochResponse,
        4,
    )
    producers = client.ask(
        DescribeProducersRequest(
            topics=[DescribeProducersTopic(name="topic", partition_indexes=[partition])]
        ),
        DescribeProducersResponse,
        0,
    )
    return [
        epochs.topics[0].partitions[0].error_code,
        producers.topics[0].partitions[0].error_code,
        delete_records(client, "topic", 0, partition=partition).error_code,
        offset_at(client, "topic", LATEST, partition=partition).error_code,
    ]


def test_partitions_go_where_there_are_fewest(two_folders: BrokerProcess, tmp_path: Path) -> None:
    with WireClient(two_folders.port) as client:
        for number in range(3):
            create_topic(client, f"topic{number}", 3)
    counts = [len(list((tmp_path / name).glob("topic*"))) for name in "ab"]
    assert sorted(counts) == [4, 5]


def test_partitions_that_are_being_created_are_not_offline(two_folders: BrokerProcess) -> None:
    offline = set()
    with WireClient(two_folders.port) as client, ThreadPoolExecutor(1) as pool:
        creating = pool.submit(create_topic, client, "topic", 500)
        while not creating.done():
            offline.add(served_and_offline(two_folders)[1])
        creating.result()
    assert offline == {0}


def test_a_folder_that_vanishes_takes_its_partitions_alone_and_comes_back(
    two_folders: BrokerProcess, tmp_path: Path
) -> None:
    with WireClient(two_folders.port) as client:
        create_topic(client, "topic", PARTITIONS)
        away, gone = tmp_path / "b", tmp_path / "b.gone"
        lost, kept = partitions_in(away), partitions_in(tmp_path / "a")
        for partition in range(PARTITIONS):
            assert produce(client, "topic", batch(2), partition=partition).error_code == 0
        away.rename(gone)
        large = batch(1, value=b"v" * (SEGMENT_BYTES // 2))
        # The open file takes appends as before; a new segment finds no folder.
        codes = [produce(client, "topic", large, partition=lost[0]).error_code for _ in range(4)]
        assert KAFKA_STORAGE_ERROR in codes
        stored = 2 + codes.index(KAFKA_STORAGE_ERROR)
        for partition in lost:
            answer = produce(client, "topic", batch(1), partition=partition)
            assert answer.error_code == KAFKA_STORAGE_ERROR
            assert fetch(client, "topic", partition=partition).error_code == KAFKA_STORAGE_ERROR
            assert codes_of_questions(client, partition) == [KAFKA_STORAGE_ERROR] * 4
        for partition in kept:
            assert produce(client, "topic", batch(1), partition=partition).error_code == 0
            assert len(read_all(client, "topic", partition=partition)) == 3
        assert folder_errors(client) == {"a": 0, "b": KAFKA_STORAGE_ERROR}
        assert served_and_offline(two_folders) == (len(kept), len(lost))

        gone.rename(away)
        eventually(lambda: folder_errors(client) == {"a": 0, "b": 0})
        eventually(lambda: served_and_offline(two_folders) == (PARTITIONS, 0))
        found = read_all(client, "topic", partition=lost[0])
        assert [record.offset for record in found] == list(range(stored))
        for partition in lost:
            answer = produce(client, "topic", batch(1), partition=partition)
            assert answer.error_code == 0
        assert end_offset(client, "topic", partition=lost[0]) == stored + 1
    assert two_folders.stop() == 0


def test_partitions_of_a_folder_that_is_missing_at_the_start_are_not_begun_anew(
    two_folders: BrokerProcess, tmp_path: Path
) -> None:
    with WireClient(two_folders.port) as client:
        create_topic(client, "topic", PARTITIONS)
        for partition in range(PARTITIONS):
            assert produce(client, "topic", batch(5), partition=partition).error_code == 0
    two_folders.stop()
    broken, aside = tmp_path / "b", tmp_path / "b.aside"
    lost = partitions_in(broken)
    broken.rename(aside)
    broken.write_text("not a folder")
    two_folders.start()
    with WireClient(two_folders.port) as client:
        for partition in range(PARTITIONS):
            code = KAFKA_STORAGE_ERROR if partition in lost else 0
            assert produce(client, "topic", batch(1), partition=partition).error_code == code
            assert fetch(client, "topic", partition=partition).error_code == code
        assert folder_errors(client) == {"a": 0, "b": KAFKA_STORAGE_ERROR}
        assert served_and_offline(two_folders) == (PARTITIONS - len(lost), len(lost))
        create_topic(client, "later", 1)
        assert produce(client, "later", batch(1)).error_code == 0
    two_folders.stop()
    broken.unlink()
    aside.rename(broken)
    two_folders.start()
    with WireClient(two_folders.port) as client:
        for partition in range(PARTITIONS):
            assert end_offset(client, "topic", partition=partition) == 5 + (partition not in lost)


def test_a_group_is_described_although_some_of_its_partitions_are_offline(
    two_folders: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with WireClient(two_folders.port) as client:
        create_topic(client, "topic", PARTITIONS)
        for partition in range(PARTITIONS):
            assert produce(client, "topic", batch(2), partition=partition).error_code == 0
    consumer = Consumer({"bootstrap.servers": two_folders.bootstrap, "group.id": "g"})
    places = [TopicPartition("topic", partition, 1) for partition in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    two_folders.stop()
    (away,) = (one for one in (tmp_path / "a", tmp_path / "b") if not is_of_groups(one))
    lost = partitions_in(away)
    away.rename(tmp_path / "aside")
    away.write_text("not a folder")
    two_folders.start()
    command = ["group", "describe", "g", "--bootstrap-server", two_folders.bootstrap]
    assert main([*command, "--json"]) == 0
    told = capsys.readouterr()
    assert f"offsets not known of {len(lost)} partitions: " in told.err
    (described,) = json.loads(told.out)
    assert [one["lag"] for one in described["offsets"]] == [
        None if partition in lost else 1 for partition in range(PARTITIONS)
    ]
    assert main(command) == 0
    assert f"lag {PARTITIONS - len(lost)}" in capsys.readouterr().out


def is_of_groups(folder: Path) -> bool:
    return (folder / "__consumer_offsets-0").is_dir()


def test_a_full_disk_refuses_appends_serves_reads_and_takes_records_again(
    two_folders: BrokerProcess,
) -> None:
    """The kernel's own limit on files stands for the disk: the same errors at the same places."""
    full_at = SEGMENT_BYTES // 2
    with WireClient(two_folders.port) as client:
        create_topic(client, "topic", 1)
        limits = resource.prlimit(two_folders.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(two_folders.pid, resource.RLIMIT_FSIZE, (full_at, limits[1]))
        encoded = batch(1, value=b"v" * 100_000)
        codes = [produce(client, "topic", encoded).error_code for _ in range(10)]
        stored = full_at // len(encoded)
        assert codes == [0] * stored + [KAFKA_STORAGE_ERROR] * (10 - stored)
        assert len(read_all(client, "topic")) == stored
        assert folder_errors(client) == {"a": 0, "b": 0}
        resource.prlimit(two_folders.pid, resource.RLIMIT_FSIZE, limits)
        assert produce(client, "topic", encoded).error_code == 0
        assert [record.offset for record in read_all(client, "topic")] == list(range(stored + 1))
    two_folders.kill()
    two_folders.start()
    with WireClient(two_folders.port) as client:
        assert end_offset(client, "topic") == stored + 1


def test_when_the_only_folder_is_away_nothing_is_begun_in_its_place(tmp_path: Path) -> None:
    """An unmounted volume leaves an empty mount point: what is written there is lost with it."""
    with BrokerProcess(tmp_path) as broker:
        data, away = broker.data, tmp_path / "away"
        with WireClient(broker.port) as client:
            create_topic(client, "topic", 1)
            assert produce(client, "topic", batch(5)).error_code == 0
            data.rename(away)
            data.mkdir()
            assert codes_of_changes(client)[:3] == [KAFKA_STORAGE_ERROR] * 3
            assert topic_code(client, "made-on-the-way") == UNKNOWN_TOPIC_OR_PARTITION
            assert list(data.iterdir()) == []
            data.rmdir()
            away.rename(data)
            eventually(lambda: codes_of_changes(client) == [0] * 4)
            create_topic(client, "later", 1)
        assert "Traceback" not in broker.log_text(), broker.log_text()[-4000:]
        broker.kill()
        broker.start()
        with WireClient(broker.port) as client:
            assert topic_code(client, "later") == 0
            assert end_offset(client, "topic") == 5


def test_a_folder_removed_and_made_anew_belongs_to_the_broker_that_made_it(tmp_path: Path) -> None:
    """Somebody removes the folder of a broker that still runs, and starts another one on it."""
    with BrokerProcess(tmp_path / "old") as old, WireClient(old.port) as client:
        create_topic(client, "topic", 1)
        assert produce(client, "topic", batch(5)).error_code == 0
        shutil.rmtree(old.data)
        settings = {"log.dirs": str(old.data)}
        with BrokerProcess(tmp_path / "new", settings=settings) as new:
            with WireClient(new.port) as theirs:
                create_topic(theirs, "topic", 1)
                assert codes_of_changes(client)[0] == KAFKA_STORAGE_ERROR
                eventually(lambda: folder_errors(client) == {"data": KAFKA_STORAGE_ERROR})
                # What the old broker does about it, it does every second.
                time.sleep(2.5)
                assert folder_errors(client) == {"data": KAFKA_STORAGE_ERROR}
                assert produce(theirs, "topic", batch(3)).error_code == 0
            assert old.stop() == 0
            new.kill()
            new.start()
            with WireClient(new.port) as theirs:
                assert end_offset(theirs, "topic") == 3
                create_topic(theirs, "later", 1)
        assert "log folder online again" not in old.log_text()
        assert "Traceback" not in old.log_text(), old.log_text()[-4000:]


def test_on_a_full_disk_topics_and_log_starts_stay_and_who_asks_is_told_so(
    two_folders: BrokerProcess,
) -> None:
    with WireClient(two_folders.port) as client:
        create_topic(client, "topic", 1)
        assert produce(client, "topic", batch(5)).error_code == 0
        limits = resource.prlimit(two_folders.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(two_folders.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
        assert codes_of_changes(client) == [KAFKA_STORAGE_ERROR] * 4
        # Made on the way, or not: a client that asks for a topic's leader is not cut off.
        assert topic_code(client, "made-on-the-way") == UNKNOWN_TOPIC_OR_PARTITION
        resource.prlimit(two_folders.pid, resource.RLIMIT_FSIZE, limits)
        assert codes_of_changes(client) == [0] * 4
        assert topic_code(client, "made-on-the-way") == 0
    two_folders.kill()
    two_folders.start()
    with WireClient(two_folders.port) as client:
        assert offset_at(client, "topic", EARLIEST).offset == 3
        assert topic_code(client, "new") == UNKNOWN_TOPIC_OR_PARTITION


def codes_of_changes(client: WireClient) -> list[int]:
    """Makes topic "new", adds a partition, deletes it, and deletes records of "topic"."""
    wanted = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    made = client.ask(CreateTopicsRequest(topics=[wanted]), CreateTopicsResponse, 7)
    name = "new" if made.topics[0].error_code == 0 else "topic"
    grown = client.ask(
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=2, assignments=None)],
            timeout_ms=1000,
        ),
        CreatePartitionsResponse,
        3,
    )
    gone = client.ask(
        DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), DeleteTopicsResponse, 5
    )
    return [
        made.topics[0].error_code,
        grown.results[0].error_code,
        gone.responses[0].error_code,
        delete_records(client, "topic", 3).error_code,
    ]


def topic_code(client: WireClient, name: str) -> int:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)],
        allow_auto_topic_creation=name == "made-on-the-way",
    )
    return client.ask(request, MetadataResponse, 9).topics[0].error_code
