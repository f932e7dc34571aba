"""AlterReplicaLogDirs: a partition moves to another folder of its broker while it is used."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from strandline.broker.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from strandline.storage.crash_points import (
    EXIT_STATUS_KILLED,
    MOVE_AFTER_COPY,
    MOVE_AFTER_MARK,
    MOVE_AFTER_SWAP,
    MOVE_AFTER_SYNC,
    MOVE_BEFORE_SWAP,
)
from strandline.storage.local.formats.checkpoint import (
    MOVES,
    read_moves,
    read_topic_id,
    write_moves,
)
from strandline.storage.model import TopicId, TopicPartition
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import (
    append,
    batch,
    create_topic,
    delete_records,
    delete_topic,
    end_offset,
    offset_at,
    read_all,
)

pytestmark = [pytest.mark.slow, pytest.mark.crash]

UNKNOWN_TOPIC_OR_PARTITION = 3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
LOG_DIR_NOT_FOUND = 57


class TwoFolders(BrokerProcess):
    """A broker with two log folders."""

    def __init__(self, folder: Path, **more: object) -> None:
        settings = {"log.dirs": f"{folder / 'one'},{folder / 'two'}"}
        super().__init__(folder, settings=settings, **more)  # type: ignore[arg-type]

    @property
    def folders(self) -> tuple[Path, Path]:
        return self.folder / "one", self.folder / "two"

    def homes(self, topic: str) -> list[Path]:
        """Which folders have one of the topic's first partition."""
        return [path for path in self.folders if (path / f"{topic}-0").exists()]

    def other(self, topic: str) -> Path:
        (home,) = self.homes(topic)
        return self.other_than(home)

    def other_than(self, home: Path) -> Path:
        return next(path for path in self.folders if path != home)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoFolders]:
    with TwoFolders(tmp_path_factory.mktemp("two")) as running:
        yield running


def move(client: WireClient, topic: str, path: Path | str, *, version: int = 2) -> int:
    """The error code for partition 0."""
    wanted = AlterReplicaLogDirTopic(name=topic, partitions=[0])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(path), topics=[wanted])])
    (result,) = client.ask(request, AlterReplicaLogDirsResponse, version).results
    assert result.topic_name == topic
    return result.partitions[0].error_code


def described(client: WireClient, topic: str) -> dict[str, int]:
    """Bytes of partition 0 by folder, without copies that are being made."""
    request = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=topic, partitions=[0])])
    return {
        result.log_dir: partition.partition_size
        for result in client.ask(request, DescribeLogDirsResponse, 4).results
        for found in result.topics
        for partition in found.partitions
        if not partition.is_future_key
    }


def wait_until_in(client: WireClient, topic: str, path: Path) -> None:
    eventually(lambda: list(described(client, topic)) == [str(path)])


def test_a_partition_moves_forth_and_back_while_it_is_written_and_read(two: TwoFolders) -> None:
    topic = "busy"
    stop = threading.Event()
    sent = 0

    def produce() -> None:
        nonlocal sent
        with WireClient(two.port) as own:
            # Not as fast as it goes: a move copies what was sent, and has to sync each file.
            while not stop.wait(0.005):
                append(own, topic, batch(5))
                sent += 5

    with WireClient(two.port) as client:
        create_topic(client, topic, 1, {"segment.bytes": "1048576"})
        large = batch(50, value=bytes(8000))
        for _ in range(8):
            append(client, topic, large)
            sent += 50
        (home,) = two.homes(topic)
        writer = threading.Thread(target=produce)
        writer.start()
        try:
            for _ in range(3):
                # What is left where it was may not be removed yet when it is wished back.
                target = two.other_than(home)
                assert move(client, topic, target) == 0
                wait_until_in(client, topic, target)
                home = target
        finally:
            stop.set()
            writer.join(60)
        assert end_offset(client, topic) == sent
        before = read_all(client, topic)
        assert [record.offset for record in before] == list(range(sent))
        eventually(lambda: two.homes(topic) == [target])
        assert described(client, topic)[str(target)] > 8 * len(large)
    two.kill()
    two.start()
    with WireClient(two.port) as client:
        assert two.homes(topic) == [target]
        assert read_all(client, topic) == before


@pytest.mark.parametrize("version", [1, 2])
def test_wishes_that_cannot_be_are_refused_each_for_itself(two: TwoFolders, version: int) -> None:
    topic = f"refused-{version}"
    with WireClient(two.port) as client:
        create_topic(client, topic)
        (home,) = two.homes(topic)
        assert move(client, topic, home, version=version) == 0
        assert move(client, topic, home / "sub", version=version) == LOG_DIR_NOT_FOUND
        assert move(client, topic, "relative", version=version) == LOG_DIR_NOT_FOUND
        assert move(client, "absent", home, version=version) == UNKNOWN_TOPIC_OR_PARTITION
        assert two.homes(topic) == [home]


def test_a_deleted_topic_leaves_nothing_in_either_folder(two: TwoFolders) -> None:
    topic = "short-lived"
    with WireClient(two.port) as client:
        create_topic(client, topic)
        append(client, topic, batch(10))
        assert move(client, topic, two.other(topic)) == 0
        delete_topic(client, topic)
        eventually(lambda: two.homes(topic) == [])
        create_topic(client, topic)
        assert end_offset(client, topic) == 0


@pytest.mark.parametrize(
    "point",
    [MOVE_AFTER_MARK, MOVE_AFTER_COPY, MOVE_BEFORE_SWAP, MOVE_AFTER_SWAP, MOVE_AFTER_SYNC],
)
def test_a_crash_in_the_middle_leaves_one_whole_log_and_the_move_goes_on(
    tmp_path: Path, point: str
) -> None:
    broker = TwoFolders(tmp_path, environment={"STRANDLINE_CRASH_AT": point})
    topic = "crashing"
    with broker, WireClient(broker.port) as client:
        create_topic(client, topic)
        append(client, topic, *(batch(10) for _ in range(20)))
        delete_records(client, topic, 33)
        before = read_all(client, topic)
        (home,), target = broker.homes(topic), broker.other(topic)
        assert move(client, topic, target) == 0
        assert broker.wait_for_exit(60) == EXIT_STATUS_KILLED
        # The old one has its name until the mark of the new one cannot be lost any more.
        assert (home / f"{topic}-0").is_dir()
        broker.environment = {}
        broker.start()
        with WireClient(broker.port) as again:
            eventually(lambda: broker.homes(topic) == [target])
            assert read_all(again, topic) == before
            assert before[0].offset == 33
            append(again, topic, batch(1))
            assert move(again, topic, home) == 0
            eventually(lambda: broker.homes(topic) == [home])
            assert len(read_all(again, topic)) == len(before) + 1
        assert "Traceback" not in broker.log_text()


def test_moves_that_waited_at_a_stop_go_on_and_those_of_topics_that_are_gone_do_not(
    tmp_path: Path,
) -> None:
    broker = TwoFolders(tmp_path)
    with broker, WireClient(broker.port) as client:
        for topic in ("one", "another"):
            create_topic(client, topic)
            append(client, topic, batch(10))
        targets = {topic: broker.other(topic) for topic in ("one", "another")}
        broker.stop()
        noted: dict[Path, dict[TopicPartition, TopicId]] = {}
        for topic, target in targets.items():
            key = TopicPartition(topic, 0)
            topic_id = read_topic_id(broker.other_than(target) / str(key))
            assert topic_id is not None
            noted.setdefault(target, {})[key] = topic_id
            # Of a topic that had this name before, and of one that is unknown.
            former = uuid.UUID(int=7)
            noted[target] |= {TopicPartition("gone", 0): former}
            noted.setdefault(broker.other_than(target), {})[key] = former
        for folder, moves in noted.items():
            write_moves(folder / MOVES, moves)
        broker.start()
        with WireClient(broker.port) as again:
            for topic, target in targets.items():
                eventually(lambda topic=topic, target=target: broker.homes(topic) == [target])
                assert len(read_all(again, topic)) == 10
        eventually(lambda: not any(read_moves(folder / MOVES) for folder in broker.folders))


def archiving(parent: Path) -> dict[str, str]:
    """Settings of a broker that archives into a folder below `parent`, and soon."""
    return {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": f"file://{parent / 'archive'}",
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "200",
    }


def test_the_archive_goes_on_behind_a_move(tmp_path: Path) -> None:
    """Segments keep their borders, which is how the archive knows them."""
    broker = TwoFolders(tmp_path)
    broker.settings |= archiving(tmp_path)
    topic = "tiered"
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": "1048576",
        "local.retention.bytes": "1048576",
        "retention.ms": "-1",
    }
    large = batch(50, value=bytes(8000))

    def tiered_end(client: WireClient) -> int:
        return offset_at(client, topic, LATEST_TIERED).offset + 1

    with broker, WireClient(broker.port) as client:
        create_topic(client, topic, 1, config)
        append(client, topic, *([large] * 8))
        eventually(lambda: tiered_end(client) >= 250)
        target = broker.other(topic)
        assert move(client, topic, target) == 0
        eventually(lambda: broker.homes(topic) == [target])
        before = tiered_end(client)
        append(client, topic, *([large] * 8))
        eventually(lambda: tiered_end(client) >= before + 300)
        eventually(lambda: offset_at(client, topic, EARLIEST_LOCAL).offset > 400)
        assert [r.offset for r in read_all(client, topic)] == list(range(800))
        assert "Traceback" not in broker.log_text()


def test_a_compacted_log_is_cleaned_and_archived_behind_a_move(tmp_path: Path) -> None:
    """With nothing of the archive on its disk the moved log has to know that there is one."""
    broker = TwoFolders(tmp_path)
    broker.settings |= {**archiving(tmp_path), "log.cleaner.backoff.ms": "200"}
    topic = "table"
    config = {
        "remote.storage.enable": "true",
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "local.retention.bytes": "1",
    }

    def tiered_end(client: WireClient) -> int:
        return offset_at(client, topic, LATEST_TIERED).offset + 1

    large = batch(50, value=bytes(8000))
    with broker, WireClient(broker.port) as client:
        create_topic(client, topic, 1, config)
        append(client, topic, *([large] * 8))
        eventually(
            lambda: offset_at(client, topic, EARLIEST_LOCAL).offset == tiered_end(client) > 0
        )
        target = broker.other(topic)
        assert move(client, topic, target) == 0
        eventually(lambda: broker.homes(topic) == [target])
        eventually(lambda: "partition moved" in broker.log_text())
        before = end_offset(client, topic)
        append(client, topic, *([large] * 8))
        eventually(lambda: tiered_end(client) > before)
