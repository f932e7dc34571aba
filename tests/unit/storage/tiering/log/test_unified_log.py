"""Copying, freeing and finding, when nothing goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.errors import (
    OffsetOutOfRange,
    TierUnavailable,
)
from strandline.storage.local.log.log import LocalLog
from strandline.storage.remote.manifest.store import load
from strandline.storage.remote.manifest.topic_info import load_topic_info
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import (
    PARTITION,
    TOPIC,
    TOPIC_ID,
    Rig,
    asynchronous,
)

# --- the plain way -------------------------------------------------------------------------------


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
        assert (row.copy_lag_segments, row.remote_segments) == (0, 2)
        assert len(rig.local_segments) == 3
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
        # Nobody waits for it: no lag, as in Kafka, and no alarm because of one.
        assert (rig.statistics.copy_lag_segments, rig.statistics.copy_lag_bytes) == (0, 0)
        assert rig.local_segments[0] == (10, 20)
        await rig.assert_everything_is_readable()


# --- finding -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("second_ms", "third_ms", "local_ms", "latest"),
    [
        (2000, 4000, 1000, (4009, 29)),
        (5000, 4000, 1000, (5009, 19)),
        (4000, 4000, 4000, (4009, 19)),
        (2000, 1000, 3000, (3009, 39)),
    ],
)
def test_a_deleted_record_is_not_the_latest_of_the_archive(
    tmp_path: Path, second_ms: int, third_ms: int, local_ms: int, latest: tuple[int, int]
) -> None:
    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path) as rig:
            rig.produce(timestamp_ms=9000)
            rig.produce(timestamp_ms=second_ms)
            rig.roll()
            rig.produce(timestamp_ms=third_ms)
            rig.roll()
            rig.produce(timestamp_ms=local_ms)
            rig.configure(local_retention_ms=-1)
            await rig.settle()
            rig.log.free_segments(30)
            rig.log.delete_records(10)
            found = await rig.log.max_timestamp()
            assert found is not None
            assert (found.timestamp_ms, found.offset) == latest

    run()


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


@asynchronous
async def test_what_is_pending_begins_at_the_log_start_where_that_is_behind_the_archive(
    tmp_path: Path,
) -> None:
    """ListOffsets -6: what was deleted before it was copied is pending no more."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.memory.add_fault(Fault(operation="put", error=TierUnavailable, times=-1))
        rig.produce_segments(3)
        assert rig.log.earliest_pending_upload == 10
        rig.log.delete_records(25)
        assert (rig.log.highest_remote_offset, rig.log.earliest_pending_upload) == (9, 25)


@asynchronous
async def test_what_is_pending_is_not_known_before_the_archive_is(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        assert (rig.log.highest_remote_offset, rig.log.earliest_pending_upload) == (-1, 0)
        rig.produce_segments(3)
        rig.pass_ms(5000)
        await rig.settle()
        assert (rig.log.highest_remote_offset, rig.log.earliest_pending_upload) == (29, 30)
        rig.memory.add_fault(Fault(operation="get", error=TierUnavailable, times=-1))
        await rig.crash()
        assert rig.log.local_start_offset > rig.log.log_start_offset
        assert (rig.log.highest_remote_offset, rig.log.earliest_pending_upload) == (-1, -1)


@asynchronous
async def test_a_closed_segment_is_copied_when_its_copy_lag_is_over(tmp_path: Path) -> None:
    """KIP-1241: what is kept locally anyway need not be in the archive as well."""
    async with Rig(tmp_path) as rig:
        rig.configure(
            local_retention_ms=60_000, local_retention_bytes=-1, remote_copy_lag_ms=30_000
        )
        rig.produce_segments(2)
        # A record of the future would not wait.
        rig.pass_ms(100)
        await rig.settle()
        assert rig.archived == []
        assert rig.reasons[0] == "waits for remote.copy.lag.ms or remote.copy.lag.bytes"
        rig.pass_ms(30_000)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        # In the archive, and still here.
        assert rig.local_segments[0] == (0, 10)
        await rig.assert_everything_is_readable()


@asynchronous
async def test_what_is_altered_while_a_log_is_opened_anew_holds_for_the_new_one(
    tmp_path: Path,
) -> None:
    """A folder that comes back, or another one that the log moved to, may take minutes to open."""
    async with Rig(tmp_path) as rig:
        old = rig.log.local
        opened = LocalLog.open(
            rig.folder,
            topic_partition=PARTITION,
            topic_id=TOPIC_ID,
            config=old.config,
            clock=rig.clock,
            recovery_point=0,
            log_start_offset=0,
            clean_shutdown=False,
        )
        rig.configure(max_message_bytes=1000, segment_ms=7)
        rig.log.replace_local(opened)
        assert rig.log.local is opened
        assert rig.log.config is old.config
        assert opened.config.max_message_bytes == 1000
        rig.produce()
        last_ms = rig.clock.now_ms() + 9
        assert opened.active_segment.roll_timestamp_ms == last_ms + 7
