"""Letting go: by hand, by retention, and whole topics."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.errors import (
    AccessDenied,
    OffsetOutOfRange,
    TierUnavailable,
)
from strandline.storage.remote.keys import topic_folder
from strandline.storage.remote.manifest.topic_info import TopicInfo, load_topic_info
from strandline.storage.remote.object_store.memory import Fault, Timing
from strandline.storage.tiering.manager.partition_tiering import PartitionTiering
from strandline.storage.tiering.partition import expiration
from tests.unit.storage.tiering.harness import (
    CONFIG,
    GRACE_MS,
    TOPIC,
    TOPIC_ID,
    Rig,
    asynchronous,
    keys_of,
)

# --- deleting ------------------------------------------------------------------------------------


@asynchronous
async def test_objects_go_only_after_the_log_start_moved_and_the_grace_time(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        rig.pass_ms(5000)
        await rig.settle()
        keys = set(rig.data_keys())
        rig.log.delete_records(15)
        await rig.settle()
        manifest = rig.manifest
        assert manifest is not None
        assert manifest.log_start_offset == 15
        assert rig.archived == [(10, 20), (20, 30)], "one is wholly below, one is not"
        assert set(rig.data_keys()) == keys
        rig.pass_ms(GRACE_MS - 1)
        await rig.settle()
        assert set(rig.data_keys()) == keys
        rig.pass_ms(1)
        await rig.settle()
        assert set(rig.data_keys()) == keys_of(rig.manifest)
        with pytest.raises(OffsetOutOfRange):
            rig.log.read(14, bytes_max=1000)
        cold = await rig.log.read_remote(15, bytes_max=1000)
        assert bytes(cold.buffers[0]) == rig.sent[1]


@asynchronous
async def test_one_step_deletes_no_more_than_one_request_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiration, "SEGMENTS_PER_DELETE_MAX", 2)
    async with Rig(tmp_path) as rig:
        rig.produce_segments(5)
        await rig.settle()
        rig.log.delete_records(50)
        await rig.settle()
        rig.pass_ms(GRACE_MS)
        deleted = [rig.memory.count_requests("delete")]
        for _ in range(4):
            await rig.manager.step_each()
            deleted.append(rig.memory.count_requests("delete"))
        # Two objects for each segment.
        assert deleted == [0, 4, 8, 10, 10]
        assert rig.data_keys() == []


@asynchronous
async def test_objects_stay_while_the_log_start_cannot_be_written(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.settle()
        rig.memory.add_fault(
            Fault(operation="put", key_pattern="manifest", error=AccessDenied, times=-1)
        )
        rig.log.delete_records(20)
        for _ in range(3):
            rig.pass_ms(GRACE_MS)
            await rig.settle()
        assert len(rig.data_keys()) == 4
        assert rig.memory.count_requests("delete") == 0


@asynchronous
async def test_records_deleted_before_they_were_copied_are_never_copied(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.produce_segments(3)
        rig.log.delete_records(25)
        await rig.settle()
        assert rig.archived == [(20, 30), (30, 40)]
        assert rig.memory.count_requests("put", r"\.log$") == 3
        assert await rig.read_all() == b"".join(rig.sent[2:])


@asynchronous
async def test_a_segment_that_was_deleted_while_it_was_copied_is_not_committed(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        gate = threading.Event()
        hangs = rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", gate=gate))

        async def delete_meanwhile() -> None:
            while not hangs.hit_count:
                await asyncio.sleep(0.001)
            rig.log.delete_records(10)
            gate.set()

        await asyncio.gather(rig.manager.run_once(), delete_meanwhile())
        manifest = rig.manifest
        assert manifest is not None
        assert (rig.archived, manifest.log_start_offset) == ([(10, 20)], 10)
        # It never was in the manifest; what was uploaded of it is an orphan.
        assert manifest.deleting == ()
        assert len(rig.data_keys()) == 4


@asynchronous
async def test_a_segment_that_is_freed_while_its_topic_is_registered_is_not_looked_for(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        gate = threading.Event()
        hangs = rig.memory.add_fault(Fault(operation="put", key_pattern="topic.json", gate=gate))

        async def free_meanwhile() -> None:
            while not hangs.hit_count:
                await asyncio.sleep(0.001)
            rig.log.note_checkpointed(rig.log.delete_records(10))
            assert rig.log.free_segments(10)
            gate.set()

        await asyncio.gather(rig.manager.run_once(), free_meanwhile())
        assert rig.archived == [(10, 20)]


@asynchronous
async def test_local_segments_below_the_log_start_wait_for_its_checkpoint(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIG) as rig:
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        rig.produce_segments(2)
        rig.log.delete_records(20)
        assert rig.log.free_segments(20) == []
        await rig.settle()
        assert rig.checkpoint_path.exists()
        assert rig.local_segments == [(20, 20)]


@asynchronous
async def test_a_log_start_that_moves_while_the_checkpoint_is_written_waits_for_the_next_one(
    tmp_path: Path,
) -> None:
    class MovingRig(Rig):
        async def write_log_starts(self) -> frozenset[Path]:
            failed = await super().write_log_starts()
            self.log.delete_records(20)
            return failed

    async with MovingRig(tmp_path) as rig:
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        rig.produce_segments(2)
        rig.log.delete_records(10)
        await rig.enforcer.run_once()
        # After a crash the log would begin at 10 again.
        assert rig.local_segments == [(10, 20), (20, 20)]
        await rig.enforcer.run_once()
        assert rig.local_segments == [(20, 20)]


@asynchronous
async def test_nothing_is_freed_in_a_folder_whose_checkpoint_was_not_written(
    tmp_path: Path,
) -> None:
    """Neither what is archived, nor what lies below a log start that a restart would take back."""
    full: set[Path] = set()

    class FillingRig(Rig):
        async def write_log_starts(self) -> frozenset[Path]:
            return frozenset(full) or await super().write_log_starts()

    async with FillingRig(tmp_path) as rig:
        full.add(rig.folder.parent)
        rig.produce_segments(2)
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        assert len(rig.local_segments) == 3
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        rig.log.delete_records(20)
        await rig.settle()
        assert len(rig.local_segments) == 3
        full.clear()
        await rig.settle()
        assert rig.local_segments == [(20, 20)]


@asynchronous
async def test_deleting_a_topic_empties_its_folder(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        info = load_topic_info(rig.store, TOPIC, TOPIC_ID)
        assert info is not None
        assert info.is_deleted
        assert len(rig.data_keys()) == 6, "readers have their grace time"
        assert rig.purged == []
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        assert rig.memory.keys() == []
        folder = topic_folder(TOPIC, TOPIC_ID)
        assert rig.memory.count_requests("abort_uploads", folder), "what is half uploaded goes too"


async def empty(rig: Rig, ask: Callable[[TopicInfo], None]) -> None:
    """A topic that had an archive has none; `ask` says so."""
    rig.produce_segments(3)
    await rig.settle()
    ask(rig.topic_info)
    await rig.manager.run_once()
    rig.pass_ms(GRACE_MS)
    await rig.manager.run_once()
    assert rig.memory.keys() == []


@pytest.mark.parametrize("name", ["00000000000000000030-1-{uuid}.log", "manifest.json"])
@asynchronous
async def test_what_comes_after_the_purge_goes_too_before_the_topic_is_forgotten(
    tmp_path: Path, name: str
) -> None:
    """An upload of a process that was killed may be on its way, in a proxy or in the store."""
    async with Rig(tmp_path) as rig:
        await empty(rig, rig.manager.delete_topic)
        folder = topic_folder(TOPIC, TOPIC_ID)
        rig.memory.put(f"{folder}0/{name.format(uuid=uuid.uuid4().hex)}", b"late")
        rig.pass_ms(2 * rig.tiering_config.copy_timeout_ms - 1)
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        assert rig.purged == [], "an upload may still come"
        rig.pass_ms(1)
        await rig.manager.run_once()
        assert rig.memory.keys() == []
        assert rig.purged == [rig.topic_info]


@asynchronous
async def test_a_topic_that_is_tiered_again_keeps_its_archive_when_late_uploads_are_due(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        await empty(rig, rig.manager.disable_topic)
        rig.manager.attach(rig.log, rig.topic_info, leader_epoch=rig.leader_epoch, is_new=True)
        rig.produce_segments(1)
        await rig.settle()
        archived = rig.memory.keys()
        assert archived
        rig.pass_ms(2 * rig.tiering_config.copy_timeout_ms)
        await rig.manager.run_once()
        assert rig.memory.keys() == archived


@asynchronous
async def test_an_interrupted_purge_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS)
        rig.memory.add_fault(
            Fault(operation="delete", error=TierUnavailable, moment=Timing.AFTER, times=1)
        )
        await rig.manager.run_once()
        assert 0 < len(rig.data_keys()) < 6, "it stopped in the middle"
        rig.attach = lambda: None  # type: ignore[method-assign]  # the topic is gone
        await rig.crash()
        await rig.manager.run_once()
        assert rig.memory.keys() == []


@asynchronous
async def test_a_copy_under_way_when_its_topic_is_deleted_leaves_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path, grace_ms=0) as rig:
        rig.produce_segments(1)
        gate = threading.Event()
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", gate=gate))
        running = asyncio.gather(rig.manager.run_once())
        while not rig.memory.count_requests("put", r"\.log$"):
            await asyncio.sleep(0.001)
        rig.manager.delete_topic(rig.topic_info)
        gate.set()
        await running
        rig.pass_ms(1)
        await rig.manager.run_once()
        assert rig.memory.keys() == []


@asynchronous
async def test_a_topic_s_objects_go_only_when_its_last_copy_has_ended(tmp_path: Path) -> None:
    """Else the end of the copy would lie in an empty folder, until that is looked at once more."""
    waits = asyncio.Event()
    wait_until_idle = PartitionTiering.wait_until_idle

    async def noted(self: PartitionTiering) -> None:
        waits.set()
        await wait_until_idle(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionTiering, "wait_until_idle", noted)
        async with Rig(tmp_path, grace_ms=0) as rig:
            rig.produce_segments(1)
            gate = threading.Event()
            rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", gate=gate))
            copying = asyncio.ensure_future(rig.manager.run_once())
            while not rig.memory.count_requests("put", r"\.meta$"):
                await asyncio.sleep(0.001)
            rig.manager.delete_topic(rig.topic_info)
            purging = asyncio.ensure_future(rig.manager.run_once())
            waiting = asyncio.ensure_future(waits.wait())
            await asyncio.wait({purging, waiting}, return_when=asyncio.FIRST_COMPLETED)
            is_done = purging.done()
            gate.set()
            waiting.cancel()
            await asyncio.gather(copying, purging)
            assert not is_done, "the copy was under way"
            assert rig.memory.keys() == []


@asynchronous
async def test_a_topic_that_is_deleted_during_a_copy_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is wrong with its files then is nobody's concern, and is not tried again."""
    async with Rig(tmp_path, grace_ms=0) as rig:
        rig.produce_segments(1)
        gate = threading.Event()
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.log$", gate=gate))
        copying = asyncio.ensure_future(rig.manager.run_once())
        while not rig.memory.count_requests("put", r"\.log$"):
            await asyncio.sleep(0.001)
        rig.manager.delete_topic(rig.topic_info)
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", error=AccessDenied))
        gate.set()
        await copying
        await rig.manager.run_once()
        assert "tiering does not succeed" not in caplog.text
        assert rig.memory.keys() == []


@asynchronous
async def test_a_deleted_topic_is_not_revived_by_a_broker_that_missed_it(tmp_path: Path) -> None:
    async with Rig(tmp_path / "a") as one:
        one.manager.delete_topic(one.topic_info)
        await one.manager.run_once()
        async with Rig(tmp_path / "b", store=one.store) as other:
            other.produce_segments(1)
            await other.manager.run_once()
            assert other.data_keys() == []


# --- retention over both tiers -------------------------------------------------------------------


@asynchronous
async def test_total_retention_by_age_deletes_in_the_archive(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.configure(retention_ms=10_000)
        rig.produce_segments(1)
        rig.pass_ms(8000)
        rig.produce_segments(1)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        rig.pass_ms(3000)
        await rig.settle()
        assert rig.archived == [(10, 20)]
        assert rig.log.log_start_offset == 10
        rig.pass_ms(8000)
        await rig.settle()
        assert rig.archived == []
        assert rig.log.log_start_offset == 20
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        assert rig.data_keys() == []


@pytest.mark.parametrize("local_goes_first", [False, True])
@asynchronous
async def test_total_retention_by_size_counts_both_tiers_once(
    tmp_path: Path, local_goes_first: bool
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(4)
        await rig.settle()
        segment_bytes = len(rig.sent[0])
        if local_goes_first:
            # Then less of what is kept is in both than in one: counted twice, it would be cut.
            rig.configure(local_retention_bytes=segment_bytes)
            await rig.settle()
            assert rig.local_segments == [(30, 40), (40, 40)]
        rig.configure(retention_bytes=2 * segment_bytes, local_retention_bytes=segment_bytes)
        await rig.settle()
        assert rig.archived == [(20, 30), (30, 40)]
        assert rig.local_segments == [(30, 40), (40, 40)]


@asynchronous
async def test_expired_segments_that_are_not_archived_yet_are_kept(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.configure(retention_ms=10_000)
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        rig.produce_segments(2)
        rig.pass_ms(100_000)
        await rig.settle()
        assert rig.log.log_start_offset == 0
        assert rig.local_segments[0] == (0, 10)


@asynchronous
async def test_a_log_in_one_tier_is_cut_by_its_retention(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.configure(remote_storage_enable=False, retention_ms=10_000)
        rig.produce_segments(2)
        rig.pass_ms(10_009)
        rig.produce_segments(1)
        await rig.settle()
        assert rig.log.log_start_offset == 20
        assert rig.local_segments == [(20, 30), (30, 30)]
        assert rig.memory.count_requests("put") == 0


@pytest.mark.parametrize("is_tiered", [True, False])
@asynchronous
async def test_a_log_that_is_only_compacted_loses_nothing_to_the_limits_of_the_whole_log(
    tmp_path: Path, is_tiered: bool
) -> None:
    config = replace(CONFIG, remote_storage_enable=is_tiered)
    async with Rig(tmp_path, config=config) as rig:
        rig.produce_segments(3)
        rig.configure(cleanup_policy=("compact",), retention_ms=1000, retention_bytes=1)
        for _ in range(2):
            rig.pass_ms(5000)
            await rig.settle()
        assert rig.log.log_start_offset == 0
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_clock_that_jumps_forward_deletes_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.configure(retention_ms=10_000)
        rig.produce_segments(2)
        await rig.settle()
        rig.clock._now_ms += 10 * 365 * 86_400_000
        await rig.settle()
        assert rig.log.log_start_offset == 0
        assert rig.local_segments[0] == (0, 10)


@pytest.mark.parametrize("is_tiered", [True, False])
@asynchronous
async def test_the_lineage_begins_with_the_log_however_often_the_broker_was_started(
    tmp_path: Path, is_tiered: bool
) -> None:
    config = replace(CONFIG, remote_storage_enable=is_tiered)
    async with Rig(tmp_path, config=config) as rig:
        for _ in range(12):
            rig.produce_segments(1)
            await rig.settle()
            rig.log.delete_records(rig.log.end_offset - 10)
            await rig.settle()
            await rig.crash()
            starts = rig.log.local.leader_epochs.starts
            assert len(starts) <= 2, starts
            assert starts[0].start_offset >= rig.log.log_start_offset
        assert tuple(rig.log.offset_for_epoch(1)) == (1, starts[0].start_offset)
