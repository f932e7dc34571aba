"""Copying, freeing, deleting and coming back, on a store in memory that fails as told."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from strandline.storage.errors import (
    AccessDenied,
    ObjectNotFound,
    OffsetOutOfRange,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.manifest_store import load
from strandline.storage.remote.memory import Fault, Moment
from strandline.storage.remote.topic_info import load_topic_info
from strandline.storage.tiering.crash_points import (
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
from tests.unit.tiering.harness import (
    CONFIG,
    GRACE_MS,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    Rig,
    asynchronous,
    keys_of,
)

# --- the plain way ----------------------------------------------------------------------------


@asynchronous
async def test_closed_segments_are_archived_freed_and_read_back(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        rig.produce()
        rig.pass_ms(500)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20), (20, 30)]
        assert rig.local_segments == [(0, 10), (10, 20), (20, 30), (30, 40)]
        rig.pass_ms(1000)
        await rig.settle()
        assert rig.local_segments[0] == (30, 40)
        assert rig.log.local_start_offset == 30
        assert rig.log.log_start_offset == 0
        await rig.assert_everything_is_readable()


@asynchronous
async def test_the_archive_holds_the_segment_byte_for_byte(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce()
        rig.produce()
        rig.roll()
        await rig.settle()
        manifest = rig.manifest
        assert manifest is not None
        (entry,) = manifest.segments
        assert rig.store.get(entry.log_key) == b"".join(rig.sent)
        assert (entry.record_count, entry.size_bytes) == (20, sum(map(len, rig.sent)))
        info = load_topic_info(rig.store, TOPIC, TOPIC_ID)
        assert info == rig.topic_info


@asynchronous
async def test_an_idle_active_segment_is_rolled_when_it_outlives_local_retention(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce()
        rig.pass_ms(999)
        await rig.settle()
        assert rig.archived == []
        rig.pass_ms(1000)
        await rig.settle()
        assert rig.archived == [(0, 10)]
        await rig.settle()
        assert rig.local_segments == [(10, 10)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_old_timestamps_do_not_cut_a_segment_at_each_round(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for _ in range(5):
            rig.produce(timestamp_ms=1_357_000_000_000)
            rig.pass_ms(100)
            await rig.settle()
        assert rig.local_segments == [(0, 50)]


@asynchronous
async def test_while_the_archive_lags_no_further_small_segments_are_cut(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        for _ in range(5):
            rig.produce()
            rig.pass_ms(2000)
            await rig.settle()
        assert len(rig.local_segments) == 2
        rig.memory.clear_faults()
        rig.pass_ms(60_000)
        await rig.settle()
        assert rig.archived[-1][1] == 50


@asynchronous
async def test_statistics_say_what_lies_where_and_why(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        rig.produce()
        row = rig.statistics
        assert row.copy_lag_segments == 2
        assert [segment.reason for segment in row.pending] == [
            "next to be copied",
            "waits for earlier segments of the partition",
            "still being written",
        ]
        await rig.settle()
        row = rig.statistics
        assert (row.copy_lag_segments, row.remote_segments, row.local_segments) == (0, 2, 3)
        assert row.remote_bytes == sum(map(len, rig.sent[:2]))
        assert row.remote_end_offset == 20
        sizes = rig.log.tier_sizes
        assert sizes.total_bytes == sum(map(len, rig.sent)) == sizes.local_bytes


@asynchronous
async def test_copying_can_be_disabled_and_what_is_archived_stays_readable(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.configure(remote_log_copy_disable=True)
        rig.produce_segments(1)
        rig.pass_ms(10_000)
        await rig.settle()
        assert rig.archived == [(0, 10)]
        assert rig.reasons[0] == "remote.log.copy.disable is true"
        assert rig.local_segments[0] == (10, 20)
        await rig.assert_everything_is_readable()


# --- the store fails ----------------------------------------------------------------------------


@asynchronous
async def test_with_the_store_away_nothing_is_freed_and_copying_resumes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        rig.pass_ms(2000)
        await rig.settle()
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        with caplog.at_level(logging.WARNING):
            for _ in range(10):
                rig.produce_segments(1)
                rig.pass_ms(2000)
                await rig.settle()
        assert rig.log.end_offset == 110
        assert rig.local_segments[0] == (10, 20)
        assert rig.log.read(10, bytes_max=1000) is not None
        warned = [r for r in caplog.records if "does not succeed" in r.message]
        assert len(warned) <= 2, "once per change of the reason"
        assert "attempt" in rig.reasons[0]
        assert rig.statistics.copy_failure is not None
        rig.memory.clear_faults()
        with caplog.at_level(logging.INFO):
            rig.pass_ms(30_000)
            await rig.settle()
        assert any("succeeds again" in r.message for r in caplog.records)
        assert rig.archived[-1] == (100, 110)
        assert rig.statistics.copy_failure is None
        await rig.settle()
        assert rig.local_segments == [(110, 110)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_an_outage_costs_one_small_request_each_few_seconds(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        rig.memory.requests.clear()
        for _ in range(600):
            rig.pass_ms(500)
            await rig.manager.run_once()
        # 300 s: after 0.5, 1, 2, 4 and then each 5 s.
        assert 55 <= rig.memory.count_requests("check") <= 65
        assert rig.memory.count_requests("put|get|head") <= 2


@asynchronous
async def test_waits_after_other_failures_grow_and_are_bounded(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        rig.memory.add_fault(
            Fault(operation="put", key_pattern=r"\.log$", error=AccessDenied, times=-1)
        )
        for _ in range(600):
            rig.pass_ms(500)
            await rig.manager.run_once()
        # 300 s: 0.5 + 1 + 2 + 4 + 8 + 16, then one attempt each 30 s.
        assert 14 <= rig.memory.count_requests("put", r"\.log$") <= 17


@pytest.mark.parametrize("error", [TierUnavailable, AccessDenied])
@pytest.mark.parametrize(
    ("operation", "pattern"),
    [("put", r"\.log$"), ("put", r"\.meta$"), ("head", ""), ("put", "topic.json"), ("get", "")],
)
@asynchronous
async def test_any_failed_request_is_repeated_until_the_segment_is_archived(
    tmp_path: Path, operation: str, pattern: str, error: type[TierError]
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        rig.memory.add_fault(Fault(operation=operation, key_pattern=pattern, error=error, times=2))
        for _ in range(4):
            await rig.settle()
            rig.pass_ms(5000)
        assert rig.archived == [(0, 10), (10, 20)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_failed_copy_cleans_up_after_itself(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", error=AccessDenied))
        await rig.manager.run_once()
        assert rig.data_keys() == []


@asynchronous
async def test_a_copy_that_arrived_damaged_is_not_committed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        rig.pass_ms(5000)
        rig.memory.add_fault(Fault(operation="head", error=ObjectNotFound, key_pattern=r"\.log$"))
        await rig.settle()
        assert rig.archived == []
        assert rig.local_segments[0] == (0, 10)


@asynchronous
async def test_a_damaged_local_segment_is_never_archived(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        path = rig.log.local.segments[0].log_path
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.archived == []
        assert rig.data_keys() == []
        assert "checksum" in rig.reasons[0]
        assert len(rig.local_segments) == 3


@asynchronous
async def test_a_lost_answer_to_the_commit_is_no_lost_segment(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        rig.memory.add_fault(
            Fault(
                operation="put",
                key_pattern=r"manifest\.json$",
                error=TierUnavailable,
                moment=Moment.AFTER,
            )
        )
        await rig.settle()
        rig.pass_ms(1000)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        assert set(rig.data_keys()) == keys_of(rig.manifest)


@asynchronous
async def test_a_commit_of_unknown_outcome_is_repeated_without_a_second_upload(
    tmp_path: Path,
) -> None:
    """The commit fails, and so does asking what became of it."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        for operation in ("put", "get"):
            rig.memory.add_fault(
                Fault(operation=operation, key_pattern=r"manifest\.json$", error=TierUnavailable)
            )
        await rig.manager.run_once()
        assert rig.archived == []
        rig.pass_ms(1000)
        await rig.manager.run_once()
        assert rig.archived == [(0, 10)]
        assert rig.memory.count_requests("put", r"\.log$") == 1
        assert set(rig.data_keys()) == keys_of(rig.manifest)


@asynchronous
async def test_a_commit_that_went_through_unnoticed_is_recognised(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        manifest = r"manifest\.json$"
        rig.memory.add_fault(
            Fault(operation="put", key_pattern=manifest, error=TierUnavailable, moment=Moment.AFTER)
        )
        rig.memory.add_fault(Fault(operation="get", key_pattern=manifest, error=TierUnavailable))
        await rig.manager.run_once()
        assert rig.log.highest_remote_offset == -1
        rig.pass_ms(1000)
        await rig.manager.run_once()
        assert rig.log.highest_remote_offset == 9
        assert rig.memory.count_requests("put", r"\.log$") == 1


@asynchronous
async def test_a_copy_that_missed_its_deadline_is_not_committed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        gate = threading.Event()
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", gate=gate))

        async def be_late() -> None:
            while not rig.memory.count_requests("put", r"\.log$"):
                await asyncio.sleep(0.001)
            rig.pass_ms(rig.tiering_config.copy_timeout_ms + 1)
            gate.set()

        await asyncio.gather(rig.manager.run_once(), be_late())
        assert rig.archived == []
        rig.pass_ms(1000)
        await rig.manager.run_once()
        assert rig.archived == [(0, 10)]


# --- crashes -----------------------------------------------------------------------------------


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
        assert rig.memory.count_requests("put") == puts
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


# --- two owners --------------------------------------------------------------------------------


@asynchronous
async def test_a_newer_leader_fences_the_older_one(tmp_path: Path) -> None:
    async with Rig(tmp_path / "old", leader_epoch=5) as old:
        old.produce_segments(1)
        await old.settle()
        async with Rig(tmp_path / "new", store=old.store, leader_epoch=6) as new:
            assert new.log.end_offset == 10, "it begins where the archive ends"
            new.produce_segments(1)
            await new.settle()
            assert new.archived == [(0, 10), (10, 20)]
        old.produce_segments(2)
        for _ in range(3):
            await old.settle()
            old.pass_ms(5000)
        assert old.archived == [(0, 10), (10, 20)]
        assert "another broker owns" in old.reasons[0]
        assert old.local_segments[-2] == (20, 30), "nothing that only it has is freed"


# --- deleting ----------------------------------------------------------------------------------


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
        assert rig.purged == [rig.topic_info]


@asynchronous
async def test_an_interrupted_purge_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS)
        rig.memory.add_fault(
            Fault(operation="delete", error=TierUnavailable, moment=Moment.AFTER, times=1)
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
async def test_a_deleted_topic_is_not_revived_by_a_broker_that_missed_it(tmp_path: Path) -> None:
    async with Rig(tmp_path / "a") as one:
        one.manager.delete_topic(one.topic_info)
        await one.manager.run_once()
        async with Rig(tmp_path / "b", store=one.store) as other:
            other.produce_segments(1)
            await other.manager.run_once()
            assert other.data_keys() == []


# --- retention over both tiers -----------------------------------------------------------------


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


@asynchronous
async def test_total_retention_by_size_counts_both_tiers_once(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(4)
        await rig.settle()
        segment_bytes = len(rig.sent[0])
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


# --- finding -----------------------------------------------------------------------------------


@asynchronous
async def test_records_are_found_by_time_over_both_tiers(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for start_ms in (1000, 3000, 2000, 4000):
            rig.produce(timestamp_ms=start_ms)
            rig.roll()
        rig.produce(timestamp_ms=5000)
        rig.configure(local_retention_ms=-1)
        await rig.settle()
        freed = rig.log.free_segments(30)
        assert len(freed) == 3
        expected = {
            0: 0,
            1003: 3,
            1010: 10,
            3009: 19,
            3010: 30,
            4005: 35,
            4010: 40,
            5009: 49,
        }
        for timestamp_ms, offset in expected.items():
            found = await rig.log.find_timestamp(timestamp_ms)
            assert found is not None
            assert found.offset == offset, timestamp_ms
        assert await rig.log.find_timestamp(5010) is None
        rig.log.delete_records(5)
        found = await rig.log.find_timestamp(0)
        assert found is not None
        assert found.offset == 5
        highest = await rig.log.max_timestamp()
        assert highest is not None
        assert (highest.timestamp_ms, highest.offset) == (5009, 49)
        assert rig.log.earliest_pending_upload == 40


@asynchronous
async def test_offsets_outside_the_log_are_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.settle()
        with pytest.raises(OffsetOutOfRange):
            rig.log.read(21, bytes_max=100)
        with pytest.raises(OffsetOutOfRange):
            rig.log.read(-1, bytes_max=100)
        with pytest.raises(OffsetOutOfRange):
            rig.log.delete_records(21)
        with pytest.raises(OffsetOutOfRange):
            rig.log.delete_records(-2)
        assert rig.log.delete_records(-1) == 20


@asynchronous
async def test_every_commit_of_the_manifest_raises_its_revision(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        seen = []
        for _ in range(3):
            rig.produce_segments(1)
            await rig.settle()
            manifest = rig.manifest
            assert manifest is not None
            seen.append(manifest.revision)
        assert seen == sorted(set(seen))
        assert load is not None
        assert rig.statistics.topic_partition == PARTITION
