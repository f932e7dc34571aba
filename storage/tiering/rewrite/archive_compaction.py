"""The archive of a compacted log is compacted too, when that is worth it.

The cleaner has compacted each segment before it was copied, with those that were copied with it.
What came later made older records superfluous, and they lie in the bucket.

    entries    [e0][e1][e2][e3][e4] ...[e9][e10][e11]        of the manifest
               | clean: each key once    | dirty             |
            log start                cleaned_offset        archive's end

    1 index    the keys of the dirty entries, one download after the other      (child process)
    2 rewrite  all entries up to there, in runs of neighbours, one download after the other
      for each run of which something goes:
      2a put .log    crash point compact.after-log       under a name never used before
      2b put .meta   crash point compact.after-meta
      2c verify      size and checksum of both           crash point compact.before-commit
      2d commit      the manifest; in the same step the old objects are marked for deletion
                                                         crash point compact.after-commit
                     (runs in a sealed page: some together, as it is written anew for them)
    3 commit   the mark: clean up to here                crash point compact.after-mark

It is a merge with fewer records, and is committed like one: a crash before 2d leaves orphans, one
after it what is clean already. Each step of the partition does one download or one run, so that
copying and deleting have their turn in between. The child's rules are the local cleaner's
(`cleaning.py`), with the scratch folder holding one segment at a time; a record goes if the archive
itself holds a newer one of its key, so nothing here depends on a local disk.

A tombstone stays until no tier has had anything older of its key for delete.retention.ms
(`compaction_mark`).
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.crash_points import COMPACT_AFTER_LOG, COMPACT_AFTER_META
from strandline.storage.errors import DiskError, ObjectCorrupt
from strandline.storage.local.cleaner.messages import (
    CleanedGroup,
    CleaningRequest,
    CleaningStatistics,
    SegmentWanted,
)
from strandline.storage.local.cleaner.plan import SegmentFacts
from strandline.storage.local.cleaner.process import CleanerProcess
from strandline.storage.local.formats.names import LOG_SUFFIX, TXN_INDEX_SUFFIX, file_name
from strandline.storage.local.formats.txn_index import TxnIndex
from strandline.storage.local.segment.cleaned_segment import cleaned_path, remove_cleaned
from strandline.storage.model import (
    AbortedTransaction,
    Epoch,
    Offset,
    TimestampMs,
    TopicIdPartition,
)
from strandline.storage.remote.manifest.entries import PageRef, SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import Replacement
from strandline.storage.remote.object_store.interface import ObjectOptions, ObjectStore
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import MetaReader, Section
from strandline.storage.system import crc32c
from strandline.storage.tiering.rewrite.merging import (
    RUN_SEGMENTS_MAX,
    PublishPoints,
    SegmentMerger,
)
from strandline.storage.tiering.rewrite.scratch import made

DOWNLOAD_BYTES = 8 * 1024 * 1024
# Read and written in pieces of this size by the child.
IO_BYTES = 1024 * 1024
LOAD_FACTOR = 0.9
# One step reads so many indexes of aborted transactions: a bound on its requests.
INDEXES_PER_STEP = 32

_POINTS = PublishPoints(after_log=COMPACT_AFTER_LOG, after_meta=COMPACT_AFTER_META)


# --- deciding --------------------------------------------------------------------------------


def is_worth_compacting(manifest: Manifest, config: LogConfig) -> bool:
    """Whether the share of bytes that came after the last round is large enough.

    So a byte is rewritten about as often as the archive grows by that share, however long it lives.
    """
    if not config.is_compacted or manifest.is_empty:
        return False
    parts: list[PageRef | SegmentEntry] = [*manifest.pages, *manifest.segments]
    cleaned_offset = 0 if manifest.compaction is None else manifest.compaction.cleaned_offset
    if manifest.segment_count < 2 and not parts[0].base_offset < cleaned_offset:
        # One segment was compacted before it was copied, unless a merge made it of several.
        return False
    dirty_bytes = sum(part.size_bytes for part in parts if part.end_offset > cleaned_offset)
    return dirty_bytes > config.min_cleanable_dirty_ratio * manifest.size_bytes


def borders_of(manifest: Manifest, entries: Sequence[SegmentEntry]) -> frozenset[Offset]:
    """Where a run must not go on: at the edges of pages, behind what was deleted, and now and then.

    The last makes a run one of a bounded number of segments, however small they are.
    """
    edges = {page.base_offset for page in manifest.pages}
    if manifest.segments:
        edges.add(manifest.segments[0].base_offset)
    gaps = {b.base_offset for a, b in pairwise(entries) if a.end_offset != b.base_offset}
    return frozenset(edges | gaps | {e.base_offset for e in entries[::RUN_SEGMENTS_MAX]})


# --- doing -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """What a round is given. `entries` are all that are above the log start, in order."""

    partition: TopicIdPartition
    config: LogConfig
    entries: tuple[SegmentEntry, ...]
    borders: frozenset[Offset]
    cleaned_offset: Offset
    horizon_end_offset: Offset


class CompactionRound:
    """One round over one archive. Its methods block; `advance` and `go_on` take turns."""

    def __init__(
        self,
        job: CompactionJob,
        *,
        store: ObjectStore,
        process: CleanerProcess,
        merger: SegmentMerger,
        believed_ms: Callable[[], TimestampMs],
        key_bytes_max: int,
        scratch: Path | None,
    ) -> None:
        """Raises DiskError without a place for its files."""
        self.job = job
        self._store = store
        self._process = process
        self._merger = merger
        self._believed_ms = believed_ms
        self._key_bytes_max = key_bytes_max
        self._entries = {entry.base_offset: entry for entry in job.entries}
        self._unread = deque(entry for entry in job.entries if entry.has_transactions)
        self._aborted: set[AbortedTransaction] = set()
        try:
            self._scratch = tempfile.TemporaryDirectory(
                dir=made(scratch), prefix="compact-", ignore_cleanup_errors=True
            )
        except OSError as error:
            raise DiskError(f"no temporary folder to compact in: {error.strerror}") from error
        self._directory = Path(self._scratch.name)
        self._fetched: Path | None = None
        self._is_begun = False

    def advance(
        self, *, leader_epoch: Epoch, options: ObjectOptions
    ) -> Replacement | CleaningStatistics | None:
        """A few indexes, one download, or one run; or the end.

        A run has to be taken over before `go_on`: its files are removed then.

        Raises ObjectCorrupt if a segment is not what the manifest says, CorruptRecords, ChildFailed
        and what disk and store raise.
        """
        if self._unread:
            self._read_some_aborted()
            return None
        if not self._is_begun:
            self._process.begin(self._request())
            self._is_begun = True
        answer = self._process.next()
        if isinstance(answer, CleaningStatistics):
            self._is_begun = False
            return answer
        if isinstance(answer, SegmentWanted):
            self._fetch(self._entries[answer.base_offset])
            return None
        return self._published(answer, leader_epoch, options)

    def go_on(self) -> None:
        """What `advance` gave is taken over, or was nothing. Raises ChildFailed."""
        if self._is_begun:
            self._process.proceed()

    def close(self) -> None:
        """Ends the round; the child too, if it is in the middle of it."""
        if self._is_begun:
            self._process.stop()
        self._scratch.cleanup()

    def _request(self) -> CleaningRequest:
        job = self.job
        return CleaningRequest(
            directory=self._directory,
            config=job.config,
            segments=tuple(map(_facts, job.entries)),
            first_dirty_offset=max(job.cleaned_offset, job.entries[0].base_offset),
            first_uncleanable_offset=job.entries[-1].end_offset,
            # A restore takes the producers from the `.meta`, not from the records.
            producers=(),
            aborted=tuple(self._aborted),
            now_ms=self._believed_ms(),
            key_bytes_max=self._key_bytes_max,
            load_factor=LOAD_FACTOR,
            io_bytes=IO_BYTES,
            io_bytes_per_s=float("inf"),
            horizon_end_offset=job.horizon_end_offset,
            keeps_segments=True,
            asks_for_segments=True,
            group_starts=job.borders,
        )

    def _read_some_aborted(self) -> None:
        for _ in range(min(INDEXES_PER_STEP, len(self._unread))):
            entry = self._unread.popleft()
            reader = MetaReader(self._store, entry.meta_key, entry.meta_size_bytes)
            found = reader.read(Section.TXN_INDEX)
            if found is not None:
                self._aborted.update(segment_meta.decode_txn_index(found, source=entry.meta_key))

    def _fetch(self, entry: SegmentEntry) -> None:
        """The segment as a file; the one before is not needed any more."""
        self._forget_fetched()
        path = self._directory / file_name(entry.base_offset, LOG_SUFFIX)
        self._fetched = path
        crc = 0
        try:
            with open(path, "wb") as file:
                for start in range(0, entry.size_bytes, DOWNLOAD_BYTES):
                    end = min(start + DOWNLOAD_BYTES, entry.size_bytes)
                    content = self._store.get(entry.log_key, start=start, end=end)
                    crc = crc32c.crc32c(content, crc)
                    file.write(content)
        except OSError as error:
            raise DiskError(f"cannot write {path}: {error.strerror}") from error
        if crc != entry.log_crc32c:
            raise ObjectCorrupt(entry.log_key, "compact", "is not what the manifest says")

    def _forget_fetched(self) -> None:
        if self._fetched is not None:
            files.remove(self._fetched)
            self._fetched = None

    def _published(
        self, group: CleanedGroup, leader_epoch: Epoch, options: ObjectOptions
    ) -> Replacement | None:
        """A verified, uncommitted segment that may take the place of a run."""
        self._forget_fetched()
        if group.facts is None:
            return None
        base_offset = group.facts.base_offset
        run = tuple(self._entries[source.base_offset] for source in group.sources)
        entry = self._merger.publish(
            self.job.partition,
            run,
            cleaned_path(self._directory, base_offset, LOG_SUFFIX),
            leader_epoch=leader_epoch,
            options=options,
            points=_POINTS,
            aborted=self._still_aborted(base_offset),
        )
        remove_cleaned(self._directory, base_offset)
        return Replacement(old=run, new=entry)

    def _still_aborted(self, base_offset: Offset) -> Sequence[AbortedTransaction]:
        """The aborted transactions whose markers the rewritten segment has.

        One that is named without its marker would go on for a reader with the next transaction of
        its producer.
        """
        path = cleaned_path(self._directory, base_offset, TXN_INDEX_SUFFIX)
        return TxnIndex.open(path).entries if path.exists() else ()

    def __repr__(self) -> str:
        return f"<CompactionRound {self.job.partition} entries={len(self._entries)}>"


def _facts(entry: SegmentEntry) -> SegmentFacts:
    return SegmentFacts(
        base_offset=entry.base_offset,
        end_offset=entry.end_offset,
        size_bytes=entry.size_bytes,
        max_timestamp_ms=entry.max_timestamp_ms,
    )


class ArchiveCompactor:
    """One round at a time, of whichever partition asks first. Used on the event loop."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        merger: SegmentMerger,
        process: CleanerProcess,
        believed_ms: Callable[[], TimestampMs],
        key_bytes_max: int,
        scratch: Path | None = None,
    ) -> None:
        """`scratch` is where segments lie meanwhile; None: the system's place. `believed_ms` is the
        time by which tombstones are over.
        """
        self._store = store
        self._merger = merger
        self._process = process
        self._believed_ms = believed_ms
        self._key_bytes_max = key_bytes_max
        self._scratch = scratch
        self._round: CompactionRound | None = None

    @property
    def is_busy(self) -> bool:
        return self._round is not None

    def round_of(self, owner: TopicIdPartition) -> CompactionRound | None:
        """The round that `owner` has under way; not that of a topic which had its name before."""
        under_way = self._round
        return under_way if under_way is not None and under_way.job.partition == owner else None

    def begin(self, job: CompactionJob) -> CompactionRound:
        """A new round, if none is under way. Raises DiskError."""
        assert self._round is None, (job.partition, self._round)
        self._round = CompactionRound(
            job,
            store=self._store,
            process=self._process,
            merger=self._merger,
            believed_ms=self._believed_ms,
            key_bytes_max=self._key_bytes_max,
            scratch=self._scratch,
        )
        return self._round

    def end(self, finished: CompactionRound) -> None:
        """Kills the child if it is in the middle, then gives the place to others. Blocks shortly.

        In this order: the next round has the same child.
        """
        if self._round is finished:
            try:
                finished.close()
            finally:
                self._round = None

    def end_if_idle(self) -> None:
        """Ends an idle child. Blocks."""
        if self._round is None:
            self._process.end_if_idle()

    def close(self) -> None:
        """Ends the child for good; a round that is under way fails at once."""
        self._process.close()
