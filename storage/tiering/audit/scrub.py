"""Verifies an archive: compares every manifest with the objects in the bucket.

    manifest     readable; ranges in order, no gap above the log start, no overlap; epochs grow
    pages        exist, with the manifest's checksum, and entries of the page's range
    segments     `.log` and `.meta` exist, with the manifest's size and checksum
    pieces       of the open segment: the same
    EVERYTHING   every byte: batches' CRCs, offsets, counts, times; statistics agree with the log

A scrub changes nothing; findings carry advice (findings.py). Where a store keeps no checksum of an
object, only its size is compared, unless every byte is read; the report counts these objects.

A running broker may delete an object during the scrub. So a partition with findings is checked
again from its newest manifest, and only repeated findings are reported, except for a topic that was
deleted meanwhile.

Blocking; requests run in an executor's threads, a bounded number of segments at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    CorruptRecords,
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    StorageError,
    TierUnavailable,
    UnsupportedFormat,
)
from strandline.storage.model import NO_EPOCH, Offset, TopicIdPartition
from strandline.storage.remote.keys import manifest_key, partition_folder
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import ManifestPages
from strandline.storage.remote.manifest.topic_info import load_topic_info
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.segment.meta import Section, SegmentStatistics, decode
from strandline.storage.system import crc32c
from strandline.storage.tiering.audit.findings import (
    Damage,
    Finding,
    PartitionReport,
    of_part,
    of_segment,
)
from strandline.storage.tiering.audit.segment_download import SegmentDownloads
from strandline.storage.tiering.copy.inspection import Offsets, SegmentFacts, inspect_segment
from strandline.storage.tiering.copy.segment_sections import statistics_of
from strandline.storage.tiering.partition.older_manifest import (
    ArchivedEpochs,
    is_beyond,
    segments_beyond,
    segments_of_others,
)
from strandline.storage.tiering.partition.open_segment_parts import fault_of_part, read_part
from strandline.storage.tiering.policy.lifecycle import COPIES_PER_PARTITION

# Concurrent requests; a HEAD takes 30 ms, so 500 segments a second.
PARALLEL_MAX = 16
# Segments that are checked together: bounds the results in memory.
BATCH_SEGMENTS = 256
# Listed objects beyond the end of an archive: one request.
LISTED_MAX = 1000


class Depth(Enum):
    """The depth of a check of segments."""

    SIZES = "sizes"  # one listing per thousand objects
    CHECKSUMS = "checksums"  # one HEAD per object
    EVERYTHING = "everything"  # every byte is read


class Scrub:
    """Checks the partitions of an archive, and reports findings."""

    def __init__(
        self,
        store: ObjectStore,
        executor: ThreadPoolExecutor,
        *,
        depth: Depth,
        on_segments: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._depth = depth
        self._downloads = SegmentDownloads(store)
        self._on_segments = on_segments

    def check(self, partition: TopicIdPartition) -> PartitionReport:
        """Checks one partition. Raises TierUnavailable or AccessDenied if the store is away."""
        first = self._check_once(partition)
        if not first.findings:
            return first
        second = self._check_once(partition)
        again = {(f.damage, f.key) for f in first.findings}
        kept = tuple(f for f in second.findings if (f.damage, f.key) in again)
        if kept and self._is_deleted(partition):
            # A purge deletes segments before their manifest.
            return PartitionReport(partition=partition)
        return replace(second, findings=kept)

    def _is_deleted(self, partition: TopicIdPartition) -> bool:
        """Returns whether the topic is deleted, or being deleted, since the run began."""
        try:
            info = load_topic_info(self._store, partition.topic, partition.topic_id)
        except (CorruptFile, UnsupportedFormat):
            return False
        return info is None or info.is_deleted

    def _check_once(self, partition: TopicIdPartition) -> PartitionReport:
        key = manifest_key(partition)
        try:
            stored = manifest_store.load_or_refuse(self._store, partition)
        except (CorruptFile, ObjectCorrupt, UnsupportedFormat) as error:
            damaged = Finding(
                partition=partition, damage=Damage.MANIFEST, key=key, detail=str(error)
            )
            return PartitionReport(partition=partition, findings=(damaged,))
        if stored is None:
            return PartitionReport(partition=partition)
        report = self._check_manifest(stored.manifest)
        return replace(report, findings=(*report.findings, *self._check_end(stored.manifest)))

    def _check_end(self, manifest: Manifest) -> Iterator[Finding]:
        """Finds more segments beyond the end than unfinished copies may leave."""
        partition = manifest.topic_id_partition
        key = manifest_key(partition)
        folder = partition_folder(partition)
        start_after = f"{folder}{max(manifest.end_offset, manifest.log_start_offset):020d}"
        listed = [
            info
            for info in self._store.list(folder, start_after=start_after, limit=LISTED_MAX)
            if is_beyond(info.key, manifest)
        ]
        if not listed:
            return
        # The manifest is read after the listing, so it has all that was committed before.
        newest = manifest_store.load(self._store, partition)
        if newest is None:
            return
        bases = segments_beyond((info.key for info in listed), newest.manifest)
        if len(bases) > COPIES_PER_PARTITION:
            detail = f"{len(bases)} or more from {min(bases)} on, it ends at {manifest.end_offset}"
            yield Finding(partition=partition, damage=Damage.OLDER, key=key, detail=detail)

    def _check_manifest(self, manifest: Manifest) -> PartitionReport:
        partition = manifest.topic_id_partition
        findings: list[Finding] = []
        unread: list[str] = []
        by_size_count = 0
        sizes: dict[str, int] = {}
        if self._depth is Depth.SIZES:
            listed = self._store.list(partition_folder(partition))
            sizes = {info.key: info.size_bytes for info in listed}
        check = partial(self._check_segment, partition, sizes)
        lineage, epochs = _Lineage(manifest), ArchivedEpochs()
        entries = self._entries(manifest, findings)
        while batch := list(itertools.islice(entries, BATCH_SEGMENTS)):
            findings += lineage.check(batch)
            for found in self._executor.map(check, batch):
                findings += found.findings
                unread += found.unread
                by_size_count += found.by_size_count
            self._on_segments(len(batch))
            for entry in batch:
                epochs.add(entry)
        findings += self._check_tail(manifest)
        findings += self._check_folder(manifest, epochs)
        return PartitionReport(
            partition=partition,
            segment_count=manifest.segment_count,
            size_bytes=manifest.size_bytes,
            findings=tuple(findings),
            unread=tuple(unread),
            by_size_count=by_size_count,
        )

    def _check_folder(self, manifest: Manifest, epochs: ArchivedEpochs) -> Iterator[Finding]:
        """Finds more segments of other records than unfinished copies may leave."""
        partition = manifest.topic_id_partition
        keys = (info.key for info in self._store.list(partition_folder(partition)))
        bases = segments_of_others(keys, manifest, epochs)
        if len(bases) > COPIES_PER_PARTITION:
            yield Finding(
                partition=partition,
                damage=Damage.OTHER_RECORDS,
                key=manifest_key(partition),
                base_offset=min(bases),
                detail=f"{len(bases)} segments from {min(bases)} on",
            )

    def _check_tail(self, manifest: Manifest) -> Iterator[Finding]:
        for part in manifest.tail:
            detail = fault_of_part(self._store, part)
            if not detail and self._depth is Depth.EVERYTHING:
                try:
                    read_part(self._store, part)
                except ObjectNotFound:
                    # Deleted since the HEAD; if that was right, the second check knows.
                    detail = "is missing"
                except ObjectCorrupt as error:
                    detail = str(error)
            if detail:
                yield of_part(manifest.topic_id_partition, part, Damage.TAIL, detail)

    def _entries(self, manifest: Manifest, findings: list[Finding]) -> Iterator[SegmentEntry]:
        pages = ManifestPages(self._store, pages_max=1)
        for page in manifest.pages:
            try:
                yield from pages.entries(page)
            except (ObjectNotFound, ObjectCorrupt, CorruptFile, UnsupportedFormat) as error:
                findings.append(of_part(manifest.topic_id_partition, page, Damage.PAGE, str(error)))
        yield from manifest.segments

    # --- one segment -------------------------------------------------------------------------

    def _check_segment(
        self, partition: TopicIdPartition, sizes: Mapping[str, int], entry: SegmentEntry
    ) -> _Found:
        """Checks the segment's objects by HEAD, unless the listed `sizes` are right: a listing may
        lag. Reads them for Depth.EVERYTHING.
        """
        found = _Found()
        for part in _parts(entry):
            if sizes.get(part.key) == part.size_bytes:
                continue
            try:
                info = self._store.head(part.key)
            except (ObjectNotFound, ObjectCorrupt) as error:
                found.findings.append(_unreadable(partition, entry, part, error))
                continue
            except AccessDenied as error:
                found.unread.append(str(error))
                continue
            if info.size_bytes != part.size_bytes:
                detail = f"{info.size_bytes} bytes, the manifest says {part.size_bytes}"
                found.findings.append(of_segment(partition, entry, part.corrupt, detail))
            elif info.stated_crc32c not in (None, part.crc32c):
                detail = f"crc32c {info.stated_crc32c:08x}, the manifest says {part.crc32c:08x}"
                found.findings.append(of_segment(partition, entry, part.corrupt, detail))
            elif info.crc32c is None and self._depth is Depth.CHECKSUMS:
                found.by_size_count += 1
        if self._depth is Depth.EVERYTHING and not found.findings and not found.unread:
            try:
                found.findings += self._read(partition, entry)
            except (ObjectNotFound, ObjectCorrupt) as error:
                part = next(part for part in _parts(entry) if part.key == error.key)
                found.findings.append(_unreadable(partition, entry, part, error))
            except (AccessDenied, ObjectArchived, TierUnavailable) as error:
                found.unread.append(f"{entry.log_key}: {error}")
        return found

    def _read(self, partition: TopicIdPartition, entry: SegmentEntry) -> list[Finding]:
        """Reads every byte of the segment, and compares its `.meta` with it."""
        with self._downloads.file(entry) as path:
            try:
                facts = inspect_segment(
                    path,
                    base_offset=entry.base_offset,
                    end_offset=entry.end_offset,
                    # Missing records show in the size, the checksum and the record count.
                    offsets=Offsets.SOME,
                )
            except CorruptRecords as error:
                return [of_segment(partition, entry, Damage.LOG_CORRUPT, str(error))]
            findings = [
                of_segment(partition, entry, Damage.FACTS, detail)
                for detail in _differ(entry, facts)
            ]
            try:
                self._check_meta(entry, facts)
            except StorageError as error:
                if isinstance(error, AccessDenied | ObjectNotFound | TierUnavailable):
                    raise
                findings.append(of_segment(partition, entry, Damage.META_CORRUPT, str(error)))
        return findings

    def _check_meta(self, entry: SegmentEntry, facts: SegmentFacts) -> None:
        """Raises CorruptFile unless the `.meta` is the manifest's, and agrees with the log."""
        content = self._store.get(entry.meta_key)
        if crc32c.crc32c(content) != entry.meta_crc32c:
            raise CorruptFile(f"{entry.meta_key}: its checksum is not the manifest's")
        statistics = decode(content, source=entry.meta_key).get(Section.STATISTICS)
        if statistics is None:
            raise CorruptFile(f"{entry.meta_key}: no statistics")
        archived = SegmentStatistics.decode(statistics, source=entry.meta_key)
        true = statistics_of(facts)
        if archived != (true if archived.has_checksums else true.without_checksums()):
            raise CorruptFile(f"{entry.meta_key}: statistics are not those of the segment")


@dataclass(slots=True)
class _Found:
    """The result of checking one segment."""

    findings: list[Finding] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    # Objects of which the store keeps no checksum.
    by_size_count: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """One object of a segment, as the manifest describes it."""

    key: str
    size_bytes: int
    crc32c: int
    missing: Damage
    corrupt: Damage


def _parts(entry: SegmentEntry) -> tuple[_Part, _Part]:
    log, meta = Damage.LOG_MISSING, Damage.META_MISSING
    return (
        _Part(entry.log_key, entry.size_bytes, entry.log_crc32c, log, Damage.LOG_CORRUPT),
        _Part(entry.meta_key, entry.meta_size_bytes, entry.meta_crc32c, meta, Damage.META_CORRUPT),
    )


def _unreadable(
    partition: TopicIdPartition,
    entry: SegmentEntry,
    part: _Part,
    error: ObjectNotFound | ObjectCorrupt,
) -> Finding:
    if isinstance(error, ObjectNotFound):
        return of_segment(partition, entry, part.missing)
    return of_segment(partition, entry, part.corrupt, str(error))


class _Lineage:
    """Checks ranges and epochs from one entry to the next.

    A decoded manifest has no gaps, so a gap only follows a lost page.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._end_offset: Offset | None = None
        self._epoch = NO_EPOCH

    def check(self, entries: Iterable[SegmentEntry]) -> list[Finding]:
        return [finding for entry in entries for finding in self._check(entry)]

    def _check(self, entry: SegmentEntry) -> Iterator[Finding]:
        partition = self._manifest.topic_id_partition
        expected = self._end_offset
        if expected is not None and entry.base_offset < expected:
            yield of_segment(partition, entry, Damage.OVERLAP, f"the one before ends {expected}")
        self._end_offset = entry.end_offset
        for epoch, start_offset in entry.leader_epochs:
            if epoch < self._epoch or not start_offset < entry.end_offset:
                detail = f"epoch {epoch} at {start_offset} after epoch {self._epoch}"
                yield of_segment(partition, entry, Damage.EPOCH, detail)
            self._epoch = max(self._epoch, epoch)


def _differ(entry: SegmentEntry, facts: SegmentFacts) -> list[str]:
    """Describes the facts that differ between manifest and segment."""
    pairs: Sequence[tuple[str, object, object]] = (
        ("size", entry.size_bytes, facts.size_bytes),
        ("crc32c", entry.log_crc32c, facts.crc32c),
        ("records", entry.record_count, facts.record_count),
        ("first timestamp", entry.min_timestamp_ms, facts.bounds.min_ms),
        ("last timestamp", entry.max_timestamp_ms, facts.bounds.max_ms),
        ("leader epochs", entry.leader_epochs, facts.leader_epochs),
    )
    return [
        f"{name}: the manifest says {told}, the segment has {found}"
        for name, told, found in pairs
        if told != found
    ]
