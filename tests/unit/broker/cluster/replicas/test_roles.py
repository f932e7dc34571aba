"""Which partitions of a cluster's image a broker has, and which it leads."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import Replicas, topic_records
from strandline.broker.cluster.replicas.partition import LeaderRefusal, NotLeader, Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.protocol.formats.metadata_records import (
    PartitionChangeRecord,
    PartitionRecord,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.log_dirs import missing_folder_mark
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicPartition
from tests.unit.broker.cluster.controlled import A, registered, since
from tests.unit.broker.cluster.served import serving_nothing
from tests.unit.storage.local.builders import batch
from tests.unit.storage.local.log_folders import open_dirs

ELSEWHERE = ErrorCode.NOT_LEADER_OR_FOLLOWER


def cluster(*replicas: Replicas, **properties: str) -> MetadataImage:
    """A topic `t` of a cluster of three; the first replica of each partition leads, alone."""
    brokers = [registered(node_id) for node_id in (1, 2, 3)]
    texts = {key.replace("_", "."): text for key, text in properties.items()}
    records = [
        one.replaced(isr=one.replicas[:1]) if isinstance(one, PartitionRecord) else one
        for one in topic_records("t", A, replicas, texts)
    ]
    return MetadataImage().apply_entry([*brokers, *records])


def changed(
    image: MetadataImage, index: int, *, leader: int, replicas: Replicas | None = None
) -> MetadataImage:
    record = PartitionChangeRecord(
        partition_id=index,
        topic_id=A,
        leader=leader,
        replicas=replicas,
        isr=None if leader < 0 else (leader,),
    )
    return image.apply_entry([record])


@contextmanager
def folders(path: Path) -> Iterator[tuple[LogDirs, ThreadPoolExecutor]]:
    dirs = open_dirs(path)
    with ThreadPoolExecutor(1) as disk:
        yield dirs, disk
    dirs.close()


def here(replicas: ReplicaManager) -> dict[int, bool]:
    """Each partition of this broker, and whether it leads."""
    return {one.topic_partition.partition: one.is_leader for one in replicas.partitions()}


def test_a_broker_has_its_replicas_and_leads_those_that_it_was_elected_for(tmp_path: Path) -> None:
    async def follow() -> None:
        with folders(tmp_path) as (dirs, disk):
            replicas = await serving_nothing(dirs, disk)
            image = cluster((1,), (2, 1), (3, 2), (1, 3))
            await replicas.follow(*since(MetadataImage(), image))
            assert here(replicas) == {0: True, 1: False, 3: True}
            assert {path.name for path in tmp_path.glob("t-?")} == {"t-0", "t-1", "t-3"}
            assert [one.topic_partition.partition for one in replicas.led()] == [0, 3]
            for topic in ("t", A):
                assert isinstance(replicas.leader(topic, 0, 0), Partition)
                assert replicas.leader(topic, 1) == LeaderRefusal(ELSEWHERE, 2, 0)
                assert replicas.leader(topic, 2) == LeaderRefusal(ELSEWHERE, 3, 0)
            unknown = LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert replicas.leader("t", 4) == replicas.leader(A, 4) == unknown
            assert replicas.leader(uuid.UUID(int=9), 0) == LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_ID)
            assert replicas.leader("t", 1, 1) == LeaderRefusal(ErrorCode.UNKNOWN_LEADER_EPOCH)

    asyncio.run(follow())


def test_a_partition_that_is_known_and_not_made_yet_is_looked_for_again(tmp_path: Path) -> None:
    """As ReplicaManager.getPartitionOrError: a client must not take its topic for deleted."""

    async def look_up() -> None:
        with folders(tmp_path) as (dirs, disk):
            replicas = await serving_nothing(dirs, disk)
            following = asyncio.ensure_future(
                replicas.follow(*since(MetadataImage(), cluster((1,))))
            )
            await asyncio.sleep(0)
            assert not here(replicas)
            assert replicas.leader("t", 0) == LeaderRefusal(ELSEWHERE, 1, 0)
            await following
            assert here(replicas) == {0: True}

    asyncio.run(look_up())


class Waiter:
    """Notes that it was told."""

    is_told = False

    def on_high_watermark(self, size_bytes: int) -> None:
        raise AssertionError(size_bytes)

    def on_gone(self) -> None:
        self.is_told = True


def test_an_election_ends_the_lead_of_the_one_before(tmp_path: Path) -> None:
    async def follow() -> None:
        with folders(tmp_path) as (dirs, disk):
            replicas = await serving_nothing(dirs, disk)
            first = cluster((1, 2))
            await replicas.follow(*since(MetadataImage(), first))
            partition = replicas.leader("t", 0)
            assert isinstance(partition, Partition)
            waiter = Waiter()
            partition.wait(waiter)
            prepared: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
            appending = asyncio.ensure_future(partition.append_prepared(prepared))
            await asyncio.sleep(0)
            second = changed(first, 0, leader=2)
            await replicas.follow(*since(first, second))
            assert waiter.is_told
            assert replicas.leader("t", 0) == LeaderRefusal(ELSEWHERE, 2, 1)
            assert replicas.leader("t", 0, 0) == LeaderRefusal(ErrorCode.FENCED_LEADER_EPOCH, 2, 1)
            # A batch whose preparation began before is refused: the client sends it to the other.
            prepared.set_result(batch(1))
            with pytest.raises(NotLeader) as caught:
                await appending
            assert caught.value.kafka_code == ELSEWHERE
            assert partition.log.end_offset == 0
            third = changed(second, 0, leader=1)
            await replicas.follow(*since(second, third))
            assert replicas.leader("t", 0, 2) is partition
            assert not partition.is_gone
            nobody = changed(third, 0, leader=-1)
            await replicas.follow(*since(third, nobody))
            assert replicas.leader("t", 0) == LeaderRefusal(ELSEWHERE, -1, 3)

    asyncio.run(follow())


def test_a_partition_that_moved_away_leaves_no_folder_and_one_that_moved_here_gets_one(
    tmp_path: Path,
) -> None:
    async def follow() -> None:
        with folders(tmp_path) as (dirs, disk):
            replicas = await serving_nothing(dirs, disk)
            first = cluster((1,), (2,))
            await replicas.follow(*since(MetadataImage(), first))
            moving = replicas.leader("t", 0)
            assert isinstance(moving, Partition)
            away = changed(first, 0, leader=2, replicas=(2,))
            await replicas.follow(*since(first, away))
            assert moving.is_gone
            assert here(replicas) == {}
            assert replicas.leader(A, 0) == LeaderRefusal(ELSEWHERE, 2, 1)
            await replicas.deleted()
            assert list(tmp_path.glob("t-?")) == []
            assert len(list(tmp_path.glob("t-0.*-delete"))) == 1
            # Its topic is still there, and keeps its traffic.
            back = changed(changed(away, 0, leader=1, replicas=(1,)), 1, leader=1, replicas=(1, 2))
            await replicas.follow(*since(away, back))
            assert here(replicas) == {0: True, 1: True}
            assert {path.name for path in tmp_path.glob("t-?")} == {"t-0", "t-1"}
            assert replicas.leader("t", 0) is not moving

    asyncio.run(follow())


def test_a_tiered_partition_that_moves_here_may_have_an_archive(tmp_path: Path) -> None:
    """Until that is known its log must not begin at offset 0 again."""

    async def follow() -> None:
        with folders(tmp_path) as (dirs, disk):
            replicas = await serving_nothing(dirs, disk)
            first = cluster((1,), (2,), remote_storage_enable="true")
            await replicas.follow(*since(MetadataImage(), first))
            moved = changed(first, 1, leader=1, replicas=(1,))
            await replicas.follow(*since(first, moved))
            marked = {
                index: missing_folder_mark.is_marked(tmp_path / f"t-{index}") for index in (0, 1)
            }
            assert marked == {0: False, 1: True}

    asyncio.run(follow())


def test_a_start_serves_the_replicas_that_it_finds(tmp_path: Path) -> None:
    async def follow() -> None:
        with folders(tmp_path) as (dirs, disk):
            replicas = await serving_nothing(dirs, disk)
            image = cluster((1,), (2, 1), (3,))
            await replicas.follow(*since(MetadataImage(), image))
            partition = replicas.leader("t", 0)
            assert isinstance(partition, Partition)
            partition.append(batch(1))
            found = {one.topic_partition: one.log.local for one in replicas.partitions()}
            again = await serving_nothing(dirs, disk, found=found, image=image)
            assert here(again) == {0: True, 1: False}
            again_led = again.leader("t", 0)
            assert isinstance(again_led, Partition)
            assert again_led.high_watermark == again_led.log.end_offset == 1
            assert again.topics_with_loss == set()
            assert checkpoint.read_topic_id(tmp_path / "t-0") == A
            assert TopicPartition("t", 2) not in found

    asyncio.run(follow())
