"""Loads and commits manifests in the object store, and reads and writes their pages.

A commit is

    1 seal the oldest root entries into a page object, if the root has grown too long;
      PAGES_MERGED pages of one size become one, and the old ones are marked for deletion
    2 put manifest.json: if absent for the first, if unchanged (etag) after

A crash after 1 leaves a page that nothing refers to: an orphan, found by comparing bucket and
manifest. Step 2 is atomic, with three outcomes: the write succeeded, another broker's write won
(ManifestFenced: stop, and load again before any other step), or the store is unreachable and the
outcome unknown (TierUnavailable: retry the same commit; the swap makes that safe).

These functions block; call them in an executor.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from strandline.storage.errors import (
    CorruptFile,
    ManifestFenced,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    TierUnavailable,
)
from strandline.storage.model import Buffer, Offset, TimestampMs, TopicIdPartition
from strandline.storage.remote.keys import (
    manifest_key,
    manifest_page_key,
    new_unique,
    partition_folder,
)
from strandline.storage.remote.manifest.entries import (
    DeletedEntry,
    PageRef,
    SegmentEntry,
    find_range,
    object_mark,
    replaced_marks,
    with_replaced_run,
)
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.page import (
    contiguous_count,
    decode_page,
    encode_page,
    page_ref,
)
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectStore,
    ReadsArchive,
    checksum,
)

log = logging.getLogger(__name__)

# An entry is about half a KiB: a commit writes 32 to 64 KiB of them, however long the archive is.
ROOT_ENTRIES_MAX = 128
PAGE_ENTRIES = 64
# Eight pages become one of eight times the size, up to 2 MiB: 100,000 segments are some 40 pages
# then, 10 KiB of the root, and every entry was rewritten twice.
PAGES_MERGED = 8
PAGE_ENTRIES_MAX = 4096
# Pages are read for old offsets and for deleting: some 10 MB in memory.
CACHED_PAGES_MAX = 64
CACHED_ENTRIES_MAX = 4 * PAGE_ENTRIES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredManifest:
    """A manifest as stored, with the etag that the next commit must match."""

    manifest: Manifest
    etag: str


def load(store: ObjectStore, partition: TopicIdPartition) -> StoredManifest | None:
    """Returns the partition's manifest; None if none was ever written.

    Raises CorruptFile or UnsupportedFormat, and whatever the store raises: only a plain 404 means
    that there is none.
    """
    key = manifest_key(partition)
    try:
        stored = store.get_object(key)
    except ObjectNotFound:
        return None
    return StoredManifest(manifest=_decode(key, stored.body, partition), etag=stored.info.etag)


def load_manifest(store: ReadsArchive, partition: TopicIdPartition) -> Manifest | None:
    """As `load`, for readers that commit nothing."""
    key = manifest_key(partition)
    try:
        return _decode(key, store.get(key), partition)
    except ObjectNotFound:
        return None


def load_or_refuse(store: ObjectStore, partition: TopicIdPartition) -> StoredManifest | None:
    """As `load`, for callers that act on a missing manifest: a 404 alone is not proof.

    The manifest is written before any other object of its partition, so an empty folder is the
    proof. Raises TierUnavailable if the listing has the manifest, CorruptFile if it was lost.
    """
    stored = load(store, partition)
    if stored is not None:
        return stored
    key = manifest_key(partition)
    other = next(store.list(partition_folder(partition), limit=1), None)
    if other is None:
        return None
    if any(info.key == key for info in store.list(key, limit=1)):
        raise TierUnavailable(key, "load", "not found, and yet it is listed")
    raise CorruptFile(
        f"{key}: there is none, and yet there is {other.key}: the manifest was lost. Put it back"
        " (a bucket with versioning still has it); or, if nothing of this partition's archive is"
        " wanted any more, delete its folder in the bucket"
    )


def commit(
    store: ObjectStore,
    previous: StoredManifest | None,
    new: Manifest,
    *,
    now_ms: TimestampMs | None = None,
    root_entries_max: int = ROOT_ENTRIES_MAX,
    page_entries: int = PAGE_ENTRIES,
    page_entries_max: int = PAGE_ENTRIES_MAX,
) -> StoredManifest:
    """Writes `new` if `previous` (or nothing, for None) is still the stored manifest.

    Returns the written manifest: its revision is one above the previous, and old entries may have
    moved into a page. Pages are merged only if `now_ms` is given: it starts the grace time of the
    replaced pages. Raises ManifestFenced, or TierUnavailable if the outcome is not known.
    """
    key = manifest_key(new.topic_id_partition)
    _check_successor(key, previous, new)
    revision = 1 if previous is None else previous.manifest.revision + 1
    sealed = new
    while len(sealed.segments) > root_entries_max:
        count = contiguous_count(sealed.segments, page_entries)
        sealed = _with_new_page(store, sealed, count)  # 1
        if now_ms is not None:
            sealed = _with_merged_pages(store, sealed, page_entries, page_entries_max, now_ms)
    final = replace(sealed, revision=max(new.revision, revision))
    content = final.encode()
    condition = IfAbsent() if previous is None else IfMatches(previous.etag)
    try:
        info = store.put(key, content, condition=condition)  # 2
    except (PreconditionFailed, TierUnavailable) as error:
        return _after_doubt(store, key, previous, final, content, error)
    return StoredManifest(manifest=final, etag=info.etag)


def _check_successor(key: str, previous: StoredManifest | None, new: Manifest) -> None:
    if previous is None:
        return
    old = previous.manifest
    assert old.topic_id_partition == new.topic_id_partition, (old, new)
    assert new.log_start_offset >= old.log_start_offset, (old, new)
    if new.leader_epoch < old.leader_epoch:
        raise ManifestFenced(
            key, "commit", f"leader epoch {new.leader_epoch}, the manifest has {old.leader_epoch}"
        )


def _after_doubt(
    store: ObjectStore,
    key: str,
    previous: StoredManifest | None,
    final: Manifest,
    content: bytes,
    error: PreconditionFailed | TierUnavailable,
) -> StoredManifest:
    """Reads the manifest back: a lost response looks like a lost race, and like an outage."""
    try:
        stored = store.get_object(key)
    except ObjectNotFound:
        if isinstance(error, PreconditionFailed):
            raise ManifestFenced(key, "commit", "the manifest was deleted") from error
        raise error from None
    except TierUnavailable:
        raise error from None
    if stored.body == content:
        return StoredManifest(manifest=final, etag=stored.info.etag)
    if (
        isinstance(error, TierUnavailable)
        and previous is not None
        and stored.info.etag == previous.etag
    ):
        raise error
    theirs = Manifest.decode(stored.body, source=key)
    raise ManifestFenced(
        key,
        "commit",
        f"found revision {theirs.revision} of epoch {theirs.leader_epoch}, "
        f"wanted to write revision {final.revision} of epoch {final.leader_epoch}",
    ) from error


def _with_new_page(store: ObjectStore, manifest: Manifest, count: int) -> Manifest:
    """Seals the first `count` entries of the root into a page."""
    page = write_page(store, manifest.topic_id_partition, manifest.segments[:count])
    log.info(
        "manifest page sealed",
        extra={
            "fields": {
                "partition": str(manifest.topic_id_partition),
                "key": page.key,
                "segments": count,
            }
        },
    )
    return manifest.with_sealed_page(page)


def _with_merged_pages(
    store: ObjectStore,
    manifest: Manifest,
    page_entries: int,
    page_entries_max: int,
    marked_ms: TimestampMs,
) -> Manifest:
    """Merges the last PAGES_MERGED pages if they are of one size; repeats with larger ones."""
    while pages := mergeable_pages(manifest.pages, page_entries, page_entries_max):
        try:
            entries = [entry for page in pages for entry in read_page(store, page)]
        except StorageError as error:
            # The scrub reports an unreadable page; it must not block a commit.
            log.warning(
                "manifest pages cannot be merged",
                extra={"fields": {"first_key": pages[0].key, "reason": str(error)}},
            )
            break
        merged = write_page(store, manifest.topic_id_partition, entries)
        marks = [object_mark(page.key, marked_ms=marked_ms) for page in pages]
        manifest = manifest.with_merged_pages(merged, marks)
    return manifest


def mergeable_pages(
    pages: Sequence[PageRef], page_entries: int, page_entries_max: int
) -> Sequence[PageRef]:
    """Returns the last PAGES_MERGED pages if they are of one size and fit into one; else none."""
    last = pages[-PAGES_MERGED:]
    if len(last) < PAGES_MERGED or sum(page.segment_count for page in last) > page_entries_max:
        return ()
    smallest = page_entries
    while last[-1].segment_count >= PAGES_MERGED * smallest:
        smallest *= PAGES_MERGED
    sizes = range(1 if smallest == page_entries else smallest, PAGES_MERGED * smallest)
    is_one_run = all(page.segment_count in sizes for page in last) and all(
        left.end_offset == right.base_offset for left, right in pairwise(last)
    )
    return last if is_one_run else ()


def read_page(store: ReadsArchive, page: PageRef) -> tuple[SegmentEntry, ...]:
    """The page's entries that are not deleted. Raises ObjectCorrupt, and as the store does."""
    content = store.get(page.key)
    if checksum(content) != page.crc32c:
        raise ObjectCorrupt(page.key, "get", "checksum differs from the manifest's")
    return decode_page(content, page)


def write_page(
    store: ObjectStore, partition: TopicIdPartition, entries: Sequence[SegmentEntry]
) -> PageRef:
    """Writes a page of adjacent entries under a new name; nothing refers to it yet."""
    key = manifest_page_key(
        partition,
        base_offset=entries[0].base_offset,
        end_offset=entries[-1].end_offset,
        unique=new_unique(),
    )
    content = encode_page(partition, entries)
    store.put(key, content, condition=IfAbsent())
    return page_ref(key, entries, crc32c=checksum(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Adjacent entries, and the entry that replaces them in the same range."""

    old: tuple[SegmentEntry, ...]
    new: SegmentEntry


def with_replaced_runs(
    store: ObjectStore,
    manifest: Manifest,
    runs: Sequence[Replacement],
    *,
    marked_ms: TimestampMs,
) -> Manifest:
    """Replaces runs of the root, or of one page, which is rewritten once for all of them.

    Raises ValueError if the manifest no longer has one of the runs, and as the store does.
    """
    page = manifest.find_page(runs[0].old[0].base_offset)
    if page is None:
        for run in runs:
            manifest = manifest.with_replacement(run.old, run.new, marked_ms=marked_ms)
        return manifest
    entries = read_page(store, page)
    marks: list[DeletedEntry] = []
    for run in runs:
        entries = with_replaced_run(entries, run.old, run.new)
        marks += replaced_marks(run.old, [run.new], marked_ms=marked_ms)
    ref = write_page(store, manifest.topic_id_partition, entries)
    marks.append(object_mark(page.key, marked_ms=marked_ms))
    return manifest.with_replaced_page(page, ref, marks)


def _decode(key: str, content: Buffer, partition: TopicIdPartition) -> Manifest:
    manifest = Manifest.decode(content, source=key)
    if manifest.topic_id_partition != partition:
        raise CorruptFile(
            f"{key}: is the manifest of {manifest.topic_id_partition} "
            f"({manifest.topic_id}), not of {partition} ({partition.topic_id})"
        )
    return manifest


class ManifestPages:
    """Reads sealed pages, keeping the last few: they never change. Thread-safe, blocking."""

    def __init__(self, store: ObjectStore, *, pages_max: int = CACHED_PAGES_MAX) -> None:
        self._store = store
        self._pages_max = pages_max
        self._lock = threading.Lock()
        self._cached: OrderedDict[PageRef, tuple[SegmentEntry, ...]] = OrderedDict()

    def entries(self, page: PageRef) -> tuple[SegmentEntry, ...]:
        """The page's entries that are not deleted. Raises ObjectCorrupt, and as the store does."""
        with self._lock:
            if page in self._cached:
                self._cached.move_to_end(page)
                return self._cached[page]
        loaded = read_page(self._store, page)
        with self._lock:
            self._cached[page] = loaded
            while len(self._cached) > 1 and self._is_too_much():
                self._cached.popitem(last=False)
        return loaded

    def _is_too_much(self) -> bool:
        entries = sum(map(len, self._cached.values()))
        return len(self._cached) > self._pages_max or entries > CACHED_ENTRIES_MAX

    def cached_entries(self, page: PageRef) -> tuple[SegmentEntry, ...] | None:
        """As `entries`, but None instead of a request to the store."""
        with self._lock:
            return self._cached.get(page)

    def iter_segments(
        self, manifest: Manifest, *, start_offset: Offset = 0
    ) -> Iterator[SegmentEntry]:
        """All entries that end above `start_offset`, oldest first; pages are read as it goes."""
        for page in manifest.pages:
            if page.end_offset > start_offset:
                for entry in self.entries(page):
                    if entry.end_offset > start_offset:
                        yield entry
        for entry in manifest.segments:
            if entry.end_offset > start_offset:
                yield entry

    def find(self, manifest: Manifest, offset: Offset) -> SegmentEntry | None:
        """The entry that holds `offset`, in the root or a page; None if it is not archived."""
        page = manifest.find_page(offset)
        if page is None:
            return manifest.find(offset)
        return find_range(self.entries(page), offset)
