"""What of the metadata becomes of the partitions that are served."""

from __future__ import annotations

import asyncio
import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage, TopicImage
from strandline.broker.cluster.metadata.records import config_records, topic_records
from strandline.broker.cluster.replicas import replica_manager
from strandline.broker.cluster.replicas.partition import LeaderRefusal
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.cluster.replicas.tiers import LocalTier
from strandline.broker.protocol.formats.metadata_records import PartitionChangeRecord
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage import files
from strandline.storage.concurrency import turns
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.log_dirs import folder_work
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.model import TopicId
from tests.unit.broker.cluster.controlled import since, since_nothing, with_topic
from tests.unit.broker.cluster.served import serving, serving_nothing
from tests.unit.storage.local.log_folders import open_dirs

B = uuid.UUID(int=0xB)


def test_a_deleted_topic_is_served_by_no_partition_although_a_folder_cannot_be_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dirs = open_dirs(tmp_path)

    async def delete() -> None:
        with ThreadPoolExecutor(1) as disk:
            replicas = await serving(dirs, disk, partitions=3)
            assert len(replicas.partitions()) == 3
            shutil.rmtree(tmp_path / "t-0")
            await replicas.follow(*since(with_topic("t", partitions=3), MetadataImage()))
            assert replicas.partitions() == ()
            await replicas.deleted()
            assert [replicas.partition("t", index) for index in range(3)] == [None] * 3

    asyncio.run(delete())
    assert [path.name for path in tmp_path.glob("t-?")] == []
    assert len(list(tmp_path.glob("t-?.*-delete"))) == 2
    assert caplog.text.count("folder of a deleted partition stays") == 1
    dirs.close()


def test_a_change_of_one_topic_looks_at_that_topic_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_S_MAX", 0.0)
    dirs = open_dirs(tmp_path)
    asked: list[str] = []

    class Asked(ReplicaManager):
        def config_of(self, topic: TopicImage) -> LogConfig:
            asked.append(topic.name)
            return super().config_of(topic)

    async def follow() -> None:
        defaults: dict[str, str] = {}
        with ThreadPoolExecutor(1) as disk:
            replicas = Asked(
                dirs,
                LocalTier({}, lookups=disk),
                node_id=1,
                topic_defaults=lambda: dict(defaults),
                folders=FolderWork(lambda _: disk),
                syncs=lambda _: disk,
            )
            first = with_topic("a", partitions=1)
            await replicas.follow(*since_nothing(first))
            asked.clear()
            second = first.apply_entry(topic_records("b", B, ((1,),), {}))
            await replicas.follow(*since(first, second))
            assert asked == ["b"]
            image = second.apply_entry(
                config_records(ConfigResourceType.TOPIC, "b", {}, {"retention.ms": "7"})
            )
            await replicas.follow(*since(second, image))
            assert asked == ["b", "b"]
            # What one topic does not say for itself, it has from the broker.
            defaults["retention.bytes"] = "9"
            await replicas.follow(*since(image, image))
            assert asked == ["b", "b", "a", "b"]
            assert [one.log.config.retention_bytes for one in replicas.partitions()] == [9, 9]
            # Others have turns of the loop between two topics.
            defaults["retention.bytes"] = "10"
            following = asyncio.create_task(replicas.follow(*since(image, image)))
            while not following.done():
                asked_before = len(asked)
                await asyncio.sleep(0)
                assert len(asked) - asked_before <= 1

    asyncio.run(follow())


def test_a_topic_that_is_deleted_while_its_log_comes_back_leaves_nothing(tmp_path: Path) -> None:
    """Between the return of the folder and the partitions' taking over of the new logs."""
    dirs = open_dirs(tmp_path)

    async def delete() -> None:
        with ThreadPoolExecutor(1) as disk:
            replicas = await serving(dirs, disk, partitions=2)
            stopped = replicas.partitions()[0].log.local
            assert stopped.on_failure is not None
            stopped.on_failure(DiskError("input/output error"))
            revived = dirs.revive()
            assert len(revived) == 2
            await replicas.follow(*since(with_topic("t", partitions=2), MetadataImage()))
            await replicas.deleted()
            replicas.replace_logs(revived)
            assert replicas.partitions() == ()
            assert all(pair.new.failure is not None for pair in revived)

    asyncio.run(delete())
    assert dirs.logs == {}
    assert [path.name for path in tmp_path.glob("t-?")] == []
    assert len(list(tmp_path.glob("t-?.*-delete"))) == 2
    dirs.close()


@pytest.mark.parametrize("lacks", ["threads", "memory"])
def test_partitions_that_there_was_too_little_for_are_created_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """Half of their folders would be in the way of every later attempt."""
    dirs, image = open_dirs(tmp_path), with_topic("t", partitions=5)
    start, write_topic_id, left = threading.Thread.start, checkpoint.write_topic_id, 2

    def take(_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("can't start new thread") if lacks == "threads" else MemoryError

    def start_if_there_is_one(thread: threading.Thread) -> None:
        take(thread)
        start(thread)

    def write_if_there_is_memory(folder: Path, topic_id: TopicId) -> None:
        take(folder)
        write_topic_id(folder, topic_id)

    async def create() -> None:
        with ThreadPoolExecutor(1) as disk:
            replicas = await serving_nothing(dirs, disk)
            with monkeypatch.context() as patch:
                if lacks == "threads":
                    patch.setattr(threading.Thread, "start", start_if_there_is_one)
                else:
                    patch.setattr(checkpoint, "write_topic_id", write_if_there_is_memory)
                await replicas.follow(*since_nothing(image))
            assert left < 0
            # With whatever changes next.
            await replicas.follow(*since(image, image))
            assert len(replicas.partitions()) == 5
            assert not replicas.has_uncreated

    asyncio.run(create())
    assert len(dirs.logs) == 5
    dirs.close()


def test_an_offline_partition_is_found_by_its_id_without_a_look_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fetch of a thousand of them asks for each."""
    dirs = open_dirs(tmp_path)
    compared = 0

    class Index(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    def fail(folder: Path, _topic_id: TopicId) -> None:
        raise DiskError(f"cannot write {folder}")

    async def ask() -> None:
        with ThreadPoolExecutor(1) as disk, monkeypatch.context() as patch:
            patch.setattr(checkpoint, "write_topic_id", fail)
            replicas = await serving(dirs, disk, partitions=100)
            topic_id = with_topic("t", partitions=100).topics["t"].topic_id
            refusals = {replicas.leader(topic_id, Index(n)) for n in range(100)}
            assert refusals == {LeaderRefusal(ErrorCode.KAFKA_STORAGE_ERROR)}
            for unknown_id in (topic_id, B, None):
                refusal = replicas.leader(unknown_id, Index(100))
                assert refusal == LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_ID)

    asyncio.run(ask())
    assert compared <= 200
    dirs.close()


def test_a_leader_is_looked_up_by_name_or_id_or_refused_with_the_current_one(
    tmp_path: Path,
) -> None:
    """KIP-951: one that knows an older epoch is told the present one."""
    dirs = open_dirs(tmp_path)

    async def look_up() -> None:
        with ThreadPoolExecutor(1) as disk:
            replicas = await serving(dirs, disk, partitions=2)
            (partition, _) = replicas.partitions()
            partition.leader_epoch, topic_id = 4, partition.topic_id
            for topic in ("t", topic_id):
                for epoch in (-1, 4):
                    assert replicas.leader(topic, 0, epoch) is partition
                fenced = LeaderRefusal(ErrorCode.FENCED_LEADER_EPOCH, 1, 4)
                assert replicas.leader(topic, 0, 3) == fenced
                refused = LeaderRefusal(ErrorCode.UNKNOWN_LEADER_EPOCH)
                assert replicas.leader(topic, 0, 5) == refused
                missing = LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                assert replicas.leader(topic, 2) == missing
            assert replicas.leader("u", 0) == missing
            for unknown in (B, None):
                assert replicas.leader(unknown, 0) == LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_ID)

    asyncio.run(look_up())
    dirs.close()


class HangingDisk:
    """Whoever syncs a name in `folder` waits until the disk answers."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.waits = threading.Event()
        sync = files.sync_directory

        def sync_late(path: Path) -> None:
            if path == folder:
                self.waits.set()
                self.answers.wait(60)
            sync(path)

        patch.setattr(files, "sync_directory", sync_late)


def test_a_disk_that_hangs_holds_up_what_is_for_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, other = tmp_path / "a", tmp_path / "b"
    dirs = open_dirs(hanging, other)
    disk = HangingDisk(hanging, monkeypatch)
    monkeypatch.setattr(folder_work, "HANGS_AFTER_S", 0.05)

    async def main() -> None:
        with (
            ThreadPoolExecutor(1) as first,
            ThreadPoolExecutor(1) as second,
            ThreadPoolExecutor(1) as rest,
        ):
            replicas = ReplicaManager(
                dirs,
                LocalTier({}, lookups=rest),
                node_id=1,
                topic_defaults=dict,
                folders=FolderWork({hanging: first, other: second}.__getitem__),
                syncs=lambda _: rest,
            )
            with_t = with_topic("t", partitions=200)
            await replicas.follow(*since_nothing(with_t))
            assert len(list(hanging.glob("t-*"))) == len(list(other.glob("t-*"))) == 100

            disk.answers.clear()
            # A change of the metadata waits for neither disk.
            await replicas.follow(*since(with_t, MetadataImage()))
            assert replicas.partitions() == ()
            while len(list(other.glob("t-*-delete"))) < 100:
                await asyncio.sleep(0.002)
            assert disk.waits.is_set()

            # Also of the other, a busy machine may take long.
            while await replicas.checkpoint_log_starts() != {hanging}:
                await asyncio.sleep(0.002)
            assert (other / checkpoint.LOG_STARTS).exists()
            with_u = with_topic("u", partitions=3)
            await replicas.follow(*since(MetadataImage(), with_u))
            assert len(list(other.glob("u-?"))) == 3

            disk.answers.set()
            await replicas.deleted()
            assert len(list(hanging.glob("t-*-delete"))) == 100
            while await replicas.checkpoint_log_starts():
                await asyncio.sleep(0.002)

    try:
        asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        disk.answers.set()
        dirs.close()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_change_of_the_metadata_does_not_wait_for_a_new_log_on_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
) -> None:
    """It is served once the disk answers, or removed if its topic is deleted meanwhile."""
    hanging, other = tmp_path / "a", tmp_path / "b"
    dirs = open_dirs(hanging, other)
    disk = HangingDisk(hanging, monkeypatch)
    monkeypatch.setattr(replica_manager, "CREATION_WAIT_S", 0.05)
    monkeypatch.setattr(folder_work, "HANGS_AFTER_S", 0.05)
    with_t = with_topic("t", partitions=4)
    t_id = with_t.topics["t"].topic_id

    async def main() -> None:
        with (
            ThreadPoolExecutor(1) as first,
            ThreadPoolExecutor(1) as second,
            ThreadPoolExecutor(1) as rest,
        ):
            folders = FolderWork({hanging: first, other: second}.__getitem__)
            replicas = ReplicaManager(
                dirs,
                LocalTier({}, lookups=rest),
                node_id=1,
                topic_defaults=dict,
                folders=folders,
                syncs=lambda _: rest,
            )
            await replicas.follow(*since_nothing(MetadataImage()))
            disk.answers.clear()
            try:
                await replicas.follow(*since(MetadataImage(), with_t))
                # Those of the other folder may be late too, on a busy machine.
                while len(replicas.partitions()) < 2:
                    await asyncio.sleep(0.002)
                answers = [replicas.leader(t_id, index) for index in range(4)]
                refused = LeaderRefusal(ErrorCode.KAFKA_STORAGE_ERROR)
                assert answers.count(refused) == 2
                # A disk that is slow has no failure, and one that hangs has.
                assert replicas.unserved_count == 0
                await folders.on_each(dirs.directories[:1], lambda _: None)
                assert replicas.unserved_count == 2
                # Nobody waits for one that is known to hang.
                waiting = asyncio.ensure_future(replicas.created([t_id]))
                await asyncio.sleep(0)
                assert waiting.done()
                # It is not a failure that is tried again each minute.
                assert not replicas.has_uncreated
                # With what changes next they are not made a second time, here or elsewhere.
                await replicas.follow(*since(with_t, with_t))
                assert len(list(other.glob("t-?"))) == 2
                if is_deleted:
                    await replicas.follow(*since(with_t, MetadataImage()))
                    assert replicas.unserved_count == 0
            finally:
                disk.answers.set()
            if is_deleted:
                while len(list(tmp_path.glob("?/t-*-delete"))) < 4:
                    await asyncio.sleep(0.002)
                assert replicas.partitions() == ()
                assert list(tmp_path.glob("?/t-?")) == []
            else:
                while len(replicas.partitions()) < 4:
                    await asyncio.sleep(0.002)
                assert replicas.unserved_count == 0
            await replicas.deleted()

    asyncio.run(main())
    dirs.close()


def test_a_partition_that_moves_away_and_back_is_never_in_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that finds it in two cannot tell which is true, and refuses both."""
    hanging, other = tmp_path / "a", tmp_path / "b"
    dirs = open_dirs(hanging, other)
    answers, rename = threading.Event(), files.rename

    def rename_late(path: Path, target: Path) -> None:
        if path.parent == hanging:
            answers.wait(60)
        rename(path, target)

    monkeypatch.setattr(files, "rename", rename_late)
    monkeypatch.setattr(replica_manager, "CREATION_WAIT_S", 0.05)
    here = with_topic("t", partitions=1)
    t_id = here.topics["t"].topic_id
    changes = PartitionChangeRecord(partition_id=0, topic_id=t_id)
    away = here.apply_entry([changes.replaced(leader=2, isr=[2], replicas=[2])])
    back = away.apply_entry([changes.replaced(leader=1, isr=[1], replicas=[1])])

    async def main() -> None:
        with (
            ThreadPoolExecutor(1) as first,
            ThreadPoolExecutor(1) as second,
            ThreadPoolExecutor(1) as rest,
        ):
            replicas = ReplicaManager(
                dirs,
                LocalTier({}, lookups=rest),
                node_id=1,
                topic_defaults=dict,
                folders=FolderWork({hanging: first, other: second}.__getitem__),
                syncs=lambda _: rest,
            )
            await replicas.follow(*since_nothing(here))
            assert [path.parent for path in tmp_path.glob("?/t-0")] == [hanging]
            try:
                await replicas.follow(*since(here, away))
                await replicas.follow(*since(away, back))
                # A broker that is killed now finds these.
                assert [path.parent for path in tmp_path.glob("?/t-0")] == [hanging]
            finally:
                answers.set()
            while not replicas.partitions():
                await asyncio.sleep(0.002)
            assert [path.parent for path in tmp_path.glob("?/t-0")] == [hanging]
            assert len(list(hanging.glob("t-0.*-delete"))) == 1
            await replicas.deleted()

    asyncio.run(main())
    dirs.close()
