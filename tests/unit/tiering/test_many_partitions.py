"""What is done for one topic costs nothing for the others, of which there may be thousands."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from strandline.storage.local.log import LocalLog
from strandline.storage.model import TopicId, TopicPartition
from strandline.storage.remote.topic_info import TopicInfo
from strandline.storage.tiering.unified_log import UnifiedLog
from strandline.storage.tiering.work_queue import WorkQueue
from tests.unit.tiering.harness import CONFIG, Rig, asynchronous

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
    add = WorkQueue.add

    def counted(queue: WorkQueue[object], key: object) -> None:
        queued.append(key)
        add(queue, key)

    async with Rig(tmp_path) as rig:
        for number in range(MANY.partition_count):
            (tmp_path / f"many-{number}").mkdir()
        monkeypatch.setattr(WorkQueue, "add", counted)
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
        assert len(rig.manager.statistics()) == MANY.partition_count
