"""AlterReplicaLogDirs: a partition moves to another folder of its broker while it is used."""

from __future__ import annotations

import threading
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
    MOVE_AFTER_MARK,
    MOVE_AFTER_SWAP,
    MOVE_BEFORE_SWAP,
)
from tests.integration.calls import (
    append,
    batch,
    create_topic,
    delete_records,
    delete_topic,
    end_offset,
    offset_at,
    read_all,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient

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
            while not stop.is_set():
                append(own, topic, batch(5))
                sent += 5

    with WireClient(two.port) as client:
        create_topic(client, topic, 1, {"segment.bytes": "1048576"})
        large = batch(50, value=bytes(8000))
        for _ in range(8):
            append(client, topic, large)
            sent += 50
        writer = threading.Thread(target=produce)
        writer.start()
        try:
            for _ in range(3):
                target = two.other(topic)
                assert move(client, topic, target) == 0
                wait_until_in(client, topic, target)
        finally:
            stop.set()
            writer.join(10)
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
    ("point", "has_moved"),
    [
        (MOVE_AFTER_MARK, False),
        (MOVE_BEFORE_SWAP, False),
        (MOVE_AFTER_SWAP, True),
    ],
)
def test_a_crash_in_the_middle_leaves_one_whole_log(
    tmp_path: Path, point: str, has_moved: bool
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
        assert broker.wait_for_exit(20) == EXIT_STATUS_KILLED
        broker.environment = {}
        broker.start()
        assert broker.homes(topic) == [target if has_moved else home]
        with WireClient(broker.port) as again:
            assert read_all(again, topic) == before
            assert before[0].offset == 33
            append(again, topic, batch(1))
            assert move(again, topic, broker.other(topic)) == 0
            eventually(lambda: broker.homes(topic) == [home if has_moved else target])
            assert len(read_all(again, topic)) == len(before) + 1
        assert "Traceback" not in broker.log_text()


def test_the_archive_goes_on_behind_a_move(tmp_path: Path) -> None:
    """Segments keep their borders, which is how the archive knows them."""
    broker = TwoFolders(tmp_path)
    broker.settings |= {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": f"file://{tmp_path / 'archive'}",
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "200",
    }
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
