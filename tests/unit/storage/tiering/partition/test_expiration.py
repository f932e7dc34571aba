"""Letting go: by hand, by retention, and whole topics."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.errors import (
    AccessDenied,
    OffsetOutOfRange,
    TierUnavailable,
)
from strandline.storage.tiering.partition import expiration
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import (
    CONFIG,
    GRACE_MS,
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
        found = rig.log.local.leader_epochs.end_offset_for(1, rig.log.end_offset)
        assert tuple(found) == (1, starts[0].start_offset)
