"""A scrub finds exactly the damage, gives advice, and repairs what can be rebuilt."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from strandline.storage.errors import CorruptFile, ObjectCorrupt
from strandline.storage.remote.keys import manifest_key
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.remote.segment.meta import Section, SegmentStatistics, read_section
from strandline.storage.tiering.audit.findings import Damage, PartitionReport
from strandline.storage.tiering.audit.listing import list_partitions, list_segments
from strandline.storage.tiering.audit.repair import repair_meta
from strandline.storage.tiering.audit.scrub import Depth, Scrub
from strandline.storage.tiering.copy import segment_sections
from strandline.storage.tiering.copy.segment_sections import statistics_of
from strandline.storage.tiering.policy.lifecycle import COPIES_PER_PARTITION
from tests.support.memory_store import MemoryStore
from tests.unit.storage.tiering.harness import ID_PARTITION, TOPIC, Rig, asynchronous


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


@asynchronous
async def test_an_archive_without_checksums_of_chunks_is_whole(
    tmp_path: Path,
) -> None:
    """`asynchronous` knows no fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            segment_sections,
            "statistics_of",
            lambda facts: statistics_of(facts).without_checksums(),
        )
        async with Rig(tmp_path) as rig:
            entries = await archived(rig, 2)
            content = read_section(
                rig.store, entries[0].meta_key, entries[0].meta_size_bytes, Section.STATISTICS
            )
            assert content is not None
            assert not SegmentStatistics.decode(content).has_checksums
            with ThreadPoolExecutor(4) as executor:
                assert scrub(rig, executor, Depth.EVERYTHING).findings == ()


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
            assert damages(report) == [
                (Damage.LOG_MISSING, 10),
                (Damage.META_MISSING, 20),
            ]
            assert [finding.repairable for finding in report.findings] == [False, True]
            assert [finding.offsets for finding in report.findings] == ["10 to 19", "20 to 29"]
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
async def test_objects_without_a_checksum_in_the_store_are_counted_unless_they_are_read(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        entries = await archived(rig)
        rig.memory.forget_checksum(entries[1].log_key)
        rig.memory.damage(entries[1].log_key, lambda old: old[:-1] + bytes([old[-1] ^ 1]))
        rig.memory.forget_checksum(entries[2].meta_key)
        rig.memory.damage(entries[2].meta_key, lambda old: old[:20] + b"?" + old[21:])
        with ThreadPoolExecutor(4) as executor:
            report = scrub(rig, executor, Depth.CHECKSUMS)
            assert (report.findings, report.by_size_count) == ((), 2)
            report = scrub(rig, executor, Depth.EVERYTHING)
            assert damages(report) == [(Damage.LOG_CORRUPT, 10), (Damage.META_CORRUPT, 20)]
            assert report.by_size_count == 0


@pytest.mark.parametrize("depth", [Depth.CHECKSUMS, Depth.EVERYTHING])
def test_what_the_disk_of_an_archive_cannot_read_is_named_like_any_damage(
    tmp_path: Path, executor: ThreadPoolExecutor, depth: Depth
) -> None:
    """One bad sector neither hides the next one nor is waited for as if it could pass."""
    root = tmp_path / "archive"

    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path / "disk", store=LocalDirectoryStore(root)) as rig:
            entries = await archived(rig)
            for key in (entries[1].log_key, entries[2].meta_key):
                # The kernel's own EIO, of a page that nothing is mapped to.
                (root / key).unlink()
                (root / key).symlink_to("/proc/self/mem")
            report = scrub(rig, executor, depth)
            assert damages(report) == [
                (Damage.LOG_CORRUPT, 10),
                (Damage.META_CORRUPT, 20),
            ]
            assert report.unread == ()
            with pytest.raises(ObjectCorrupt, match="Input/output error"):
                rig.store.get_into(entries[1].log_key, memoryview(bytearray(10)), start=0)

    run()


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
async def test_lost_offsets_are_told_from_the_first_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a lost page are no gap: its segments are there."""
    small = partial(manifest_store.commit, root_entries_max=3, page_entries=2, page_entries_max=2)
    monkeypatch.setattr(manifest_store, "commit", small)
    async with Rig(tmp_path) as rig:
        await archived(rig, 9)
        manifest = rig.manifest
        assert manifest is not None
        page = manifest.pages[0]
        content = rig.store.get(page.key)
        rig.store.delete([page.key])
        with ThreadPoolExecutor(4) as executor:
            (found,) = scrub(rig, executor, Depth.CHECKSUMS).findings
            assert (found.damage, found.offsets) == (Damage.PAGE, "0 to 19")
            rig.store.put(page.key, content)
            segments = (*manifest.segments[:1], *manifest.segments[2:])
            broken = replace(manifest, segments=segments)
            rig.store.put(manifest_key(ID_PARTITION), broken.encode())
            (found,) = scrub(rig, executor, Depth.CHECKSUMS).findings
        lost = manifest.segments[1]
        said = f"no segment has the offsets {lost.base_offset} to {lost.end_offset - 1}"
        assert (found.damage, said in found.detail) == (Damage.MANIFEST, True), found


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
        damaged_key = entries[1].meta_key
        key = repair_meta(
            rig.store,
            ID_PARTITION,
            10,
            damaged_key=damaged_key,
            clock=rig.clock,
        )
        assert key is not None
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


@asynchronous
async def test_a_manifest_that_was_lost_is_no_empty_archive(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await archived(rig)
        rig.store.delete([rig.manifest_key])
        with ThreadPoolExecutor(2) as executor:
            (finding,) = scrub(rig, executor, Depth.SIZES).findings
        assert finding.damage is Damage.MANIFEST
        assert "the manifest was lost" in finding.detail
        (row,) = list_partitions(rig.store)
        assert "the manifest was lost" in row.problem
        with pytest.raises(CorruptFile, match="the manifest was lost"):
            list(list_segments(rig.store, topic=TOPIC))


@asynchronous
async def test_an_older_manifest_that_was_put_over_a_newer_one_is_found(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await archived(rig, 1)
        older = rig.store.get(rig.manifest_key)
        await archived(rig, COPIES_PER_PARTITION)
        newest = rig.store.get(rig.manifest_key)
        rig.store.put(rig.manifest_key, older)
        with ThreadPoolExecutor(2) as executor:
            # So much may be left of copies that were not committed.
            assert scrub(rig, executor, Depth.CHECKSUMS).findings == ()
            rig.store.put(rig.manifest_key, newest)
            await archived(rig, 1)
            rig.store.put(rig.manifest_key, older)
            (finding,) = scrub(rig, executor, Depth.CHECKSUMS).findings
        assert finding.damage is Damage.OLDER
        assert "3 or more from 10 on, it ends at 10" in finding.detail
