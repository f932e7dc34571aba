"""Manifests in the object store: read, compare-and-swap, and pages.

A commit is

    1 seal the oldest root entries into a page object, if the root has grown too long
    2 put manifest.json: if absent for the first, if unchanged (etag) after

A crash after 1 leaves a page that nothing refers to: an orphan, found by comparing bucket and
manifest. Step 2 is atomic. Three answers are possible: it is ours, it is somebody else's
(ManifestFenced: stop, and load again before doing anything), or the store is away and nobody
knows (TierUnavailable: try the same commit again; the swap makes repeating it safe).

These functions block; call them in an executor.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from strandline.storage.errors import (
    CorruptFile,
    ManifestFenced,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    TierUnavailable,
)
from strandline.storage.model import Offset, TimestampMs, TopicIdPartition
from strandline.storage.remote.keys import manifest_key, manifest_page_key, new_unique
from strandline.storage.remote.manifest import Manifest
from strandline.storage.remote.manifest_entries import (
    DeletedEntry,
    PageRef,
    SegmentEntry,
    replaced_marks,
)
from strandline.storage.remote.manifest_page import (
    contiguous_count,
    decode_page,
    encode_page,
    page_ref,
)
from strandline.storage.remote.object_store import (
    IfAbsent,
    IfMatches,
    ObjectStore,
    StoredObject,
    checksum,
)
from strandline.storage.values import dataclass

log = logging.getLogger(__name__)

# An entry is about half a KiB, so the root stays below 256 KiB and a page below 128 KiB.
ROOT_ENTRIES_MAX = 512
PAGE_ENTRIES = 256
# Pages are read for old offsets and for deleting; 64 of them describe 16,384 segments.
CACHED_PAGES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredManifest:
    """A manifest as it lies in the store, with the etag that the next commit must still find."""

    manifest: Manifest
    etag: str


def load(store: ObjectStore, partition: TopicIdPartition) -> StoredManifest | None:
    """The partition's manifest; None if none was ever written.

    Raises CorruptFile or UnsupportedFormat, and whatever the store raises: only a plain 404 means
    that there is none.
    """
    key = manifest_key(partition)
    try:
        stored = store.get_object(key)
    except ObjectNotFound:
        return None
    return _decode(key, stored, partition)


def commit(
    store: ObjectStore,
    previous: StoredManifest | None,
    new: Manifest,
    *,
    root_entries_max: int = ROOT_ENTRIES_MAX,
    page_entries: int = PAGE_ENTRIES,
) -> StoredManifest:
    """Writes `new` if `previous` (or nothing, for None) is still what lies there.

    Returns what was written: its revision is one above the previous, and old entries may have
    moved into a page. Raises ManifestFenced, or TierUnavailable if the outcome is not known.
    """
    key = manifest_key(new.topic_id_partition)
    _check_successor(key, previous, new)
    revision = 1 if previous is None else previous.manifest.revision + 1
    sealed = _seal(store, new, root_entries_max=root_entries_max, page_entries=page_entries)  # 1
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
    """Reads back: a lost answer looks like a lost race, and like an outage."""
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
    found = Manifest.decode(stored.body, source=key)
    raise ManifestFenced(
        key,
        "commit",
        f"found revision {found.revision} of epoch {found.leader_epoch}, "
        f"wanted to write revision {final.revision} of epoch {final.leader_epoch}",
    ) from error


def _seal(
    store: ObjectStore, manifest: Manifest, *, root_entries_max: int, page_entries: int
) -> Manifest:
    if len(manifest.segments) <= root_entries_max:
        return manifest
    count = contiguous_count(manifest.segments, page_entries)
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


def with_replaced_run(
    store: ObjectStore,
    manifest: Manifest,
    old: Sequence[SegmentEntry],
    new: SegmentEntry,
    *,
    marked_ms: TimestampMs,
) -> Manifest:
    """`new` in the place of adjacent entries of the root, or of one page, which is written anew.

    Raises ValueError if they are not there any more as they were, and as the store does.
    """
    page = manifest.find_page(old[0].base_offset)
    if page is None:
        return manifest.with_replacement(old, new, marked_ms=marked_ms)
    entries = ManifestPages(store, pages_max=1).entries(page)
    first = next((i for i, entry in enumerate(entries) if entry == old[0]), -1)
    if first < 0 or entries[first : first + len(old)] != tuple(old):
        raise ValueError(f"entries from {old[0].base_offset} on are not what they were")
    changed = [*entries[:first], new, *entries[first + len(old) :]]
    ref = write_page(store, manifest.topic_id_partition, changed)
    marks = (
        *replaced_marks(old, [new], marked_ms=marked_ms),
        page_mark(page, marked_ms=marked_ms),
    )
    return manifest.with_replaced_page(page, ref, marks)


def page_mark(page: PageRef, *, marked_ms: TimestampMs) -> DeletedEntry:
    """The mark of a page that another one has replaced."""
    return DeletedEntry(log_key=page.key, meta_key=page.key, marked_ms=marked_ms)


def _decode(key: str, stored: StoredObject, partition: TopicIdPartition) -> StoredManifest:
    manifest = Manifest.decode(stored.body, source=key)
    if manifest.topic_id_partition != partition:
        raise CorruptFile(
            f"{key}: is the manifest of {manifest.topic_id_partition} "
            f"({manifest.topic_id}), not of {partition} ({partition.topic_id})"
        )
    return StoredManifest(manifest=manifest, etag=stored.info.etag)


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
        content = self._store.get(page.key)
        if checksum(content) != page.crc32c:
            raise ObjectCorrupt(page.key, "get", "checksum differs from the manifest's")
        loaded = decode_page(content, page)
        with self._lock:
            self._cached[page] = loaded
            while len(self._cached) > self._pages_max:
                self._cached.popitem(last=False)
        return loaded

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
        """The entry that holds `offset`, wherever it lies; None if it is not archived."""
        page = manifest.find_page(offset)
        if page is None:
            return manifest.find(offset)
        for entry in self.entries(page):
            if entry.base_offset <= offset < entry.end_offset:
                return entry
        return None

    def find_by_timestamp(
        self, manifest: Manifest, timestamp_ms: TimestampMs
    ) -> SegmentEntry | None:
        """The first entry above the log start with a record at or after `timestamp_ms`."""
        for page in manifest.pages:
            if page.max_timestamp_ms < timestamp_ms:
                continue
            for entry in self.entries(page):
                if (
                    entry.max_timestamp_ms >= timestamp_ms
                    and entry.end_offset > manifest.log_start_offset
                ):
                    return entry
        return manifest.find_by_timestamp(timestamp_ms)
