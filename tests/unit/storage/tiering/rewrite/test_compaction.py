"""Compacted logs in the archive: compacted before the copy, and in the archive."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.errors import OutOfResources
from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import Isolation, TopicIdPartition, TopicPartition
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.topic_info import TopicInfo
from strandline.storage.tiering.audit.orphans import compare, delete_orphans
from strandline.storage.tiering.log.unified_log import UnifiedLog
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import (
    COMPACTED,
    GRACE_MS,
    PARTITION,
    TOPIC,
    Rig,
    asynchronous,
    in_three_segments,
    keys_of,
)
from tests.unit.storage.tiering.slow_reader import DELETE_RETENTION_MS, SlowReader

# The last of the leader epoch of a log's first batch.
EPOCH_BYTE = 15


async def compacted_once(rig: Rig) -> None:
    """Segments with gaps at the ends, batches without records, and one segment without batches."""
    for round_number in range(3):
        for number in range(4):
            rig.put((b"a", b"%d" % number), (b"b", b"%d" % round_number))
        rig.put((b"only-%d" % round_number, b"x"))
        rig.put((b"a", b"last of %d" % round_number), (b"b", b"last"))
        rig.seal()
    rig.put((b"a", b"end"), (b"b", b"end"))
    rig.seal()


@asynchronous
async def test_a_log_that_was_compacted_is_archived_when_it_becomes_a_tiered_one(
    tmp_path: Path,
) -> None:
    config = replace(COMPACTED, remote_storage_enable=False, segment_bytes=300)
    async with Rig(tmp_path, config=config) as rig:
        await compacted_once(rig)
        assert await rig.clean() == 1
        sizes = [segment.size_bytes for segment in rig.log.local.segments]
        before = await rig.read_all(0)
        rig.configure(cleanup_policy=("delete",), remote_storage_enable=True)
        await rig.settle()
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.reasons == ["still being written"], rig.statistics
        assert rig.archived[0][0] == 0
        assert len(rig.local_segments) == 1
        assert 0 in sizes[:-1]
        assert await rig.read_all(0) == before
        ends = [batch.header for batch in walk(before)]
        for offset in range(rig.log.end_offset):
            found = await rig.log.read_remote(offset, bytes_max=1)
            first = next(walk(found.buffers[0])).header
            behind = [header for header in ends if header.last_offset >= offset]
            # What has no record may be passed over with its segment.
            passed = behind[: behind.index(first)]
            assert all(not header.record_count for header in passed)
        rig.assert_archive_is_whole()
        await rig.lose_disk()
        assert await rig.read_all(0) == before


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("is_archived", [False, True])
@asynchronous
async def test_a_reader_gets_no_row_of_answers_without_a_record_and_comes_to_the_end(
    tmp_path: Path, is_archived: bool, isolation: Isolation
) -> None:
    """Segments with nothing but the last batches of producers, in the middle and at the end."""
    config = replace(COMPACTED, segment_bytes=90)
    async with Rig(tmp_path, config=config) as rig:
        for turn in range(2):
            rig.put((b"kept-%d" % turn, b"x"))
            for producer_id in range(12):
                rig.put((b"a", b"%d" % producer_id), producer_id=100 * turn + producer_id)
                rig.put((b"a", b"again"))
        rig.put((b"a", b"end"))
        rig.seal()
        assert await rig.clean() == 1
        assert sum(segment.size_bytes == 61 for segment in rig.log.local.segments) > 20
        if is_archived:
            await rig.settle()
            rig.pass_ms(5000)
            await rig.settle()
            assert len(rig.local_segments) == 1
        offset, answers, found = 0, 0, []
        while offset < rig.log.end_offset:
            answers += 1
            content, offset = await rig.read(offset, isolation=isolation)
            found += [batch.header.record_count for batch in walk(content)]
        assert sum(found) == 3
        assert answers <= 6


@asynchronous
async def test_a_segment_is_archived_when_the_cleaner_is_done_with_it(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=COMPACTED) as rig:
        rig.put((b"a", b"1"), (b"b", b"1"))
        rig.put((b"a", b"2"))
        rig.seal()
        await rig.settle()
        assert rig.archived == []
        assert "waits for the cleaner" in rig.reasons[0]
        assert await rig.clean() == 1
        await rig.settle()
        assert rig.archived == [(0, 3)]
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.local_segments == [(3, 3)]
        assert [(r.key, r.value) for r in await rig.records()] == [(b"b", b"1"), (b"a", b"2")]
        rig.assert_archive_is_whole()


@asynchronous
async def test_what_is_archived_is_not_compacted_on_this_disk_once_more(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=COMPACTED) as rig:
        rig.put((b"a", b"1"), (b"b", b"1"))
        rig.seal()
        await rig.clean()
        rig.put((b"a", None), (b"c", b"1"))
        rig.seal()
        sizes = [segment.size_bytes for segment in rig.log.local.segments]
        assert await rig.clean() == 1
        # The first is clean, and about to be copied; the second got its delete horizon.
        assert rig.log.local.segments[0].size_bytes == sizes[0]
        await rig.settle()
        assert rig.archived[-1][1] == 4
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.local_segments == [(4, 4)]


@asynchronous
async def test_a_tombstone_stays_as_long_as_its_key_may_be_in_the_bucket(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=COMPACTED) as rig:
        rig.put((b"a", b"1"), (b"b", b"1"))
        rig.seal()
        await rig.clean()
        await rig.settle()
        rig.pass_ms(5000)
        await rig.settle()
        # With nothing copied any more, this disk's part is compacted again and again.
        rig.configure(remote_log_copy_disable=True)
        for key in (b"c", b"d"):
            rig.put((b"a", None), (key, b"1"))
            rig.seal()
            assert await rig.clean() == 1
            rig.pass_ms(20_000)
        assert rig.archived == [(0, 2)]
        assert [(r.key, r.value) for r in await rig.records(2)] == [
            (b"c", b"1"),
            (b"a", None),
            (b"d", b"1"),
        ]
        await rig.assert_nothing_is_lost()
        rig.put((b"e", b"1"))
        rig.seal()
        await rig.clean()
        assert any(r.key == b"a" for r in await rig.records(2))


COMPACT_POINTS = [point for point in CRASH_POINTS if point.startswith("compact.")]
SMALL_PAGES = {"root_entries_max": 3, "page_entries": 2}


@asynchronous
async def test_the_archive_is_compacted_when_newer_keys_came(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=COMPACTED) as rig:
        for value in (b"1", b"2", b"3"):
            rig.put((b"a", value), (b"b", value), (b"only-" + value, value))
            rig.seal()
            await rig.clean()
            await rig.settle()
        rig.pass_ms(5000)
        await rig.settle()
        assert len(rig.local_segments) == 1
        records = [(r.offset, r.key) for r in await rig.records()]
        assert records == [
            (2, b"only-1"),
            (5, b"only-2"),
            (6, b"a"),
            (7, b"b"),
            (8, b"only-3"),
        ]
        assert rig.archived == [(0, 9)]
        rig.assert_archive_is_whole()
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        assert set(rig.data_keys()) == keys_of(rig.manifest)
        await rig.lose_disk()
        assert [(r.offset, r.key) for r in await rig.records()] == records


@asynchronous
async def test_a_deleted_value_leaves_the_bucket_within_the_compaction_lag(tmp_path: Path) -> None:
    """However little of the archive is new (KIP-354)."""
    lag_ms = 60_000
    config = replace(COMPACTED, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=lag_ms)
    async with Rig(tmp_path, config=config) as rig:
        others = ((b"%d" % number, b"y" * 100) for number in range(20))
        for records in (((b"a person", b"x"), *others), ((b"z", b"z"),), ((b"a person", None),)):
            rig.put(*records)
            rig.seal()
            await rig.clean()
            await rig.settle()
        # The first round is over; the tombstone is too few bytes for another one.
        assert rig.archived == [(0, 22), (22, 23)]
        rig.pass_ms(lag_ms + 1000)
        await rig.settle()
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        assert set(rig.data_keys()) == keys_of(rig.manifest)
        await rig.lose_disk()
        values = [record.value for record in await rig.records() if record.key == b"a person"]
        assert values == [None]


@asynchronous
async def test_damage_in_the_bucket_is_not_compacted_into_new_segments(tmp_path: Path) -> None:
    """Offsets and epochs lie outside of the batches' CRCs; the manifest has that of all."""
    async with Rig(tmp_path, config=COMPACTED) as rig:
        await in_three_segments(rig)
        manifest = rig.manifest
        assert manifest is not None
        assert len(manifest.segments) > 1
        key = manifest.segments[0].log_key
        content = bytearray(rig.memory.get(key))
        content[EPOCH_BYTE] ^= 1
        rig.memory.put(key, bytes(content))
        rig.configure(min_cleanable_dirty_ratio=0.0)
        await rig.settle()
        assert rig.manifest is not None
        assert rig.manifest.segments == manifest.segments


@asynchronous
async def test_whoever_met_a_value_in_the_bucket_has_time_to_meet_its_tombstone(
    tmp_path: Path,
) -> None:
    config = replace(COMPACTED, delete_retention_ms=DELETE_RETENTION_MS)
    async with Rig(tmp_path, config=config) as rig:

        async def archive(*records: tuple[bytes, bytes | None]) -> None:
            rig.put(*records)
            rig.seal()
            await rig.clean()
            # Its own delete horizon is over when it comes to the bucket.
            rig.pass_ms(2 * DELETE_RETENTION_MS)
            await rig.settle()

        await archive((b"x", b"1"), (b"y", b"1"))
        await archive((b"x", b"2"), (b"b", b"1"))
        await archive((b"y", b"2"))
        reader = SlowReader(rig)
        await reader.read()
        assert b"b" in reader.table
        await archive((b"b", None))
        assert rig.manifest is not None
        assert rig.manifest.compaction is not None
        # "b" is gone from the bucket now, and a moment later from the disk.
        assert await tombstones(rig) == [5]
        await archive((b"z", b"1"))
        # Since this round it was nowhere.
        assert await tombstones(rig) == [5]
        rig.pass_ms(DELETE_RETENTION_MS - 1)
        rig.put((b"z", b"2"))
        rig.seal()
        await rig.clean()
        await rig.settle()
        assert await tombstones(rig) == [5]
        await archive((b"z", b"3"))
        assert await tombstones(rig) == []
        await rig.assert_nothing_is_lost()


async def tombstones(rig: Rig) -> list[int]:
    return [record.offset for record in await rig.records() if record.value is None]


@pytest.mark.parametrize("point", COMPACT_POINTS)
def test_a_round_that_dies_at_a_step_is_made_again_and_leaves_only_orphans(
    tmp_path: Path, point: str
) -> None:
    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path, config=COMPACTED) as rig:
            for value in (b"1", b"2"):
                rig.put((b"a", value), (b"only-" + value, value))
                rig.seal()
            # Cleaned one by one, or the second would clean the first before it is copied.
            rig.cleaned_offset = rig.log.local.cleaned_offset = rig.log.end_offset
            with pytest.raises(SimulatedCrash), simulated_crash(point):
                await rig.settle()
            await rig.crash()
            await rig.assert_nothing_is_lost()
            rig.assert_archive_is_whole()
            rig.pass_ms(5000)
            await rig.settle()
            rig.pass_ms(GRACE_MS)
            await rig.settle()
            assert rig.archived == [(0, 4)]
            assert [r.offset for r in await rig.records()] == [1, 2, 3]
            found = compare(rig.store, now_ms=rig.clock.now_ms(), grace_ms=0)
            expected = {COMPACT_POINTS[0]: 1, COMPACT_POINTS[1]: 2, COMPACT_POINTS[2]: 2}
            assert (len(found.orphans), found.missing_keys) == (expected.get(point, 0), ())
            delete_orphans(rig.store, found.orphans)
            assert set(rig.data_keys()) == keys_of(rig.manifest)
            await rig.lose_disk()
            await rig.assert_nothing_is_lost()

    run()


@asynchronous
async def test_a_round_over_sealed_pages_writes_them_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_store, "commit", partial(manifest_store.commit, **SMALL_PAGES))
    async with Rig(tmp_path, config=replace(COMPACTED, segment_bytes=200)) as rig:
        rig.configure(min_cleanable_dirty_ratio=1.0)
        for number in range(9):
            rig.put((b"a", b"%d" % number), (b"only-%d" % number, b"x"))
            rig.seal()
        rig.cleaned_offset = rig.log.local.cleaned_offset = rig.log.end_offset
        await rig.settle()
        assert rig.manifest is not None
        assert len(rig.manifest.pages) >= 2
        rig.configure(min_cleanable_dirty_ratio=0.5)
        await rig.settle()
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        assert rig.manifest.pages
        assert [r.key for r in await rig.records()].count(b"a") == 1
        await rig.assert_nothing_is_lost()
        rig.assert_archive_is_whole()
        assert compare(rig.store, now_ms=rig.clock.now_ms(), grace_ms=0).orphans == ()


async def until_in_the_middle(rig: Rig) -> None:
    """Two archived segments, the second with the keys of the first; a round has begun."""
    for value in (b"1", b"2"):
        rig.put((b"a", value), (b"only-" + value, value))
        rig.seal()
    rig.cleaned_offset = rig.log.local.cleaned_offset = rig.log.end_offset
    while len(rig.archived) < 2:
        await rig.manager.step_each()
    # It is begun, and has indexed something.
    for _ in range(2):
        assert await rig.manager.step_each()


@asynchronous
async def test_a_round_that_is_refused_a_thread_is_given_up_and_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had rewritten and not committed is lost: it must not call that clean."""

    def refuse(*_: object) -> None:
        raise OutOfResources("cannot begin another thread")

    async with Rig(tmp_path, config=COMPACTED) as rig:
        await until_in_the_middle(rig)
        with monkeypatch.context() as patch:
            patch.setattr(rig.executors.copies, "submit", refuse)
            await rig.manager.step_each()
        assert not rig.manager._workers.compactor.is_busy
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        assert rig.manifest is not None
        assert rig.manifest.compaction is not None
        assert rig.manifest.compaction.cleaned_offset == rig.archived[-1][1]


@pytest.mark.parametrize("name", [TOPIC, "another"])
@pytest.mark.parametrize("goes", ["between steps", "in a step"])
@asynchronous
async def test_a_topic_that_goes_in_the_middle_of_a_round_leaves_its_place_to_others(
    tmp_path: Path, goes: str, name: str
) -> None:
    async with Rig(tmp_path, config=COMPACTED) as rig:
        await until_in_the_middle(rig)
        before = rig.manifest
        if goes == "in a step":
            gate = threading.Event()
            fault = rig.memory.add_fault(Fault(operation="get", key_pattern=r"log$", gate=gate))
            step = asyncio.ensure_future(rig.manager.step_each())
            while not fault.hit_count:
                await asyncio.sleep(0.001)
            rig.manager.detach(PARTITION)
            gate.set()
            await step
        rig.manager.detach(PARTITION)
        assert rig.manifest == before
        # Another topic, be it of the same name, with more segments than the first one had.
        other = TopicIdPartition(name, uuid4(), 0)
        (tmp_path / "other").mkdir()
        local = LocalLog.open(
            tmp_path / "other",
            topic_partition=TopicPartition(name, 0),
            topic_id=other.topic_id,
            config=rig.config,
            clock=rig.clock,
            recovery_point=0,
            log_start_offset=0,
            clean_shutdown=False,
            was_compacted=True,
        )
        rig.log = UnifiedLog(local, log_start_offset=None)
        info = TopicInfo(topic=name, topic_id=other.topic_id, partition_count=1)
        rig.manager.attach(rig.log, info, leader_epoch=1, is_new=True)
        for number in range(3):
            rig.put((b"a", b"%d" % number), (b"b", b"%d" % number), (b"c%d" % number, b"1"))
            rig.seal()
        local.cleaned_offset = rig.log.end_offset
        # The place is given up by a thread.
        stored = None
        while stored is None or stored.manifest.compaction is None:
            await rig.manager.run_once()
            stored = manifest_store.load(rig.store, other)
            await asyncio.sleep(0.01)
        assert stored.manifest.compaction.cleaned_offset == 9
        assert sum(entry.record_count for entry in stored.manifest.segments) == 5
        assert rig.manifest == before


@asynchronous
async def test_a_round_goes_on_beside_what_is_copied(tmp_path: Path) -> None:
    """Others wait for its place, however much this partition has to copy."""
    async with Rig(tmp_path, config=COMPACTED) as rig:
        await until_in_the_middle(rig)
        for number in range(50):
            for _ in range(2 if number else 3):
                rig.put((b"new", b"%d" % number))
                rig.seal()
            rig.cleaned_offset = rig.log.local.cleaned_offset = rig.log.end_offset
            await rig.manager.step_each()
            if rig.manifest is not None and rig.manifest.compaction is not None:
                break
        else:
            raise AssertionError("the round does not come to its end")
        await rig.assert_nothing_is_lost()


@asynchronous
async def test_a_round_ends_when_copying_is_turned_off(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=COMPACTED) as rig:
        await until_in_the_middle(rig)
        before = rig.manifest
        rig.configure(remote_log_copy_disable=True)
        await rig.manager.run_once()
        assert rig.manifest == before
        rig.configure(remote_log_copy_disable=False)
        await rig.manager.run_once()
        assert rig.manifest is not None
        assert rig.manifest.compaction is not None


@asynchronous
async def test_no_round_begins_while_copying_is_turned_off(tmp_path: Path) -> None:
    """It would download and give up at once, turn after turn."""
    async with Rig(tmp_path, config=COMPACTED) as rig:
        rig.configure(min_cleanable_dirty_ratio=1.0)
        for value in (b"1", b"2"):
            rig.put((b"a", value), (b"only-" + value, value))
            rig.seal()
        rig.cleaned_offset = rig.log.local.cleaned_offset = rig.log.end_offset
        await rig.settle()
        assert rig.archived == [(0, 2), (2, 4)]
        rig.configure(min_cleanable_dirty_ratio=0.0, remote_log_copy_disable=True)
        reads = rig.memory.count_requests("get")
        await rig.settle()
        assert rig.memory.count_requests("get") == reads
        rig.configure(remote_log_copy_disable=False)
        await rig.settle()
        assert rig.archived == [(0, 4)]
