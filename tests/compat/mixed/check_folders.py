"""`make mixed`: controllers of Apache Kafka know in which log folder our replicas are (KIP-858).

By that they know what has no leader when a folder fails: all in it, and nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.protocol.formats.metadata_records import (
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from strandline.broker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from strandline.storage.local.formats.checkpoint import META_PROPERTIES, decode_id, read_properties
from tests.compat.cluster_metadata import records_in
from tests.compat.mixed.cluster import RECORDS, Mixed, leader_of, name_of, produce, read
from tests.compat.mixed.nodes import KafkaNode, strandline_broker
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient

NODE = 12
COUNT = 4


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


@pytest.fixture
def broker(mixed: Mixed, tmp_path: Path, folders: list[Path]) -> Iterator[BrokerProcess]:
    """One more broker, with two log folders."""
    settings = {"log.dirs": ",".join(map(str, folders)), "log.retention.check.interval.ms": "500"}
    with strandline_broker(tmp_path, *mixed.controllers, node_id=NODE, settings=settings) as ours:
        yield ours


def told(controller: KafkaNode, topic: str) -> dict[int, uuid.UUID]:
    """The folder of each partition as the log of that controller has it."""
    found: dict[int, uuid.UUID] = {}
    topic_id: uuid.UUID | None = None
    for path in sorted(controller.metadata_folder.glob("*.log")):
        for record in records_in(path.read_bytes()):
            if isinstance(record, TopicRecord) and record.name == topic:
                topic_id = record.topic_id
            if not isinstance(record, PartitionRecord | PartitionChangeRecord):
                continue
            if record.topic_id == topic_id and record.directories:
                found[record.partition_id] = record.directories[0]
    return found


def lying(folders: list[Path], topic: str) -> dict[int, uuid.UUID]:
    """The folder in which each partition is, by the files."""
    found = {}
    for folder in folders:
        properties = read_properties(folder / META_PROPERTIES)
        assert properties is not None
        for path in folder.glob(f"{topic}-[0-9]"):
            found[int(path.name.rpartition("-")[2])] = decode_id(properties["directory.id"])
    return found


def test_folders_are_told_also_after_a_move_and_a_failed_one_takes_its_leaders_along(
    mixed: Mixed, broker: BrokerProcess, folders: list[Path]
) -> None:
    name = name_of("folders")
    mixed.create(name, [[NODE]] * COUNT)
    active = leader_of(mixed.controllers)
    assert len(set(lying(folders, name).values())) == 2
    eventually(lambda: told(active, name) == lying(folders, name))
    values = [b"%d" % number for number in range(RECORDS)]
    for partition in range(COUNT):
        produce(mixed.apache.address, name, partition, values)

    moved = next(int(path.name[-1]) for path in folders[0].glob(f"{name}-[0-9]"))
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=str(folders[1]),
                topics=[AlterReplicaLogDirTopic(name=name, partitions=[moved])],
            )
        ]
    )
    with WireClient(broker.port) as client:
        client.ask(request, AlterReplicaLogDirsResponse, 2)
    eventually((folders[1] / f"{name}-{moved}").is_dir)
    eventually(lambda: told(active, name) == lying(folders, name))

    gone = {int(path.name[-1]) for path in folders[1].glob(f"{name}-[0-9]")}
    assert moved in gone
    assert len(gone) < COUNT
    folders[1].rename(folders[1].with_name("unplugged"))
    expected = [[-1] if number in gone else [NODE] for number in range(COUNT)]
    eventually(lambda: mixed.leaders(name, "apache") == expected)
    for partition in set(range(COUNT)) - gone:
        assert read(mixed.apache.address, name, partition, RECORDS) == values
