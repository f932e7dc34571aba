"""Crashes, restarts and lost disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.crash_points import (
    COPY_AFTER_COMMIT,
    COPY_AFTER_LOG,
    COPY_AFTER_META,
    COPY_BEFORE_COMMIT,
    DELETE_AFTER_LOG_START,
    DELETE_AFTER_MARK,
    DELETE_AFTER_OBJECTS,
    DELETE_BEFORE_LOCAL,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import (
    AccessDenied,
    ObjectNotFound,
    TierUnavailable,
)
from strandline.storage.records.batch.record import Record, encode_batch
from tests.support.lone_replica import append_alone
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import (
    GRACE_MS,
    Rig,
    asynchronous,
    keys_of,
)

# --- crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [COPY_AFTER_LOG, COPY_AFTER_META, COPY_BEFORE_COMMIT, COPY_AFTER_COMMIT, DELETE_BEFORE_LOCAL],
)
@asynchronous
async def test_a_crash_while_copying_loses_nothing_and_doubles_nothing(
    tmp_path: Path, point: str
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        rig.produce()
        rig.pass_ms(5000)
        with simulated_crash(point), pytest.raises(SimulatedCrash):
            await rig.settle()
        committed_before = keys_of(rig.manifest)
        uploads_before = rig.memory.count_requests("put", r"\.log$")
        await rig.crash()
        await rig.settle()
        assert rig.archived[:2] == [(0, 10), (10, 20)]
        await rig.assert_everything_is_readable()
        manifest = rig.manifest
        assert keys_of(manifest) >= committed_before, "keys are never replaced"
        uploads = rig.memory.count_requests("put", r"\.log$") - uploads_before
        assert uploads == len(rig.archived) - len(committed_before) // 2, "none is copied again"


async def crash_in_the_end(rig: Rig) -> None:
    """Settles before and after the grace time; one of them crashes."""
    try:
        await rig.settle()
        rig.pass_ms(GRACE_MS)
        await rig.settle()
    except SimulatedCrash:
        return
    pytest.fail("nothing crashed")


@pytest.mark.parametrize("point", [DELETE_AFTER_LOG_START, DELETE_AFTER_MARK, DELETE_AFTER_OBJECTS])
@asynchronous
async def test_a_crash_while_deleting_is_resumed(tmp_path: Path, point: str) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        rig.pass_ms(5000)
        await rig.settle()
        rig.log.delete_records(20)
        with simulated_crash(point):
            await crash_in_the_end(rig)
        await rig.crash()
        assert rig.log.log_start_offset == 20, "the manifest has it"
        await rig.settle()
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        assert rig.archived == [(20, 30)]
        assert set(rig.data_keys()) == keys_of(rig.manifest)
        manifest = rig.manifest
        assert manifest is not None
        assert manifest.deleting == ()
        assert await rig.read_all() == rig.sent[2]


@asynchronous
async def test_a_restart_copies_nothing_again(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        puts = rig.memory.count_requests("put")
        await rig.crash()
        await rig.settle()
        # Nothing but the claim: there is nothing on this disk that the archive has not.
        assert rig.memory.count_requests("put") == puts + 1
        manifest = rig.manifest
        assert manifest is not None
        assert manifest.leader_epoch == rig.leader_epoch
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.local_segments == [(30, 30)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_the_log_start_after_a_restart_is_the_higher_of_both(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(4)
        await rig.settle()
        rig.log.delete_records(10)
        await rig.manager.run_once()
        rig.log.delete_records(20)
        await rig.write_log_starts()
        await rig.crash()
        assert rig.log.log_start_offset == 20, "the checkpoint was ahead"
        await rig.manager.run_once()
        rig.checkpoint_path.unlink()
        await rig.crash()
        assert rig.log.log_start_offset == 20, "the manifest is all there is"


@asynchronous
async def test_a_lost_disk_is_replaced_by_the_archive(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        rig.pass_ms(5000)
        await rig.settle()
        epochs = rig.log.local.leader_epochs.starts
        await rig.lose_disk()
        assert rig.log.end_offset == 30
        assert rig.log.log_start_offset == 0
        assert rig.log.local.leader_epochs.starts == epochs
        rig.produce()
        await rig.assert_everything_is_readable()
        rig.roll()
        await rig.settle()
        assert rig.archived[-1] == (30, 40)


@asynchronous
async def test_retention_waits_for_a_lost_disk_that_cannot_be_begun_anew_yet(
    tmp_path: Path,
) -> None:
    """A log start beyond the end of the log would have ended the round of all other logs."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        unreadable = Fault(operation="get", key_pattern=r"\.meta$", error=AccessDenied, times=-1)
        rig.memory.add_fault(unreadable)
        await rig.lose_disk()
        rig.configure(retention_ms=1000)
        rig.pass_ms(GRACE_MS)
        await rig.enforcer.run_once()
        assert (rig.log.log_start_offset, rig.log.end_offset) == (0, 0)
        rig.memory.clear_faults()
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        assert (rig.log.log_start_offset, rig.log.end_offset) == (30, 30)


@asynchronous
async def test_a_lost_disk_gives_no_offset_that_was_deleted_though_it_was_never_archived(
    tmp_path: Path,
) -> None:
    """Nobody could read what is written below the log start."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.produce(20)
        rig.log.delete_records(25)
        with simulated_crash(DELETE_AFTER_LOG_START), pytest.raises(SimulatedCrash):
            await rig.manager.run_once()
        assert rig.archived == [(0, 10)], "what lies below the log start is still named"
        await rig.lose_disk()
        assert (rig.log.log_start_offset, rig.log.end_offset) == (25, 25)
        rig.produce()
        assert await rig.read_all() == rig.sent[-1]


@asynchronous
async def test_a_producer_goes_on_where_it_was_when_the_disk_is_lost(tmp_path: Path) -> None:
    """What it sends once more is answered with the offset that it has in the archive."""
    async with Rig(tmp_path) as rig:
        rig.produce()
        record = Record(offset=0, timestamp_ms=rig.clock.now_ms(), key=None, value=b"once")
        batch = encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=0)
        sent = append_alone(rig.log, memoryview(bytearray(batch)), leader_epoch=rig.leader_epoch)
        rig.roll()
        await rig.settle()
        await rig.lose_disk()
        again = append_alone(rig.log, memoryview(bytearray(batch)), leader_epoch=rig.leader_epoch)
        assert (again.duplicate, again.base_offset) == (True, sent.base_offset)
        assert rig.log.end_offset == 11


@asynchronous
async def test_an_empty_disk_gives_no_offsets_before_the_archive_is_known(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.settle()
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        await rig.lose_disk()
        with pytest.raises(TierUnavailable):
            rig.produce()
        rig.memory.clear_faults()
        rig.pass_ms(60_000)
        await rig.settle()
        rig.produce()
        assert rig.log.end_offset == 30


@asynchronous
async def test_hot_data_are_served_and_cold_data_wait_while_the_store_is_away_at_start(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        rig.pass_ms(5000)
        await rig.settle()
        rig.produce()
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        await rig.crash()
        assert rig.log.read(20, bytes_max=1000) is not None
        assert rig.log.read(0, bytes_max=1000) is None, "not out of range: nobody knows yet"
        with pytest.raises(TierUnavailable):
            await rig.log.read_remote(0, bytes_max=1000)
        rig.produce()
        rig.memory.clear_faults()
        rig.pass_ms(60_000)
        await rig.settle()
        await rig.assert_everything_is_readable()


@asynchronous
async def test_an_emptied_bucket_is_noticed_and_not_taken_for_a_fresh_start(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        rig.pass_ms(5000)
        await rig.settle()
        await rig.write_log_starts()
        rig.produce_segments(1)
        rig.store.delete([info.key for info in rig.store.list("")])
        await rig.crash()
        await rig.settle()
        assert rig.log.log_start_offset == 0
        assert rig.archived == []
        assert "missing" in rig.reasons[0]
        with pytest.raises(ObjectNotFound):
            await rig.log.read_remote(0, bytes_max=1000)
