"""Merges of small segments, which readers do not notice."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

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
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.records.txn_index import decode_entries
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.segment.meta import Section, read_section
from strandline.storage.tiering.audit.orphans import compare, delete_orphans
from strandline.storage.tiering.rewrite.merging import (
    RUN_SEGMENTS_ENOUGH,
    RUN_SEGMENTS_MAX,
    choose_run,
)
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.storage.remote.manifests import manifest_of
from tests.unit.storage.tiering.harness import GRACE_MS, Rig, asynchronous, keys_of
from tests.unit.storage.tiering.transactional_producer import Producer

# Three segments of one batch each make half of it.
TARGET_BYTES = 800


def sizes(*values: int) -> list[tuple[int, int]]:
    return [
        (entry.base_offset, entry.end_offset)
        for entry in choose_run(manifest_of(values), target_bytes=100)
    ]


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
    run = choose_run(manifest_of([1] * (RUN_SEGMENTS_MAX + 50)), target_bytes=1_000_000)
    assert len(run) == RUN_SEGMENTS_MAX


def test_segments_below_the_log_start_are_left_to_the_deletion() -> None:
    manifest = manifest_of([40, 40, 40]).with_log_start(15)
    run = choose_run(manifest, target_bytes=100)
    assert [entry.base_offset for entry in run] == [10, 20]


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
