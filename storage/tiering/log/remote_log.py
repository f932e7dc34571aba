"""The archive of one partition as this broker knows it: its manifest, and reading through it.

    unknown --- loaded from the bucket ---> known (a manifest, or none was ever written)
                                              each commit replaces the manifest

Its `life` says which operations are permitted (`archive_state.py`).

The manifest held here is immutable and was read from, or committed to, the bucket, so its content
is durable. Only its owner (`manifest_owner.py`) replaces it. All others read, on the event loop;
blocking work (sealed pages, records) runs in executors.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.storage.errors import (
    CorruptFile,
    ObjectNotFound,
    StrandlineError,
    TierUnavailable,
    UnsupportedFormat,
)
from strandline.storage.model import (
    NO_EPOCH,
    Epoch,
    Offset,
    TimestampMs,
    TopicIdPartition,
)
from strandline.storage.remote.keys import manifest_key
from strandline.storage.remote.manifest.entries import PageRef, SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import ManifestPages, StoredManifest
from strandline.storage.tiering.policy.archive_state import ArchiveLife
from strandline.storage.tiering.policy.quota import ReadGate

if TYPE_CHECKING:
    from strandline.storage.remote.reader.cold_reader import ColdRead, ColdReader

# Entries offered to the reader for prefetch.
FOLLOWING_ENTRIES_MAX = 4

_NOT_LOADED = StrandlineError("it was not asked for yet")


@dataclass(frozen=True, slots=True)
class _KnownEntry:
    """An entry of a manifest, and its successors there."""

    manifest: Manifest
    entry: SegmentEntry
    following: Sequence[SegmentEntry]


class RemoteLog:
    """The archive of one partition, for reads. Used on the event loop only."""

    def __init__(
        self,
        partition: TopicIdPartition,
        *,
        pages: ManifestPages,
        reader: ColdReader,
        executor: Executor,
        gate: ReadGate,
        life: ArchiveLife,
        on_unavailable: Callable[[], None] = lambda: None,
    ) -> None:
        """`executor` runs the loading of manifest pages; `gate` bounds the reads of all.
        `on_unavailable` is called when a read failed and the store may be down.
        """
        self._on_unavailable = on_unavailable
        self.partition = partition
        self.life = life
        # Why neither the manifest nor its absence is known, for errors of requests that need it.
        self.load_error: StrandlineError | None = _NOT_LOADED
        self.stored: StoredManifest | None = None
        # Takes over the newest manifest of an archive that is followed.
        self.follow: Callable[[], Awaitable[object]] | None = None
        # Restarts the log of a follower behind the newest archive, if it ends below it.
        self.restart_replica: Callable[[], Awaitable[object]] | None = None
        # Asks the store for the manifest that its owner holds.
        self.find_held: Callable[[], Awaitable[object]] | None = None
        self._pages = pages
        self.reader = reader
        self._executor = executor
        self._gate = gate
        # Sequential readers ask for the same entry again and again.
        self._latest: _KnownEntry | None = None

    # --- the manifest ------------------------------------------------------------------------

    def adopt(self, stored: StoredManifest | None) -> None:
        """Takes over the stored manifest (None: there is none)."""
        if self.stored is not None and stored is not None:
            held, new = self.stored.manifest, stored.manifest
            is_same = new.generation == held.generation
            assert not is_same or new.log_start_offset >= held.log_start_offset, (held, new)
        self.load_error = None
        self.stored = stored

    def refuse_regress(self, found: StoredManifest | None) -> None:
        """Checks a loaded manifest against the held one: it must neither be missing nor older.

        Adopting a lost or restored manifest would bury the content of the newest one. Raises
        ObjectNotFound or CorruptFile: an operator has to act.
        """
        held = self.manifest
        if held is None:
            return
        key = manifest_key(self.partition)
        if found is None:
            raise ObjectNotFound(key, "load", f"revision {held.revision} was there before")
        if found.manifest.order < held.order:
            raise CorruptFile(
                f"{key}: revision went back from {held.revision} to {found.manifest.revision}"
            )

    @property
    def known(self) -> bool:
        """Whether the manifest, or its absence, was read from the bucket once."""
        return self.load_error is None

    @property
    def manifest(self) -> Manifest | None:
        """The committed manifest; None if there is none, or none is known yet."""
        return None if self.stored is None else self.stored.manifest

    @property
    def end_offset(self) -> Offset | None:
        """Exclusive end of the committed archive; None while it is empty or unknown."""
        manifest = self.manifest
        return None if manifest is None or manifest.is_empty else manifest.end_offset

    @property
    def last_epoch(self) -> Epoch:
        """Leader epoch of the last archived record; NO_EPOCH while that is not known."""
        manifest = self.manifest
        if manifest is None or not manifest.segments:
            return NO_EPOCH
        return manifest.segments[-1].leader_epochs[-1].epoch

    @property
    def log_start_offset(self) -> Offset:
        """The log start in the manifest; 0 without a manifest."""
        manifest = self.manifest
        return 0 if manifest is None else manifest.log_start_offset

    async def refresh(self) -> None:
        """Returns when the manifest is as new as the store's; the owner's always is."""
        if self.follow is not None:
            await self.follow()

    async def confirm(self) -> None:
        """Returns if the store still has the archive that is known here.

        It is asked before local files are freed because of it: of a bucket that somebody emptied
        they may be all that is left. Raises StorageError.
        """
        ask = self.find_held or self.follow
        if ask is not None:
            await ask()

    # --- entries -----------------------------------------------------------------------------

    async def find_entry(self, offset: Offset) -> SegmentEntry | None:
        """Returns the entry that holds `offset`; None if it is not archived.

        Raises TierUnavailable while the manifest is not known, CorruptFile if it is damaged.
        """
        manifest, latest = self._known_manifest(), self._latest
        if manifest is None:
            return None
        if (
            latest is not None
            and latest.manifest is manifest
            and latest.entry.base_offset <= offset < latest.entry.end_offset
        ):
            return latest.entry
        page = manifest.find_page(offset)
        entries = manifest.segments if page is None else await self.page_entries(page)
        index = _first_ending_above(entries, offset)
        if index == len(entries) or entries[index].base_offset > offset:
            return None
        following = entries[index + 1 : index + 1 + FOLLOWING_ENTRIES_MAX]
        self._latest = _KnownEntry(manifest, entries[index], following)
        return entries[index]

    async def page_entries(self, page: PageRef) -> Sequence[SegmentEntry]:
        """Returns the entries of a sealed page that are not deleted."""
        cached = self._pages.cached_entries(page)
        if cached is not None:
            return cached
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._pages.entries, page)

    async def entries_from(
        self, offset: Offset, *, max_timestamp_from_ms: TimestampMs | None = None
    ) -> AsyncIterator[SegmentEntry]:
        """Entries that end above `offset`, oldest first.

        With `max_timestamp_from_ms`, only those with a record at or after that time; pages without
        one are not read.
        """
        manifest = self._known_manifest()
        if manifest is None:
            return
        for page in manifest.pages:
            if page.end_offset <= offset or _is_before(page, max_timestamp_from_ms):
                continue
            for entry in await self.page_entries(page):
                if entry.end_offset > offset and not _is_before(entry, max_timestamp_from_ms):
                    yield entry
        for entry in manifest.segments[_first_ending_above(manifest.segments, offset) :]:
            if not _is_before(entry, max_timestamp_from_ms):
                yield entry

    async def all_from(self, offset: Offset) -> tuple[SegmentEntry, ...]:
        """As `entries_from`, at once: for callers off the loop that need every entry."""
        manifest = self._known_manifest()
        if manifest is None:
            return ()

        def collect() -> tuple[SegmentEntry, ...]:
            return tuple(self._pages.iter_segments(manifest, start_offset=offset))

        return await asyncio.get_running_loop().run_in_executor(self._executor, collect)

    def following(self, entry: SegmentEntry) -> Sequence[SegmentEntry]:
        """Returns a few entries after `entry`, as far as they are known without a request."""
        manifest, latest = self.manifest, self._latest
        if manifest is None:
            return ()
        if latest is not None and latest.manifest is manifest and latest.entry is entry:
            return latest.following
        page = manifest.find_page(entry.base_offset)
        known = manifest.segments if page is None else self._pages.cached_entries(page) or ()
        index = _first_ending_above(known, entry.end_offset)
        return known[index : index + FOLLOWING_ENTRIES_MAX]

    def _known_manifest(self) -> Manifest | None:
        error = self.load_error
        if error is None:
            return self.manifest
        key = manifest_key(self.partition)
        if isinstance(error, CorruptFile | UnsupportedFormat):
            # Retries cannot fix it: readers get the error, or they would retry for ever.
            raise CorruptFile(f"read {key}: manifest not loaded: {error}")
        raise TierUnavailable(key, "read", f"manifest not loaded: {error}")

    # --- records -----------------------------------------------------------------------------

    async def read(
        self, entry: SegmentEntry, offset: Offset, *, bytes_max: int, end_offset: Offset | None
    ) -> ColdRead:
        """Whole batches of `entry` from the one that holds `offset`; see ColdReader.read.

        Raises TierUnavailable as well if too many reads wait already, or the fetch quota is used
        up.
        """
        self._gate.check_quota(self.partition)
        try:
            found = await self.reader.read(
                entry,
                offset,
                bytes_max=bytes_max,
                end_offset=end_offset,
                next_entries=self.following(entry),
                waiting=self._gate.waiting(self.partition),
            )
        except TierUnavailable:
            self._on_unavailable()
            raise
        self._gate.quota.record(found.size_bytes)
        return found

    def __repr__(self) -> str:
        manifest = self.manifest
        extent = "empty" if manifest is None else f"[{manifest.log_start_offset},{self.end_offset})"
        return f"<RemoteLog {self.partition} {self.life.state.name} {extent}>"


def _is_before(part: PageRef | SegmentEntry, timestamp_ms: TimestampMs | None) -> bool:
    return timestamp_ms is not None and part.max_timestamp_ms < timestamp_ms


def _first_ending_above(entries: Sequence[SegmentEntry], offset: Offset) -> int:
    """Index of the first entry whose end lies above `offset`."""
    return bisect.bisect_right(entries, offset, key=lambda entry: entry.end_offset)
