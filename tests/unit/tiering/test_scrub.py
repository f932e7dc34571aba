"""A scrub finds exactly what is damaged, says what to do, and repairs what can be made again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.remote import manifest_store
from strandline.storage.remote.keys import manifest_key
from strandline.storage.remote.manifest_entries import SegmentEntry
from strandline.storage.remote.memory import MemoryStore
from strandline.storage.tiering.repair import repair_meta
from strandline.storage.tiering.scrub import Damage, Depth, PartitionReport, Scrub
from tests.unit.tiering.harness import ID_PARTITION, Rig, asynchronous


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def scrub(rig: Rig, executor: ThreadPoolExecutor, depth: Depth) -> PartitionReport:
    return Scrub(rig.store, executor, depth=depth).check(ID_PARTITION)


def damages(report: PartitionReport) -> list[tuple[Damage, int]]:
    return [(finding.damage, finding.base_offset) for finding in report.findings]


async def archived(rig: Rig, count: int = 4) -> tuple[SegmentEntry, ...]:
    rig.produce_segments(count)
    await rig.settle()
    assert rig.manifest is not None
    return rig.manifest.segments


def spoil(store: MemoryStore, key: str, *, position: int = 70) -> None:
    """Another byte in the middle, as a swapped object has it: its own checksum is right."""
    content = bytearray(store.get(key))
    content[position] ^= 1
    store.put(key, bytes(content))


@pytest.mark.parametrize("depth", Depth)
def test_a_whole_archive_has_no_findings(
    tmp_path: Path, executor: ThreadPoolExecutor, depth: Depth
) -> None:
    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path) as rig:
            await archived(rig)
            report = scrub(rig, executor, depth)
            assert report.findings == ()
            assert report.segment_count == 4

    run()


@pytest.mark.parametrize("depth", Depth)
def test_missing_objects_are_named_with_what_can_be_done(
    tmp_path: Path, executor: ThreadPoolExecutor, depth: Depth
) -> None:
    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path) as rig:
            entries = await archived(rig)
            rig.store.delete([entries[1].log_key, entries[2].meta_key])
            report = scrub(rig, executor, depth)
            assert damages(report) == [(Damage.LOG_MISSING, 10), (Damage.META_MISSING, 20)]
            assert [finding.repairable for finding in report.findings] == [False, True]
            # Looking changes nothing, so it finds the same again.
            assert scrub(rig, executor, depth) == report

    run()


@asynchronous
async def test_changed_bytes_are_found_by_checksum(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        entries = await archived(rig)
        spoil(rig.memory, entries[0].log_key)
        spoil(rig.memory, entries[3].meta_key, position=20)
        with ThreadPoolExecutor(4) as executor:
            assert scrub(rig, executor, Depth.SIZES).findings == ()
            found = damages(scrub(rig, executor, Depth.CHECKSUMS))
            assert found == [(Damage.LOG_CORRUPT, 0), (Damage.META_CORRUPT, 30)]


@asynchronous
async def test_only_reading_finds_a_manifest_that_says_something_else(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        entries = await archived(rig)
        stored = manifest_store.load(rig.store, ID_PARTITION)
        assert stored is not None
        false = replace(entries[1], record_count=9, max_timestamp_ms=1)
        segments = (entries[0], false, *entries[2:])
        manifest_store.commit(rig.store, stored, replace(stored.manifest, segments=segments))
        with ThreadPoolExecutor(4) as executor:
            assert scrub(rig, executor, Depth.CHECKSUMS).findings == ()
            report = scrub(rig, executor, Depth.EVERYTHING)
            assert damages(report) == [(Damage.FACTS, 10), (Damage.FACTS, 10)]


@asynchronous
async def test_an_unreadable_manifest_is_one_finding(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await archived(rig)
        rig.store.put(manifest_key(ID_PARTITION), b"{}")
        with ThreadPoolExecutor(4) as executor:
            assert damages(scrub(rig, executor, Depth.CHECKSUMS)) == [(Damage.MANIFEST, -1)]


@asynchronous
async def test_a_repaired_meta_is_true_and_the_running_broker_goes_on(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        entries = await archived(rig)
        rig.store.delete([entries[1].meta_key])
        key = repair_meta(rig.store, ID_PARTITION, 10, clock=rig.clock, scratch=tmp_path)
        with ThreadPoolExecutor(4) as executor:
            assert scrub(rig, executor, Depth.EVERYTHING).findings == ()
        assert rig.manifest is not None
        assert rig.manifest.segments[1] == replace(
            entries[1],
            meta_key=key,
            meta_size_bytes=rig.manifest.segments[1].meta_size_bytes,
            meta_crc32c=rig.manifest.segments[1].meta_crc32c,
        )
        # The broker held the manifest before the repair: it loses one commit, reads and goes on.
        rig.produce_segments(2)
        for _ in range(3):
            rig.pass_ms(5000)
            await rig.settle()
        assert [base for base, _ in rig.archived] == [0, 10, 20, 30, 40, 50]
        await rig.assert_everything_is_readable()
        with ThreadPoolExecutor(4) as executor:
            assert scrub(rig, executor, Depth.EVERYTHING).findings == ()
