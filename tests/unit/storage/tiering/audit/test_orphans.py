"""The bucket compared with its manifests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from strandline.storage.crash_points import (
    COPY_AFTER_LOG,
    COPY_AFTER_META,
    COPY_BEFORE_COMMIT,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import TierUnavailable
from strandline.storage.remote.object_store.conditional_writes import check_conditional_writes
from strandline.storage.remote.object_store.interface import ObjectInfo
from strandline.storage.tiering.audit.orphans import (
    GRACE_MS_DEFAULT,
    BucketComparison,
    OrphanReason,
    compare,
    delete_orphans,
    delete_safe_orphans,
)
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.storage.tiering.harness import GRACE_MS, TOPIC, TOPIC_ID, Rig, asynchronous, keys_of

ORPHAN_GRACE_MS = 3_600_000


def comparison(rig: Rig) -> BucketComparison:
    return compare(rig.store, now_ms=rig.clock.now_ms(), grace_ms=ORPHAN_GRACE_MS)


@pytest.mark.parametrize(
    ("point", "object_count"),
    [(COPY_AFTER_LOG, 1), (COPY_AFTER_META, 2), (COPY_BEFORE_COMMIT, 2)],
)
@asynchronous
async def test_every_orphan_of_a_crashed_copy_is_found_after_the_grace_time(
    tmp_path: Path, point: str, object_count: int
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        with simulated_crash(point), pytest.raises(SimulatedCrash):
            await rig.manager.run_once()
        left_over = set(rig.data_keys())
        assert len(left_over) == object_count
        await rig.crash()
        await rig.settle()
        rig.pass_ms(ORPHAN_GRACE_MS - 1)
        assert compare(rig.store, now_ms=rig.clock.now_ms(), grace_ms=ORPHAN_GRACE_MS).orphans == ()
        rig.pass_ms(1)
        orphans = comparison(rig).orphans
        assert {orphan.key for orphan in orphans} == left_over
        assert {orphan.reason for orphan in orphans} == {OrphanReason.NOT_IN_MANIFEST}
        delete_orphans(rig.store, orphans)
        assert set(rig.data_keys()) == keys_of(rig.manifest)
        await rig.assert_everything_is_readable()


@pytest.mark.parametrize("wrong", ["ours", "the store's"])
@asynchronous
async def test_a_clock_that_is_days_ahead_makes_no_upload_an_orphan(
    tmp_path: Path, wrong: str
) -> None:
    """What a merge has uploaded and not committed yet would be named by a manifest, and gone."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        true_ms = rig.clock.now_ms()
        if wrong == "the store's":
            # It jumps while the upload is under way.
            rig.store.put(f"topics/{TOPIC}-{TOPIC_ID}/0/{0:020d}-1-{'a' * 32}.log", b"x")
            rig.pass_ms(3 * GRACE_MS_DEFAULT)
            ours = ManualClock(true_ms + 60_000)
        else:
            rig.store.put(f"topics/{TOPIC}-{TOPIC_ID}/0/{0:020d}-1-{'a' * 32}.log", b"x")
            ours = ManualClock(true_ms + 3 * GRACE_MS_DEFAULT)
        assert delete_safe_orphans(rig.store, clock=ours, grace_ms=GRACE_MS_DEFAULT) == 0
        # By both it is old now.
        rig.pass_ms(3 * GRACE_MS_DEFAULT)
        ours.advance_ms(3 * GRACE_MS_DEFAULT)
        assert delete_safe_orphans(rig.store, clock=ours, grace_ms=GRACE_MS_DEFAULT) == 1
        assert set(rig.data_keys()) == keys_of(rig.manifest)


@asynchronous
async def test_a_healthy_archive_has_no_orphans_and_misses_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.log.delete_records(10)
        await rig.settle()
        rig.pass_ms(10 * ORPHAN_GRACE_MS)
        found = comparison(rig)
        assert (found.orphans, found.missing_keys, found.unreadable) == ((), (), ())
        assert found.object_count == 8, "6 of segments, topic.json, manifest.json"


@asynchronous
async def test_marked_objects_are_neither_orphans_nor_missing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.settle()
        rig.log.delete_records(10)
        await rig.settle()
        manifest = rig.manifest
        assert manifest is not None
        assert len(manifest.deleting) == 1
        rig.store.delete([manifest.deleting[0].log_key])
        rig.pass_ms(10 * ORPHAN_GRACE_MS)
        found = comparison(rig)
        assert (found.orphans, found.missing_keys) == ((), ())


@asynchronous
async def test_missing_objects_are_named(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.settle()
        manifest = rig.manifest
        assert manifest is not None
        rig.store.delete([manifest.segments[0].log_key])
        assert comparison(rig).missing_keys == (manifest.segments[0].log_key,)


@asynchronous
async def test_nothing_is_an_orphan_where_the_manifest_cannot_be_read(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.settle()
        rig.memory.damage(rig.manifest_key, lambda content: content.replace(b"0", b"1", 1))
        rig.pass_ms(10 * ORPHAN_GRACE_MS)
        found = comparison(rig)
        assert found.orphans == ()
        assert len(found.unreadable) == 1
        rig.memory.add_fault(Fault(operation="get", error=TierUnavailable, times=-1))
        with pytest.raises(TierUnavailable):
            comparison(rig)


@asynchronous
async def test_what_is_left_of_a_topic_without_topic_json_is_found(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.store.delete([rig.topic_info.key])
        rig.store.put("topics/strange", b"x")
        other = f"topics/other-{UUID(int=7)}/0/"
        rig.store.put(other + "readme.txt", b"x")
        rig.store.put(f"topics/other-{UUID(int=7)}/topic.json", b"no json")
        rig.pass_ms(ORPHAN_GRACE_MS)
        reasons = {orphan.key: orphan.reason for orphan in comparison(rig).orphans}
        assert reasons.pop("topics/strange") is OrphanReason.UNKNOWN_NAME
        assert reasons.pop(other + "readme.txt") is OrphanReason.UNKNOWN_NAME
        assert set(reasons.values()) == {OrphanReason.NO_TOPIC}
        assert len(reasons) == 3
        # All this may be what is left of something that was lost: somebody has to look at it.
        keys = rig.memory.keys()
        grace_ms = ORPHAN_GRACE_MS
        assert delete_safe_orphans(rig.store, clock=rig.clock, grace_ms=grace_ms) == 0
        assert rig.memory.keys() == keys


@asynchronous
async def test_an_object_whose_age_nobody_knows_is_no_orphan(tmp_path: Path) -> None:
    class TimelessStore(MemoryStore):
        def list(self, prefix: str = "", *, limit: int | None = None) -> Iterator[ObjectInfo]:
            for info in super().list(prefix, limit=limit):
                yield replace(info, modified_ms=-1)

    async with Rig(tmp_path, store=TimelessStore()) as rig:
        rig.produce_segments(1)
        with simulated_crash(COPY_BEFORE_COMMIT), pytest.raises(SimulatedCrash):
            await rig.manager.run_once()
        await rig.crash()
        await rig.settle()
        rig.pass_ms(10 * ORPHAN_GRACE_MS)
        assert comparison(rig).orphans == ()


@asynchronous
async def test_a_topic_with_a_tombstone_is_left_to_its_purge(tmp_path: Path) -> None:
    async with Rig(tmp_path, grace_ms=GRACE_MS) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        rig.pass_ms(10 * ORPHAN_GRACE_MS)
        assert comparison(rig).orphans == ()


@pytest.mark.parametrize("damage", ["older manifest", "object lost"])
@asynchronous
async def test_nothing_is_deleted_by_itself_beside_a_manifest_that_may_be_an_older_one(
    tmp_path: Path, damage: str
) -> None:
    """A wrong version of the bucket is put back for good: what it does not name is the archive."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.settle()
        manifest = rig.manifest
        assert manifest is not None
        older = rig.store.get(rig.manifest_key)
        if damage == "older manifest":
            rig.pass_ms(500)
            rig.produce_segments(3)
            await rig.settle()
        else:
            rig.store.put(f"topics/{TOPIC}-{TOPIC_ID}/0/{0:020d}-0-{'a' * 32}.log", b"x")
        newest = rig.store.get(rig.manifest_key)
        rig.store.put(rig.manifest_key, older)
        if damage == "object lost":
            rig.store.delete([manifest.segments[0].meta_key])
        rig.pass_ms(3 * GRACE_MS_DEFAULT)
        now_ms = rig.clock.now_ms()
        found = compare(rig.store, now_ms=now_ms).orphans
        assert {orphan.reason for orphan in found} == {OrphanReason.OLDER_MANIFEST}
        assert delete_safe_orphans(rig.store, clock=rig.clock, grace_ms=GRACE_MS_DEFAULT) == 0
        rig.store.put(rig.manifest_key, newest)
        if damage == "older manifest":
            await rig.assert_everything_is_readable()
            assert compare(rig.store, now_ms=now_ms).orphans == ()


def test_what_tried_the_store_out_and_could_not_be_deleted_holds_nobody_up_and_goes() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.add_fault(Fault(operation="delete", error=TierUnavailable))
    check_conditional_writes(store)
    assert len(list(store.list(""))) == 2
    assert delete_safe_orphans(store, clock=clock, grace_ms=ORPHAN_GRACE_MS) == 0
    clock.advance_ms(ORPHAN_GRACE_MS)
    assert delete_safe_orphans(store, clock=clock, grace_ms=ORPHAN_GRACE_MS) == 2
    assert list(store.list("")) == []
