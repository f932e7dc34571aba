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
copying and deleting have their turn in between, and waits while too much of what was replaced
before is waiting for its grace time. What was rewritten of a run that is gone meanwhile is an
orphan. The child's rules are the local cleaner's (`cleaning.py`), with the scratch folder holding
one segment at a time; a record goes if the archive itself holds a newer one of its key, so nothing
here depends on a local disk.

A tombstone stays until no tier has had anything older of its key for delete.retention.ms
(`compaction_mark`).

A round reads the whole archive, so one that fails may have paid for all of it: the next one waits
longer and longer. Of a segment that cannot be read, because it is damaged or lies in a class that
has to be restored first, a few rounds are enough: then there is none until the next start, or until
that segment is another one.

However large the archive is, a step costs the same, and so does a commit: the root is bounded by
the bound on marks, and a page of thousands of entries is written once for many runs, unless these
take so long that it does not matter (docs/decisions/0018).
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.crash_points import (
    COMPACT_AFTER_COMMIT,
    COMPACT_AFTER_LOG,
    COMPACT_AFTER_MARK,
    COMPACT_AFTER_META,
    COMPACT_BEFORE_COMMIT,
    crash_point,
)
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    DiskError,
    ObjectCorrupt,
    OutOfResources,
    StrandlineError,
)
from strandline.storage.local.cleaner.messages import (
    CleanedGroup,
    CleaningRequest,
    CleaningStatistics,
    SegmentWanted,
)
from strandline.storage.local.cleaner.plan import CleanableFacts
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
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.compaction_mark import CompactionMark, next_mark
from strandline.storage.remote.manifest.entries import PageRef, SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import Replacement
from strandline.storage.remote.object_store.interface import ObjectOptions, ObjectStore
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import MetaReader, Section
from strandline.storage.system import crc32c
from strandline.storage.tiering.copy.upload import UploadPoints
from strandline.storage.tiering.log.statistics import PartitionCounters
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.policy.object_options import RESTORED_FIRST, object_options
from strandline.storage.tiering.policy.quota import TierQuota
from strandline.storage.tiering.policy.retry import OBJECT_UNREADABLE, UNREADABLE_TIMES, named_in
from strandline.storage.tiering.rewrite.merging import RUN_SEGMENTS_MAX, SegmentMerger
from strandline.storage.tiering.rewrite.scratch import made

log = logging.getLogger(__name__)

DOWNLOAD_BYTES = 8 * 1024 * 1024
# Read and written in pieces of this size by the child.
IO_BYTES = 1024 * 1024
LOAD_FACTOR = 0.9
# One step reads so many indexes of aborted transactions: a bound on its requests.
INDEXES_PER_STEP = 32

# A page may be 2 MiB: it is written anew once for so many runs, or once in so many seconds. What a
# crash makes orphans of is bounded by the same.
RUNS_PER_COMMIT_MAX = 64
COMMIT_S_MAX = 5.0

T = TypeVar("T")

_POINTS = UploadPoints(after_log=COMPACT_AFTER_LOG, after_meta=COMPACT_AFTER_META)


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


def _facts(entry: SegmentEntry) -> CleanableFacts:
    return CleanableFacts(
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
        executor: Executor,
        believed_ms: Callable[[], TimestampMs],
        key_bytes_max: int,
        scratch: Path | None = None,
    ) -> None:
        """`scratch` is where segments lie meanwhile; None: the system's place. `believed_ms` is the
        time by which tombstones are over: no clock that jumped is believed at once.
        """
        self.store = store
        self.believed_ms = believed_ms
        self.quota: TierQuota = merger.quota
        self._process = process
        self._executor = executor
        self._new_round = partial(
            CompactionRound,
            store=store,
            process=process,
            merger=merger,
            believed_ms=believed_ms,
            key_bytes_max=key_bytes_max,
            scratch=scratch,
        )
        self._round: CompactionRound | None = None

    @property
    def is_busy(self) -> bool:
        return self._round is not None

    def round_of(self, owner: TopicIdPartition) -> CompactionRound | None:
        """The round that `owner` has under way; not that of a topic which had its name before."""
        under_way = self._round
        return under_way if under_way is not None and under_way.job.partition == owner else None

    def begin(self, job: CompactionJob) -> None:
        """A new round, if none is under way. Raises DiskError."""
        assert self._round is None, (job.partition, self._round)
        self._round = self._new_round(job)

    async def run(self, call: Callable[[], T]) -> T:
        """What a method of the round returns, in the threads of copies."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def end(self, finished: CompactionRound) -> asyncio.Future[None]:
        """Ends the round; done when others may begin theirs."""
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._executor, self._end, finished)
        except (OutOfResources, RuntimeError, MemoryError):
            # Without a thread it is ended here, which takes as long as killing a child. What was
            # pending is gone: a round that went on would call clean what it never committed.
            self._end(finished)
        ended = loop.create_future()
        ended.set_result(None)
        return ended

    def _end(self, finished: CompactionRound) -> None:
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


# --- the steps of one partition --------------------------------------------------------------


class CompactionSteps:
    """Compacts one partition's archive. Used on the event loop only."""

    def __init__(
        self, owner: ManifestOwner, compactor: ArchiveCompactor, counters: PartitionCounters
    ) -> None:
        self._owner = owner
        self._compactor = compactor
        self._counters = counters
        # Rewritten runs of one page that are committed together, and since when they wait.
        self._pending: list[Replacement] = []
        self._pending_since_s = 0.0
        # A segment that could not be read, the object that names it (a page, or the `.log`), and
        # how often.
        self._unreadable: tuple[SegmentEntry, str, int] | None = None

    async def step(self) -> bool:
        """Begins a round over the archive of a compacted log, or goes on with it."""
        under_way = self._under_way
        if under_way is None:
            return await self._begin_compacting()
        manifest = self._owner.remote.manifest
        if manifest is not None and not manifest.marks_left:
            return False
        is_over = True
        try:
            is_over = await self._go_on_compacting(under_way)
        except (CorruptFile, CorruptRecords) as error:
            self._note_unreadable(under_way, under_way.job.entries[0], error)
            raise
        except OBJECT_UNREADABLE as error:
            for entry in named_in(error, under_way.job.entries):
                self._note_unreadable(under_way, entry, error)
            raise
        finally:
            if is_over:
                await self._end(under_way)
        return not is_over

    @property
    def is_under_way(self) -> bool:
        """Whether this partition has the only place there is for a round."""
        return self._under_way is not None

    @property
    def _under_way(self) -> CompactionRound | None:
        return self._compactor.round_of(self._owner.remote.partition)

    def give_up(self) -> asyncio.Future[None] | None:
        """Ends a round between two steps, if there is one; done when others may begin theirs.

        A partition that goes without this would keep the only place for ever.
        """
        under_way = self._under_way
        return None if under_way is None else self._end(under_way)

    def _note_unreadable(
        self, under_way: CompactionRound, entry: SegmentEntry, error: StrandlineError
    ) -> None:
        manifest = self._owner.remote.manifest
        if manifest is None:
            return
        known = self._unreadable
        count = 1 if known is None or known[0] != entry else known[2] + 1
        self._unreadable = (entry, _place_of(entry, manifest), count)
        if count < UNREADABLE_TIMES:
            return
        log.warning(
            "archive cannot be compacted, left alone until the next start",
            extra={
                "fields": {
                    "partition": str(under_way.job.partition),
                    "key": entry.log_key,
                    "reason": str(error),
                }
            },
        )

    def _is_left_alone(self, manifest: Manifest) -> bool:
        if self._unreadable is None:
            return False
        entry, place, count = self._unreadable
        if entry.end_offset > manifest.log_start_offset and place == _place_of(entry, manifest):
            return count >= UNREADABLE_TIMES
        self._unreadable = None
        return False

    def _end(self, under_way: CompactionRound) -> asyncio.Future[None]:
        self._pending.clear()
        return self._compactor.end(under_way)

    async def _begin_compacting(self) -> bool:
        manifest, config = self._owner.remote.manifest, self._owner.log.config
        is_out_of_reach = config.strandline_remote_storage_class in RESTORED_FIRST
        if manifest is None or is_out_of_reach or config.remote_log_copy_disable:
            return False
        if self._compactor.is_busy or not is_worth_compacting(manifest, config):
            return False
        if self._is_left_alone(manifest):
            return False
        start_offset = manifest.log_start_offset
        entries = await self._owner.remote.all_from(start_offset)
        borders = await self._owner.run(partial(borders_of, manifest, entries))
        if self._owner.life.is_detached() or self._compactor.is_busy or not entries:
            return False
        mark, now_ms = manifest.compaction, self._compactor.believed_ms()
        job = CompactionJob(
            partition=self._owner.remote.partition,
            config=config,
            entries=entries,
            borders=borders,
            cleaned_offset=0 if mark is None else mark.cleaned_offset,
            horizon_end_offset=0
            if mark is None
            else mark.droppable_below(
                now_ms=now_ms, delete_retention_ms=config.delete_retention_ms
            ),
        )
        self._compactor.begin(job)
        return True

    async def _go_on_compacting(self, under_way: CompactionRound) -> bool:
        """One download or one run; whether the round is over."""
        if await self._compactor.quota.wait_a_step():
            return False
        call = partial(
            under_way.advance,
            leader_epoch=self._owner.leader_epoch,
            options=object_options(self._owner.log.config),
        )
        done = await self._compactor.run(call)
        manifest, config = self._owner.remote.manifest, self._owner.log.config
        is_wanted = config.is_compacted and not config.remote_log_copy_disable
        if self._owner.life.is_detached() or manifest is None or not is_wanted:
            return True
        if isinstance(done, CleaningStatistics):
            if not await self._commit_pending():
                return True
            manifest = self._owner.manifest()
            await self._owner.commit(manifest.with_compaction(self._next_mark(done)))  # 3
            crash_point(COMPACT_AFTER_MARK)
            self._report_compacted(under_way, done)
            return True
        if isinstance(done, Replacement):
            self._note_rewritten(done)
        if self._is_commit_due(manifest) and not await self._commit_pending():
            return True
        await self._compactor.run(under_way.go_on)
        return False

    def _note_rewritten(self, done: Replacement) -> None:
        self._compactor.quota.record(done.new.size_bytes)
        if not self._pending:
            self._pending_since_s = self._owner.clock.monotonic_s()
        self._pending.append(done)

    def _is_commit_due(self, manifest: Manifest) -> bool:
        if not self._pending:
            return False
        is_in_root = manifest.find_page(self._pending[-1].old[0].base_offset) is None
        waited_s = self._owner.clock.monotonic_s() - self._pending_since_s
        is_many = len(self._pending) >= RUNS_PER_COMMIT_MAX
        return is_in_root or is_many or waited_s >= COMMIT_S_MAX

    async def _commit_pending(self) -> bool:
        """Whether the runs were still there; if not, what was made of them are orphans."""
        while self._pending:
            manifest = self._owner.manifest()
            page = manifest.find_page(self._pending[0].old[0].base_offset)
            runs = [
                run for run in self._pending if manifest.find_page(run.old[0].base_offset) == page
            ]
            if not await self._commit_runs(manifest, runs):
                return False
            self._pending = [run for run in self._pending if run not in runs]
        return True

    async def _commit_runs(self, manifest: Manifest, runs: Sequence[Replacement]) -> bool:
        replaced = partial(
            manifest_store.with_replaced_runs,
            self._compactor.store,
            manifest,
            runs,
            marked_ms=self._owner.clock.now_ms(),
        )
        try:
            new = await self._owner.run(replaced)
        except ValueError:
            return False
        if self._owner.life.is_detached():
            return False
        crash_point(COMPACT_BEFORE_COMMIT)
        await self._owner.commit(new)  # 2d
        crash_point(COMPACT_AFTER_COMMIT)
        self._counters.compacted_segments.add(sum(len(run.old) for run in runs))
        return True

    def _next_mark(self, done: CleaningStatistics) -> CompactionMark:
        return next_mark(
            self._owner.manifest().compaction,
            cleaned_offset=done.next_dirty_offset,
            local_start_offset=self._owner.log.local_start_offset,
            now_ms=self._compactor.believed_ms(),
            delete_retention_ms=self._owner.log.config.delete_retention_ms,
        )

    def _report_compacted(self, under_way: CompactionRound, done: CleaningStatistics) -> None:
        log.info(
            "archive compacted",
            extra={
                "fields": {
                    "partition": str(self._owner.log.topic_partition),
                    "segments": len(under_way.job.entries),
                    "cleaned_offset": done.next_dirty_offset,
                    "bytes_read": done.bytes_read,
                    "bytes_written": done.bytes_written,
                    "records_read": done.records_read,
                    "records_kept": done.records_kept,
                }
            },
        )


def _place_of(entry: SegmentEntry, manifest: Manifest) -> str:
    """The key of what stands at the entry's offset: another one once it is another segment.

    Without reading a page: one that is written anew may have another segment there.
    """
    page = manifest.find_page(entry.base_offset)
    if page is not None:
        return page.key
    found = manifest.find(entry.base_offset)
    return "" if found is None else found.log_key
