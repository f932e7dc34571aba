"""An older manifest lies over a newer one, and the archive goes on from it."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.crash_points import (
    COPY_AFTER_LOG,
    COPY_BEFORE_COMMIT,
    MERGE_AFTER_LOG,
    MERGE_BEFORE_COMMIT,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import TierUnavailable
from strandline.storage.tiering.audit.findings import Damage
from strandline.storage.tiering.audit.orphans import (
    GRACE_MS_DEFAULT,
    OrphanReason,
    compare,
    delete_orphans,
    delete_safe_orphans,
)
from strandline.storage.tiering.audit.scrub import Depth, Scrub
from tests.unit.storage.tiering.harness import CONFIG, ID_PARTITION, Rig, asynchronous, keys_of

NEWER_SEGMENTS = 5


async def archive_segments(rig: Rig, count: int, record_count: int = 10) -> None:
    rig.produce_segments(count, record_count)
    await rig.settle()


async def upload_open_segment(rig: Rig) -> None:
    for _ in range(4):
        rig.pass_ms(1000)
        await rig.settle()


async def put_older_manifest_back(rig: Rig) -> dict[str, bytes]:
    """The objects that only the newer manifest named."""
    await archive_segments(rig, 2)
    older = rig.store.get(rig.manifest_key)
    known = keys_of(rig.manifest)
    await archive_segments(rig, NEWER_SEGMENTS)
    newer = {key: rig.store.get(key) for key in keys_of(rig.manifest) - known}
    rig.store.put(rig.manifest_key, older)
    return newer


async def go_on_from_older_manifest(rig: Rig) -> set[str]:
    """As above; the disk is lost as well, and the objects come when that is done."""
    newer = await put_older_manifest_back(rig)
    rig.store.delete(list(newer))
    await rig.lose_disk()
    assert rig.log.end_offset == 20
    for key, content in newer.items():
        rig.store.put(key, content)
    return set(newer)


async def sweep(rig: Rig) -> int:
    rig.pass_ms(3 * GRACE_MS_DEFAULT)
    return delete_safe_orphans(rig.store, clock=rig.clock, grace_ms=GRACE_MS_DEFAULT)


def doubtful(rig: Rig) -> set[str]:
    found = compare(rig.store, now_ms=rig.clock.now_ms()).orphans
    return {o.key for o in found if o.reason is OrphanReason.OTHER_RECORDS}


def left_of(rig: Rig, keys: Iterable[str]) -> set[str]:
    return set(keys).intersection(rig.data_keys())


@asynchronous
async def test_whole_segments_of_a_newer_manifest_stay_when_new_records_have_passed_them(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        newer = await go_on_from_older_manifest(rig)
        await archive_segments(rig, NEWER_SEGMENTS, record_count=13)
        assert rig.manifest is not None
        assert rig.manifest.end_offset > 20 + 10 * NEWER_SEGMENTS
        await sweep(rig)
        assert left_of(rig, newer) == newer
        assert doubtful(rig) == newer
        with ThreadPoolExecutor(2) as executor:
            (finding,) = (
                Scrub(rig.store, executor, depth=Depth.CHECKSUMS).check(ID_PARTITION).findings
            )
        assert finding.damage is Damage.OTHER_RECORDS
        assert f"{NEWER_SEGMENTS} segments from 20 on" in finding.detail
        # Somebody says otherwise.
        delete_orphans(rig.store, compare(rig.store, now_ms=rig.clock.now_ms()).orphans)
        assert set(rig.data_keys()) == keys_of(rig.manifest)


@asynchronous
async def test_a_lost_disk_does_not_go_on_behind_an_older_manifest(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await archive_segments(rig, 2)
        older = rig.store.get(rig.manifest_key)
        await archive_segments(rig, NEWER_SEGMENTS)
        newest = rig.store.get(rig.manifest_key)
        rig.store.put(rig.manifest_key, older)
        await rig.lose_disk()
        with pytest.raises(TierUnavailable):
            rig.produce()
        assert "5 segments from 20 on lie beyond its end" in str(rig.statistics.copy_failure)
        # It goes on by itself when the newest is back.
        rig.store.put(rig.manifest_key, newest)
        rig.pass_ms(5000)
        await rig.settle()
        rig.produce()
        await rig.assert_everything_is_readable()


@pytest.mark.parametrize("newest", ["segment", "piece"])
@asynchronous
async def test_what_begins_like_the_archive_and_goes_on_with_other_records_stays(
    tmp_path: Path, newest: str
) -> None:
    """The older manifest has the beginning of the open segment, a newer one has more of it."""
    config = replace(
        CONFIG, strandline_remote_active_segment_upload_ms=1000, local_retention_ms=10**9
    )
    async with Rig(tmp_path, config=config) as rig:
        await archive_segments(rig, 2)
        rig.produce()
        await upload_open_segment(rig)
        older, known = rig.store.get(rig.manifest_key), set(rig.data_keys())
        rig.produce()
        if newest == "segment":
            rig.roll()
        await upload_open_segment(rig)
        newer = keys_of(rig.manifest) - known
        assert newer
        rig.store.put(rig.manifest_key, older)
        await rig.lose_disk()
        assert rig.log.end_offset == 30
        rig.produce(25)
        await upload_open_segment(rig)
        await sweep(rig)
        assert left_of(rig, newer) == newer, "beside the open segment"
        rig.roll()
        await rig.settle()
        assert rig.archived[-1] == (20, 55)
        await sweep(rig)
        assert left_of(rig, newer) == newer
        assert doubtful(rig) == newer
        if newest == "segment":
            # What cannot be read is no reason to let it go.
            damaged = next(key for key in newer if key.endswith(".meta"))
            rig.memory.damage(damaged, lambda content: content[:-9])
            assert doubtful(rig) == newer


@pytest.mark.parametrize(
    "point", [COPY_AFTER_LOG, COPY_BEFORE_COMMIT, MERGE_AFTER_LOG, MERGE_BEFORE_COMMIT]
)
@asynchronous
async def test_what_failed_copies_and_merges_leave_goes_beside_what_is_in_doubt(
    tmp_path: Path, point: str
) -> None:
    async with Rig(tmp_path) as rig:
        newer = await go_on_from_older_manifest(rig)
        await archive_segments(rig, NEWER_SEGMENTS, record_count=13)
        is_merge = point in (MERGE_AFTER_LOG, MERGE_BEFORE_COMMIT)
        target_bytes = 2000 if is_merge else 0
        rig.tiering_config = replace(rig.tiering_config, merge_target_bytes=target_bytes)
        await rig.crash()
        before = set(rig.data_keys())
        rig.produce_segments(1, 7)
        with simulated_crash(point), pytest.raises(SimulatedCrash):
            await rig.settle()
        left = set(rig.data_keys()) - before - keys_of(rig.manifest)
        assert left
        rig.tiering_config = replace(rig.tiering_config, merge_target_bytes=0)
        await rig.crash()
        # Records of a later epoch come behind what was copied in vain.
        for _ in range(3):
            rig.pass_ms(5000)
            await archive_segments(rig, 1)
        await sweep(rig)
        assert left_of(rig, left) == set()
        assert left_of(rig, newer) == newer
        assert doubtful(rig) == newer
