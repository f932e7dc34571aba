"""Merges of small segments, which readers do not notice."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from strandline.retention.policy import RetentionLimits, RetentionUnit, judge
from strandline.storage.config.definition import HOUR_MS
from strandline.storage.config.log_config import STORAGE_CLASSES, LogConfig
from strandline.storage.crash_points import (
    MERGE_AFTER_COMMIT,
    MERGE_AFTER_LOG,
    MERGE_AFTER_META,
    MERGE_BEFORE_COMMIT,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import ObjectArchived, ObjectNotFound, TierError
from strandline.storage.local.formats.producer_state import iter_snapshot
from strandline.storage.model import TimestampOffset
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.records.txn_index import decode_entries
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.segment.meta import Section, read_section
from strandline.storage.tiering.audit.orphans import compare, delete_orphans
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.rewrite.merging import (
    RUN_GROWTH,
    RUN_SEGMENTS_ENOUGH,
    RUN_SEGMENTS_MAX,
    MergeLimits,
    choose_run,
)
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.storage.remote.manifests import EMPTY, RECORDS, entry, manifest_of
from tests.unit.storage.tiering.harness import CONFIG, GRACE_MS, Rig, asynchronous, keys_of
from tests.unit.storage.tiering.transactional_producer import Producer

# Three segments of one batch each make half of it.
TARGET_BYTES = 800
DAY_MS = 24 * HOUR_MS


def chosen(manifest: Manifest, **limits: int) -> list[tuple[int, int]]:
    """The offsets of the run that would be merged."""
    run = choose_run(manifest, MergeLimits(**{"target_bytes": 100, **limits}))
    return [(entry.base_offset, entry.end_offset) for entry in run]


def sizes(*values: int) -> list[tuple[int, int]]:
    return chosen(manifest_of(values))


def test_a_run_is_merged_when_it_makes_half_the_target() -> None:
    assert sizes(10, 10, 10) == []
    assert sizes(10, 20, 25) == [(0, 10), (10, 20), (20, 30)]
    assert sizes(40, 40, 40) == [(0, 10), (10, 20)]


def test_large_segments_stay_and_end_a_run() -> None:
    assert sizes(50, 60, 100) == []
    assert sizes(30, 50, 30, 20) == [(20, 30), (30, 40)]


def test_dust_is_merged_when_there_is_enough_of_it() -> None:
    assert sizes(*[1] * (RUN_SEGMENTS_ENOUGH - 1)) == []
    assert len(sizes(*[1] * RUN_SEGMENTS_ENOUGH)) == RUN_SEGMENTS_ENOUGH


def test_a_run_has_a_bounded_number_of_segments_however_small_they_are() -> None:
    run = chosen(manifest_of([1] * (RUN_SEGMENTS_MAX + 50)), target_bytes=1_000_000)
    assert len(run) == RUN_SEGMENTS_MAX


def test_what_was_merged_waits_for_as_much_again_three_times() -> None:
    dust = [1] * RUN_SEGMENTS_ENOUGH
    merged, count = len(dust), len(dust)
    assert chosen(manifest_of([merged, *dust]), target_bytes=10_000) == [
        (10 * n, 10 * n + 10) for n in range(1, count + 1)
    ]
    grown = manifest_of([merged, *[1] * (RUN_GROWTH - 1) * merged])
    assert len(chosen(grown, target_bytes=10_000)) == 1 + (RUN_GROWTH - 1) * merged


def of_times(*times_ms: int, **changes: int) -> Manifest:
    """Segments of a byte, with records of these times and up to 9 ms later."""
    entries = (
        replace(entry(10 * n, 10 * n + 10, time_ms=time_ms, size_bytes=1), **changes)
        for n, time_ms in enumerate(times_ms)
    )
    return replace(EMPTY, segments=tuple(entries))


def test_what_is_merged_spans_no_more_than_retention_allows() -> None:
    times_ms = range(0, 2000, 100)
    assert len(chosen(of_times(*times_ms), span_ms_max=1609)) == 17
    assert len(chosen(of_times(*times_ms), span_ms_max=1509)) == 16
    assert chosen(of_times(*times_ms), span_ms_max=1508) == []
    backwards = of_times(*reversed(times_ms))
    assert len(chosen(backwards, span_ms_max=1609)) == 17
    assert chosen(backwards, span_ms_max=1508) == []


def test_segments_of_records_without_times_span_their_uploads() -> None:
    without = {"min_timestamp_ms": -1, "max_timestamp_ms": -1}
    assert len(chosen(of_times(*[0] * 16, **without), span_ms_max=0)) == 16
    # Of both kinds together, retention would take the former for as old as the latter.
    mixed = [*of_times(*[0] * 15, **without).segments, entry(150, 160, size_bytes=1)]
    assert chosen(replace(EMPTY, segments=tuple(mixed))) == []


def test_segments_are_left_alone_while_their_storage_class_charges_for_them() -> None:
    manifest = of_times(*[0] * 20)
    uploaded_ms = manifest.segments[0].uploaded_ms
    assert len(chosen(manifest, uploaded_until_ms=uploaded_ms)) == 20
    assert chosen(manifest, uploaded_until_ms=uploaded_ms - 1) == []


@pytest.mark.parametrize("storage_class", STORAGE_CLASSES)
def test_the_limits_of_a_merge_are_a_share_of_retention_and_the_class_s_minimum_duration(
    storage_class: str,
) -> None:
    config = LogConfig(
        retention_ms=80_000, retention_bytes=8_000, strandline_remote_storage_class=storage_class
    )
    days = {"STANDARD_IA": 30, "ONEZONE_IA": 30, "GLACIER_IR": 90}.get(storage_class)
    now_ms = 100 * DAY_MS
    limits = MergeLimits.of_topic(config, target_bytes=5_000, now_ms=now_ms)
    assert limits == MergeLimits(
        target_bytes=1_000,
        span_ms_max=10_000,
        uploaded_until_ms=None if days is None else now_ms - days * DAY_MS,
    )
    for unlimited in (
        replace(config, retention_ms=-1, retention_bytes=-1),
        replace(config, cleanup_policy=("compact",)),
    ):
        limits = MergeLimits.of_topic(unlimited, target_bytes=5_000, now_ms=now_ms)
        assert (limits.target_bytes, limits.span_ms_max) == (5_000, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """So many segments, closed by time, of a topic with this retention."""

    segments: int
    segment_ms: int
    segment_bytes: int
    retention_ms: int

    def __str__(self) -> str:
        return f"{self.segment_bytes}B-{self.segment_ms}ms-of-{self.retention_ms}ms"


CHECK_MS = 5 * 60_000
MIB = 1024 * 1024
WEEK_MS, YEAR_MS = 7 * DAY_MS, 365 * DAY_MS
FLOWS = [
    # 100 KB a day for a year, closed every hour or every week; for three days, every minute.
    Flow(segments=8760, segment_ms=HOUR_MS, segment_bytes=4_167, retention_ms=WEEK_MS),
    Flow(segments=52, segment_ms=WEEK_MS, segment_bytes=700_000, retention_ms=WEEK_MS),
    Flow(segments=4320, segment_ms=60_000, segment_bytes=70, retention_ms=DAY_MS),
    Flow(segments=2000, segment_ms=12 * HOUR_MS, segment_bytes=50_000, retention_ms=YEAR_MS),
    Flow(segments=4000, segment_ms=HOUR_MS, segment_bytes=4_167, retention_ms=-1),
    Flow(segments=1000, segment_ms=HOUR_MS, segment_bytes=2_000_000, retention_ms=-1),
    Flow(segments=1000, segment_ms=2_000, segment_bytes=5_000, retention_ms=60_000),
]


@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS, ids=str)
def test_no_record_outlives_its_retention_by_much_and_no_byte_is_merged_often(flow: Flow) -> None:
    config = LogConfig(retention_ms=flow.retention_ms)
    clock, archive = ManualClock(), Archive()
    outlived_ms_max = flow.retention_ms // 8 + flow.segment_ms + CHECK_MS
    offset, checked_ms = 0, clock.now_ms()
    for _ in range(flow.segments):
        began_ms = clock.now_ms()
        clock.advance_ms(flow.segment_ms)
        archive.add(offset, began_ms, clock.now_ms(), size_bytes=flow.segment_bytes)
        offset += RECORDS
        archive.merge(MergeLimits.of_topic(config, target_bytes=64 * MIB, now_ms=clock.now_ms()))
        if clock.now_ms() - checked_ms >= CHECK_MS:
            checked_ms = clock.now_ms()
            archive.expire(RetentionLimits.total(config), now_ms=clock.now_ms())
            if flow.retention_ms >= 0 and archive.manifest.segments:
                oldest_ms = archive.manifest.segments[0].min_timestamp_ms
                assert clock.now_ms() - oldest_ms <= flow.retention_ms + outlived_ms_max
    merges_max = 1 + math.log(64 * MIB / flow.segment_bytes, RUN_GROWTH)
    assert archive.merges_of_a_byte_max <= merges_max
    # And it is worth it: whatever was written so far lies in few objects.
    assert len(archive.manifest.segments) <= 250


class Archive:
    """A manifest whose segments are merged and deleted, and how often each byte was merged."""

    def __init__(self) -> None:
        self.manifest = EMPTY
        self._merges = Counter[int]()

    @property
    def merges_of_a_byte_max(self) -> int:
        return max(self._merges.values(), default=0)

    def add(self, offset: int, began_ms: int, ended_ms: int, *, size_bytes: int) -> None:
        added = replace(
            entry(offset, offset + RECORDS, size_bytes=size_bytes),
            min_timestamp_ms=began_ms,
            max_timestamp_ms=ended_ms,
            uploaded_ms=ended_ms,
        )
        self.manifest = self.manifest.with_segment(added)

    def merge(self, limits: MergeLimits) -> None:
        while run := choose_run(self.manifest, limits):
            merged = replace(
                run[0],
                end_offset=run[-1].end_offset,
                size_bytes=sum(e.size_bytes for e in run),
                max_timestamp_ms=max(e.max_timestamp_ms for e in run),
                log_key=f"{run[0].log_key}.{run[-1].end_offset}",
            )
            self._merges.update(range(merged.base_offset, merged.end_offset, RECORDS))
            self.manifest = replace(
                self.manifest.with_replacement(run, merged, marked_ms=0), deleting=()
            )

    def expire(self, limits: RetentionLimits, *, now_ms: int) -> None:
        entries = self.manifest.segments
        units = [RetentionUnit.archived(e) for e in entries]
        verdict = judge(
            units, limits, now_ms=now_ms, log_start_offset=self.manifest.log_start_offset
        )
        if verdict.end_offset is not None:
            gone = entries[: verdict.drop_count]
            moved = self.manifest.with_log_start(verdict.end_offset)
            self.manifest = replace(moved.with_deleting(gone, marked_ms=0), deleting=())


def test_segments_below_the_log_start_are_left_to_the_deletion() -> None:
    manifest = manifest_of([40, 40, 40]).with_log_start(15)
    assert chosen(manifest) == [(10, 20), (20, 30)]


@pytest.mark.slow
@asynchronous
async def test_a_merge_makes_no_record_outlive_its_retention(tmp_path: Path) -> None:
    """A segment of two seconds every two seconds, kept for a minute."""
    config = replace(CONFIG, retention_ms=60_000)
    async with Rig(tmp_path, config=config, merge_target_bytes=1 << 20) as rig:
        for _ in range(90):
            rig.produce()
            rig.roll()
            rig.pass_ms(2000)
            await rig.settle()
        (first, *_) = await rig.records()
        assert rig.clock.now_ms() - first.timestamp_ms <= 60_000 + 7_500 + 2_000


@asynchronous
async def test_retention_passes_old_records_of_a_segment_that_spans_too_much(
    tmp_path: Path,
) -> None:
    """It was merged before retention.ms was lowered, or by an older release."""
    async with Rig(tmp_path, merge_target_bytes=TARGET_BYTES) as rig:
        for _ in range(3):
            rig.produce()
            rig.roll()
            rig.pass_ms(10_000)
        await rig.settle()
        assert rig.archived == [(0, 30)]
        rig.configure(retention_ms=16_000, segment_ms=1_000)
        await rig.settle()
        # The object came just now: an eighth of the retention and a segment later it is its time.
        assert rig.log.log_start_offset == 0
        rig.pass_ms(3_000)
        await rig.settle()
        # The second batch's records are 23 s old, the last one's are 13 s old.
        assert rig.log.log_start_offset == 20
        assert [record.offset for record in await rig.records()] == list(range(20, 30))
        await rig.crash()
        await rig.settle()
        assert rig.log.log_start_offset == 20
        rig.pass_ms(3_100)
        await rig.settle()
        assert rig.archived == []


@asynchronous
async def test_retention_passes_no_young_segment_behind_one_that_spans_too_much(
    tmp_path: Path,
) -> None:
    """Records without a time are as old as their upload, wherever the next one with a time is."""
    config = replace(CONFIG, retention_ms=80_000, segment_ms=1_000)
    async with Rig(tmp_path, config=config) as rig:
        # The newest record of the first segment is deleted, the old ones behind it are not.
        rig.produce(1)
        rig.produce(4, timestamp_ms=rig.clock.now_ms() - 300_000)
        rig.roll()
        rig.produce(10, timestamp_ms=-100)
        rig.seal()
        rig.produce(10)
        rig.roll()
        rig.log.delete_records(2)
        await rig.settle()
        rig.pass_ms(12_000)
        await rig.settle()
        assert rig.log.log_start_offset == 5


@asynchronous
async def test_old_records_that_came_lately_stay_with_the_new_ones_of_their_segment(
    tmp_path: Path,
) -> None:
    """Their time is long ago, as in a backfill; Kafka keeps the segment."""
    async with Rig(tmp_path, config=replace(CONFIG, retention_ms=800_000)) as rig:
        rig.produce(timestamp_ms=rig.clock.now_ms() - 8_000_000)
        rig.produce()
        rig.configure(segment_ms=1_000)
        rig.roll()
        for _ in range(9):
            await rig.settle()
            rig.pass_ms(10_000)
        assert rig.log.log_start_offset == 0


@asynchronous
async def test_retention_that_is_raised_while_it_looks_into_a_segment_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce(5, timestamp_ms=rig.clock.now_ms() - 300_000)
        rig.produce(5)
        rig.roll()
        await rig.manager.run_once()
        rig.configure(retention_ms=80_000, segment_ms=1_000)
        rig.pass_ms(12_000)
        original = UnifiedLog.find_timestamp

        async def raised_meanwhile(log: UnifiedLog, timestamp_ms: int) -> TimestampOffset | None:
            rig.configure(retention_ms=400_000)
            return await original(log, timestamp_ms)

        monkeypatch.setattr(UnifiedLog, "find_timestamp", raised_meanwhile)
        await rig.settle()
        await rig.settle()
        assert rig.config.retention_ms == 400_000
        assert rig.log.log_start_offset == 0


@asynchronous
async def test_retention_looks_into_a_segment_a_few_times_in_the_life_of_its_records(
    tmp_path: Path,
) -> None:
    """A late record's time is far behind the others': nothing before it can go."""
    config = replace(CONFIG, retention_ms=800_000, segment_ms=1_000)
    async with Rig(tmp_path, config=config) as rig:
        rig.produce()
        rig.produce(timestamp_ms=rig.clock.now_ms() - 900_000)
        rig.roll()
        await rig.settle()
        looks = 0
        original = rig.log.find_timestamp

        async def counted(timestamp_ms: int) -> TimestampOffset | None:
            nonlocal looks
            looks += 1
            return await original(timestamp_ms)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(UnifiedLog, "find_timestamp", lambda _log, ms: counted(ms))
            for _ in range(79):
                rig.pass_ms(10_000)
                await rig.settle()
        assert rig.log.log_start_offset == 0
        assert looks == 7


@asynchronous
async def test_a_merge_makes_records_without_a_time_no_younger(tmp_path: Path) -> None:
    async with Rig(tmp_path, merge_target_bytes=TARGET_BYTES) as rig:
        for _ in range(3):
            rig.produce(timestamp_ms=-10)
            rig.roll()
        uploaded_ms = rig.clock.now_ms()
        await rig.manager.run_once()
        rig.pass_ms(1000)
        rig.produce_segments(1)
        await rig.settle()
        assert rig.manifest is not None
        merged = rig.manifest.segments[0]
        assert (merged.end_offset, merged.newest_ms) == (30, uploaded_ms)


@asynchronous
async def test_merged_segments_hold_the_same_bytes_and_the_old_objects_go(tmp_path: Path) -> None:
    async with Rig(tmp_path, merge_target_bytes=TARGET_BYTES) as rig:
        rig.produce_segments(9)
        rig.pass_ms(5000)
        await rig.settle()
        assert len(rig.archived) <= 4
        assert rig.archived[0][0] == 0
        assert rig.archived[-1][1] == 90
        rig.produce_segments(1)
        await rig.settle()
        await rig.assert_everything_is_readable()
        found = await rig.log.find_timestamp(rig.clock.now_ms() - 5000 + 5)
        assert found is not None
        assert found.offset == 5
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        assert set(rig.data_keys()) == keys_of(rig.manifest)
        rig.assert_archive_is_whole()
        await rig.lose_disk()
        await rig.assert_everything_is_readable()


def section_of(rig: Rig, entry: SegmentEntry, section: Section) -> bytes:
    found = read_section(rig.store, entry.meta_key, entry.meta_size_bytes, section)
    assert found is not None
    return found


@asynchronous
async def test_a_merged_segment_has_the_transactions_of_all_and_the_producers_of_the_last(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, merge_target_bytes=TARGET_BYTES) as rig:
        first, second = Producer(rig, 1), Producer(rig, 2)
        aborted = [first.send(), second.send()]
        first.end(MarkerType.ABORT)
        rig.roll()
        rig.produce(1)
        second.end(MarkerType.ABORT)
        rig.roll()
        first.send()
        first.end(MarkerType.COMMIT)
        rig.roll()
        await rig.settle()
        assert len(rig.archived) == 1
        assert rig.manifest is not None
        (entry,) = rig.manifest.segments
        found = decode_entries(section_of(rig, entry, Section.TXN_INDEX), source="")
        assert [t.first_offset for t in found] == aborted
        producers = iter_snapshot(section_of(rig, entry, Section.PRODUCER_SNAPSHOT))
        assert {p.producer_id: p.last_sequence for p in producers} == {1: 1, 2: 0}


@asynchronous
async def test_what_is_not_what_the_manifest_says_is_not_merged(tmp_path: Path) -> None:
    """A leader epoch is changed, which the CRC of its batch does not cover."""
    async with Rig(tmp_path, merge_target_bytes=TARGET_BYTES) as rig:
        rig.produce_segments(2)
        await rig.settle()
        assert len(rig.archived) == 2
        assert rig.manifest is not None
        damaged = rig.manifest.segments[0].log_key
        rig.memory.damage(damaged, lambda content: content[:15] + b"\x07" + content[16:])
        rig.produce_segments(1)
        await rig.settle()
        assert len(rig.archived) == 3
        failure = rig.statistics.merge_failure
        assert failure is not None
        assert damaged in str(failure)


@pytest.mark.parametrize("error", [ObjectArchived, ObjectNotFound])
@asynchronous
async def test_a_segment_that_cannot_be_read_keeps_no_others_from_being_merged(
    tmp_path: Path, error: type[TierError]
) -> None:
    """Uploaded into another class, or damaged: nothing here makes it readable."""
    async with Rig(tmp_path, merge_target_bytes=TARGET_BYTES) as rig:
        rig.produce_segments(1)
        await rig.settle()
        assert rig.manifest is not None
        key = rig.manifest.segments[0].log_key
        rig.memory.add_fault(Fault(operation="get", key_pattern=key, error=error, times=-1))
        rig.produce_segments(6)
        await rig.settle()
        failure = rig.statistics.merge_failure
        assert failure is not None
        assert failure.kind == error.__name__
        for _ in range(3):
            rig.pass_ms(60_000)
            await rig.settle()
        assert rig.statistics.merge_failure is None
        assert rig.manifest is not None
        assert (rig.manifest.segments[0].log_key, rig.archived[1][0]) == (key, 10)
        assert len(rig.archived) <= 3
        rig.memory.clear_faults()
        await rig.assert_everything_is_readable()


@pytest.mark.parametrize(
    "point", [MERGE_AFTER_LOG, MERGE_AFTER_META, MERGE_BEFORE_COMMIT, MERGE_AFTER_COMMIT]
)
def test_a_merge_that_dies_at_a_step_is_made_again_and_leaves_only_orphans(
    tmp_path: Path, point: str
) -> None:
    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path, merge_target_bytes=TARGET_BYTES) as rig:
            rig.produce_segments(5)
            with pytest.raises(SimulatedCrash), simulated_crash(point):
                await rig.settle()
            await rig.crash()
            await rig.assert_everything_is_readable()
            rig.pass_ms(5000)
            await rig.settle()
            assert len(rig.archived) <= 2
            rig.pass_ms(GRACE_MS)
            await rig.settle()
            await rig.assert_everything_is_readable()
            found = compare(rig.store, now_ms=rig.clock.now_ms(), grace_ms=0)
            expected = {MERGE_AFTER_LOG: 1, MERGE_AFTER_COMMIT: 0}.get(point, 2)
            assert (len(found.orphans), found.missing_keys) == (expected, ())
            delete_orphans(rig.store, found.orphans)
            assert set(rig.data_keys()) == keys_of(rig.manifest)
            await rig.lose_disk()
            await rig.assert_everything_is_readable()

    run()


def test_an_archive_that_is_not_merged_is_never_asked_for(tmp_path: Path) -> None:
    @asynchronous
    async def run() -> None:
        store = MemoryStore()
        async with Rig(tmp_path, store=store) as rig:
            rig.produce_segments(5)
            await rig.settle()
            assert len(rig.archived) == 5
            assert not any(r.operation == "get" and r.key.endswith(".log") for r in store.requests)

    run()


@asynchronous
async def test_without_room_to_merge_in_the_segments_stay_and_are_merged_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(tmp_path, merge_target_bytes=TARGET_BYTES) as rig:
        rig.produce_segments(9)
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
            await rig.settle()
            assert len(rig.archived) == 9
            failure = rig.statistics.merge_failure
            assert failure is not None
            assert failure.kind == "DiskError"
        rig.pass_ms(5000)
        await rig.settle()
        assert len(rig.archived) <= 4
        await rig.assert_everything_is_readable()
