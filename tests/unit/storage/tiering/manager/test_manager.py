"""What is done for one topic costs nothing for the others, of which there may be thousands, and
nothing is kept of one that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import uuid
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.concurrency.alterations import Alterations
from strandline.storage.errors import TierUnavailable
from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import TopicId, TopicPartition
from strandline.storage.remote.manifest.topic_info import TopicInfo, load_topic_info
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.manager.worker_pool import WorkerPool
from strandline.storage.tiering.partition.topic_registration import (
    TopicRegistration,
    TopicRegistrations,
)
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import (
    CONFIG,
    GRACE_MS,
    PARTITION,
    TOPIC,
    Rig,
    asynchronous,
)

MANY = TopicInfo(topic="many", topic_id=uuid.UUID(int=77), partition_count=20)


class AskedLog(UnifiedLog):
    """Counts how often somebody wants to know its topic."""

    asked = 0

    @property
    def topic_id(self) -> TopicId:
        AskedLog.asked += 1
        return super().topic_id


def attach_many(rig: Rig, folder: Path) -> None:
    for number in range(MANY.partition_count):
        local = LocalLog.open(
            folder / f"many-{number}",
            topic_partition=TopicPartition("many", number),
            topic_id=MANY.topic_id,
            config=CONFIG,
            clock=rig.clock,
            recovery_point=0,
            log_start_offset=0,
            clean_shutdown=True,
        )
        rig.manager.attach(AskedLog(local), MANY, leader_epoch=1, is_new=True)


@asynchronous
async def test_each_partition_of_a_new_topic_is_queued_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued: list[object] = []
    add = WorkerPool.add

    def counted(pool: WorkerPool[object], key: object) -> None:
        queued.append(key)
        add(pool, key)

    async with Rig(tmp_path) as rig:
        for number in range(MANY.partition_count):
            (tmp_path / f"many-{number}").mkdir()
        monkeypatch.setattr(WorkerPool, "add", counted)
        attach_many(rig, tmp_path)
    assert queued == [TopicPartition("many", number) for number in range(MANY.partition_count)]


@asynchronous
async def test_a_topic_that_changes_or_goes_looks_at_no_partition_of_another(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        for number in range(MANY.partition_count):
            (tmp_path / f"many-{number}").mkdir()
        attach_many(rig, tmp_path)
        AskedLog.asked = 0
        rig.manager.update_topic(
            TopicInfo(topic="t", topic_id=rig.topic_info.topic_id, partition_count=2)
        )
        rig.manager.delete_topic(rig.topic_info)
        rig.manager.delete_topic(rig.topic_info)
        assert AskedLog.asked == 0
        for number in range(MANY.partition_count):
            assert rig.manager.statistics_of(TopicPartition("many", number)) is not None


def open_files(folder: Path) -> list[str]:
    """What this process has open in the folder, deleted files among it."""
    names = []
    for link in Path("/proc/self/fd").iterdir():
        # The one that the listing itself has open.
        with contextlib.suppress(FileNotFoundError):
            names.append(str(link.readlink()))
    return [name for name in names if name.startswith(str(folder))]


@asynchronous
async def test_a_deleted_topic_leaves_the_disk_while_the_store_is_away(tmp_path: Path) -> None:
    """Who makes room by it does so because nothing is archived, and nothing freed."""
    folder = tmp_path / "many"
    async with Rig(tmp_path) as rig:
        for number in range(MANY.partition_count):
            (folder / f"many-{number}").mkdir(parents=True)
        attach_many(rig, folder)
        assert len(open_files(folder)) == MANY.partition_count
        rig.memory.add_fault(Fault(operation=".*", error=TierUnavailable, times=-1))
        await rig.manager.run_once()
        rig.manager.delete_topic(MANY)
        await rig.manager.run_once()
        gc.collect()
        assert open_files(folder) == []


@asynchronous
async def test_a_partition_that_was_busy_when_its_topic_was_deleted_is_let_go_when_it_is_not(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        gate = threading.Event()
        fault = Fault(operation="put", key_pattern=r"\.log$", gate=gate, error=TierUnavailable)
        rig.memory.add_fault(fault)
        copying = asyncio.ensure_future(rig.manager.run_once())
        while not rig.memory.count_requests("put", r"\.log$"):
            await asyncio.sleep(0.001)
        rig.memory.add_fault(Fault(operation=".*", error=TierUnavailable, times=-1))
        left = weakref.ref(rig.manager._partitions[PARTITION])
        rig.manager.delete_topic(rig.topic_info)
        gc.collect()
        assert left() is not None, "its copy is under way"
        gate.set()
        await copying
        running = asyncio.ensure_future(rig.manager.run())
        while left() is not None:
            gc.collect()
            await asyncio.sleep(0.001)
        running.cancel()


@asynchronous
async def test_a_store_that_is_away_is_told_once_however_many_topics_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig(tmp_path) as rig:
        await rig.settle()
        rig.memory.add_fault(Fault(operation=".*", error=TierUnavailable, times=-1))
        for number in range(20):
            topic_id = uuid.UUID(int=100 + number)
            rig.manager.delete_topic(TopicInfo(topic="t", topic_id=topic_id, partition_count=1))
        await rig.manager.run_once()
        warnings = [line for line in caplog.records if line.levelname == "WARNING"]
        assert len(warnings) == 2, "the store, and what met it"


@asynchronous
async def test_whether_a_topic_has_a_namesake_is_known_without_a_look_at_the_others(
    tmp_path: Path,
) -> None:
    """It is asked for each topic that goes."""
    async with Rig(tmp_path) as rig:
        known = TopicRegistrations()
        topic_ids = [uuid.UUID(int=number) for number in range(3)]
        for topic_id, topic in zip(topic_ids, ("many", "many", "other"), strict=True):
            info = replace(MANY, topic=topic, topic_id=topic_id)
            one = TopicRegistration(info, MetadataThreads(rig.store, rig.executors.metadata))
            known.add(one)
        # Who looks at the last one now finds nothing to look at.
        del one.info
        told = []
        for topic_id in topic_ids[:2]:
            assert known.remove(topic_id)
            assert not known.remove(topic_id)
            told.append(known.has_name("many"))
        assert told == [True, False]
        assert known.has_name("other")


def archived_bytes(rig: Rig) -> int:
    counted = (*rig.manager.counters.values(), rig.manager.departed)
    return sum(counters.copied_bytes for counters in counted)


def counted_topics(rig: Rig) -> set[str]:
    return set(rig.manager.counters)


@asynchronous
async def test_a_purged_topic_leaves_what_was_counted_in_the_total_alone(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        copied_bytes = archived_bytes(rig)
        assert copied_bytes > 0
        assert counted_topics(rig) == {TOPIC}
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        assert rig.memory.keys() == []
        assert counted_topics(rig) == set()
        assert archived_bytes(rig) == copied_bytes


@asynchronous
async def test_a_purged_topic_leaves_the_counters_of_the_next_one_of_its_name(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.manager.delete_topic(rig.topic_info)
        rig.manager.update_topic(replace(rig.topic_info, topic_id=uuid.UUID(int=78)))
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        assert counted_topics(rig) == {TOPIC}


@asynchronous
async def test_a_replica_keeps_nothing_of_a_topic_that_its_origin_deleted(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.lead = Lead.FOLLOWING
    async with rig:
        assert counted_topics(rig) == {TOPIC}
        archive = weakref.ref(rig.log.remote)
        rig.manager.detach(PARTITION)
        gc.collect()
        assert archive() is None
        assert counted_topics(rig) == set()


@asynchronous
async def test_a_topic_that_is_altered_is_described_anew_although_nothing_is_copied(
    tmp_path: Path,
) -> None:
    """A restore and a forecast read it there."""

    def described(rig: Rig) -> dict[str, str]:
        found = load_topic_info(rig.memory, TOPIC, rig.topic_info.topic_id)
        assert found is not None
        return dict(found.properties)

    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.manager.run_once()
        assert described(rig) == {}
        rig.manager.update_topic(replace(rig.topic_info, properties={"retention.ms": "7"}))
        await rig.manager.run_once()
        assert described(rig) == {"retention.ms": "7"}
        await rig.crash()
        # Altered, and killed before it was written: the start has the properties of the image.
        await rig.manager.run_once()
        assert described(rig) == {}


@asynchronous
async def test_a_start_reads_the_description_of_a_topic_once(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.manager.run_once()
        before = len(rig.memory.requests)
        await rig.crash()
        await rig.manager.run_once()
        asked = [one for one in rig.memory.requests[before:] if "topic.json" in str(one)]
        assert len(asked) == 1, asked


@asynchronous
async def test_the_schedule_looks_again_when_a_limit_is_altered(tmp_path: Path) -> None:
    """It sleeps until the shortest limit of the moment is over."""
    alterations = Alterations()
    async with Rig(tmp_path, alterations=alterations) as rig:
        rig.configure(strandline_remote_active_segment_upload_ms=-1)
        looked = asyncio.Event()
        rig.manager._removals.begin_second_purges = looked.set  # type: ignore[method-assign]
        rig.manager._config = replace(rig.tiering_config, task_interval_ms=3_600_000)
        scheduling = asyncio.ensure_future(rig.manager._schedule())
        await looked.wait()
        looked.clear()
        rig.configure(strandline_remote_active_segment_upload_ms=2)
        alterations.note()
        async with asyncio.timeout(60):
            await looked.wait()
        scheduling.cancel()


@asynchronous
async def test_altered_settings_reach_every_worker(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        altered = replace(
            rig.tiering_config,
            workers=rig.copies + 1,
            copy_quota=replace(rig.tiering_config.copy_quota, bytes_per_second_max=7),
            fetch_quota=replace(rig.tiering_config.fetch_quota, bytes_per_second_max=8),
            compaction_key_bytes_max=9,
            reads_max=10,
        )
        manager = rig.manager
        manager.reconfigure(altered)
        workers = manager._workers
        assert (manager._pool._count, workers.copier.copies_max) == (altered.workers,) * 2
        assert manager.copy_quota.limits == workers.merger.quota.limits == altered.copy_quota
        assert manager.fetch_quota.limits == altered.fetch_quota
        assert workers.compactor.key_bytes_max == 9
        assert manager._gate.reads_max == 10
