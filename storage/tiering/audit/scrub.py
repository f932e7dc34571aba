"""Verifies an archive: compares every manifest with the objects in the bucket.

    manifest     readable; ranges in order, no gap above the log start, no overlap; epochs grow
    pages        there, their checksum is the manifest's, their entries are its range
    segments     `.log` and `.meta` are there, with the manifest's size and checksum
    pieces       of the open segment: the same
    DEEP         every byte: batches' CRCs, offsets, counts, times; indexes true to the log

Nothing is changed here: each finding says what could be done about it (findings.py). Where a store
keeps no checksum of its own (of what others copied there, or of anything), sizes alone are compared
unless the run is a deep one; how many objects that were is counted.

An object that is gone may have been let go meanwhile by a running broker, so a partition with
findings is looked at again from its newest manifest, and only what is found twice is told; of a
topic that was deleted meanwhile nothing is.

Blocking; requests run in an executor's threads, a bounded number of segments at a time.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path

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
from strandline.storage.remote.segment.meta import MetaReader, Section, SegmentStatistics
from strandline.storage.tiering.audit.findings import (
    Damage,
    Finding,
    PartitionReport,
    of_segment,
)
from strandline.storage.tiering.audit.segment_download import SegmentDownloads
from strandline.storage.tiering.copy.inspection import Offsets, SegmentFacts, inspect_segment
from strandline.storage.tiering.copy.segment_sections import check_offset_index, statistics_of
from strandline.storage.tiering.copy.segment_walk import AdaptiveWalk
from strandline.storage.tiering.partition.older_manifest import (
    ArchivedEpochs,
    is_beyond,
    segments_beyond,
    segments_of_others,
)
from strandline.storage.tiering.partition.open_segment_parts import fault_of_part, read_part
from strandline.storage.tiering.policy.lifecycle import COPIES_PER_PARTITION

# Requests at the same time; a HEAD takes 30 ms, so 500 segments a second.
PARALLEL_MAX = 16
# Segments whose answers are waited for together: bounds what is in memory.
BATCH_SEGMENTS = 256
# Objects beyond the end of an archive that are looked at: one request.
LISTED_MAX = 1000


class Depth(Enum):
    """How closely segments are checked."""

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
        """Looks at one partition. Raises TierUnavailable or AccessDenied if the store is away."""
        first = self._check_once(partition)
        if not first.findings:
            return first
        second = self._check_once(partition)
        again = {(f.damage, f.key) for f in first.findings}
        kept = tuple(f for f in second.findings if (f.damage, f.key) in again)
        if kept and self._is_deleted(partition):
            # The purge takes objects before the manifest that names them.
            return PartitionReport(partition=partition, segment_count=0, size_bytes=0)
        return replace(second, findings=kept)

    def _is_deleted(self, partition: TopicIdPartition) -> bool:
        """Whether the topic, which was there when the run began, is on its way out, or gone."""
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
            return PartitionReport(
                partition=partition, segment_count=0, size_bytes=0, findings=(damaged,)
            )
        if stored is None:
            return PartitionReport(partition=partition, segment_count=0, size_bytes=0)
        report = self._check_manifest(stored.manifest)
        return replace(report, findings=(*report.findings, *self._check_end(stored.manifest)))

    def _check_end(self, manifest: Manifest) -> Iterator[Finding]:
        """Whether there are more segments beyond the end than copies under way may leave."""
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
        # What was committed by the time of the listing is in the manifest that is read after it.
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
        sizes = self._listed_sizes(partition) if self._depth is Depth.SIZES else None
        lineage, epochs = _Lineage(manifest), ArchivedEpochs()
        entries = self._entries(manifest, findings)
        while batch := list(itertools.islice(entries, BATCH_SEGMENTS)):
            findings += lineage.check(batch)
            check = partial(
                self._check_segment if sizes is None else self._check_listed, partition, sizes
            )
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
        """Whether more segments of another history lie beside the archive than copies leave."""
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
                    # It was let go since it was asked for; the second look knows.
                    detail = "is missing"
                except ObjectCorrupt as error:
                    detail = str(error)
            if detail:
                yield Finding(
                    partition=manifest.topic_id_partition,
                    damage=Damage.TAIL,
                    key=part.key,
                    base_offset=part.base_offset,
                    end_offset=part.end_offset,
                    detail=detail,
                )

    def _entries(self, manifest: Manifest, findings: list[Finding]) -> Iterator[SegmentEntry]:
        pages = ManifestPages(self._store, pages_max=1)
        for page in manifest.pages:
            try:
                yield from pages.entries(page)
            except (ObjectNotFound, ObjectCorrupt, CorruptFile, UnsupportedFormat) as error:
                damaged = Finding(
                    partition=manifest.topic_id_partition,
                    damage=Damage.PAGE,
                    key=page.key,
                    base_offset=page.base_offset,
                    end_offset=page.end_offset,
                    detail=str(error),
                )
                findings.append(damaged)
        yield from manifest.segments

    def _listed_sizes(self, partition: TopicIdPartition) -> dict[str, int]:
        prefix = manifest_key(partition).rpartition("/")[0] + "/"
        return {info.key: info.size_bytes for info in self._store.list(prefix)}

    # --- one segment -------------------------------------------------------------------------

    def _check_listed(
        self, partition: TopicIdPartition, sizes: dict[str, int] | None, entry: SegmentEntry
    ) -> _Found:
        assert sizes is not None
        findings: list[Finding] = []
        for part in _parts(entry):
            size_bytes = sizes.get(part.key)
            if size_bytes is None:
                # A listing may lag; asked by its name it is there.
                size_bytes = self._size_by_name(part.key)
            if size_bytes is None:
                findings.append(of_segment(partition, entry, part.missing))
            elif size_bytes != part.size_bytes:
                detail = _sizes(size_bytes, part)
                findings.append(of_segment(partition, entry, part.corrupt, detail))
        return _Found(findings=findings)

    def _size_by_name(self, key: str) -> int | None:
        try:
            return self._store.head(key).size_bytes
        except ObjectNotFound:
            return None

    def _check_segment(
        self, partition: TopicIdPartition, _listed: object, entry: SegmentEntry
    ) -> _Found:
        found = _Found()
        for part in _parts(entry):
            try:
                info = self._store.head(part.key)
            except ObjectNotFound:
                found.findings.append(of_segment(partition, entry, part.missing))
                continue
            except ObjectCorrupt as error:
                found.findings.append(of_segment(partition, entry, part.corrupt, str(error)))
                continue
            except AccessDenied as error:
                found.unread.append(str(error))
                continue
            if info.size_bytes != part.size_bytes:
                detail = _sizes(info.size_bytes, part)
                found.findings.append(of_segment(partition, entry, part.corrupt, detail))
            elif info.stated_crc32c not in (None, part.crc32c):
                detail = f"crc32c {info.stated_crc32c:08x}, the manifest says {part.crc32c:08x}"
                found.findings.append(of_segment(partition, entry, part.corrupt, detail))
            elif info.crc32c is None and self._depth is Depth.CHECKSUMS:
                found.by_size_count += 1
        if self._depth is Depth.EVERYTHING and not found.findings and not found.unread:
            try:
                found.findings += self._read(partition, entry)
            except ObjectNotFound as error:
                # It was let go since it was asked for; the second look knows.
                gone = next(part for part in _parts(entry) if part.key == error.key)
                found.findings.append(of_segment(partition, entry, gone.missing))
            except ObjectCorrupt as error:
                bad = next(part for part in _parts(entry) if part.key == error.key)
                found.findings.append(of_segment(partition, entry, bad.corrupt, str(error)))
            except (AccessDenied, ObjectArchived, TierUnavailable) as error:
                found.unread.append(f"{entry.log_key}: {error}")
        return found

    def _read(self, partition: TopicIdPartition, entry: SegmentEntry) -> list[Finding]:
        """Every byte of the segment, and its `.meta` against it."""
        with self._downloads.file(entry) as path:
            try:
                facts = inspect_segment(
                    path,
                    base_offset=entry.base_offset,
                    end_offset=entry.end_offset,
                    walk=AdaptiveWalk(),
                    # What is missing shows in the size, the checksum and the record count.
                    offsets=Offsets.SOME,
                )
            except CorruptRecords as error:
                return [of_segment(partition, entry, Damage.LOG_CORRUPT, str(error))]
            findings = [
                of_segment(partition, entry, Damage.FACTS, detail)
                for detail in _differ(entry, facts)
            ]
            try:
                self._check_meta(entry, facts, path)
            except StorageError as error:
                if isinstance(error, AccessDenied | ObjectNotFound | TierUnavailable):
                    raise
                findings.append(of_segment(partition, entry, Damage.META_CORRUPT, str(error)))
        return findings

    def _check_meta(self, entry: SegmentEntry, facts: SegmentFacts, path: Path) -> None:
        """Raises CorruptFile or ObjectCorrupt unless the `.meta` is true to the log."""
        reader = MetaReader(self._store, entry.meta_key, entry.meta_size_bytes)
        sections = {section: reader.read(section) for section in Section}
        index = sections[Section.OFFSET_INDEX]
        if index is None:
            raise CorruptFile(f"{entry.meta_key}: no offset index")
        with open(path, "rb") as file:
            # Released with the last view of it.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        check_offset_index(index, memoryview(content), base_offset=entry.base_offset)
        statistics = sections[Section.STATISTICS]
        if statistics is None:
            raise CorruptFile(f"{entry.meta_key}: no statistics")
        archived = SegmentStatistics.decode(statistics, source=entry.meta_key)
        true = statistics_of(facts)
        if archived != (true if archived.has_checksums else true.without_checksums()):
            raise CorruptFile(f"{entry.meta_key}: statistics are not those of the segment")


@dataclass(slots=True)
class _Found:
    findings: list[Finding] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    # Objects of which the store keeps no checksum.
    by_size_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One object of a segment, as the manifest describes it."""

    key: str
    size_bytes: int
    crc32c: int
    missing: Damage
    corrupt: Damage


def _parts(entry: SegmentEntry) -> tuple[_Part, _Part]:
    return (
        _Part(
            key=entry.log_key,
            size_bytes=entry.size_bytes,
            crc32c=entry.log_crc32c,
            missing=Damage.LOG_MISSING,
            corrupt=Damage.LOG_CORRUPT,
        ),
        _Part(
            key=entry.meta_key,
            size_bytes=entry.meta_size_bytes,
            crc32c=entry.meta_crc32c,
            missing=Damage.META_MISSING,
            corrupt=Damage.META_CORRUPT,
        ),
    )


class _Lineage:
    """Ranges and epochs from one entry to the next.

    A manifest with a gap is not read at all; here there is one only behind a page that is lost.
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
    """What the manifest says that is not so."""
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


def _sizes(size_bytes: int, part: _Part) -> str:
    return f"{size_bytes} bytes, the manifest says {part.size_bytes}"
