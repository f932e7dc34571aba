"""Compaction of a compacted log's archive: rewrites segments without superseded records.

The local cleaner compacts each segment before its copy, together with the segments that are copied
with it. Later records supersede some that are in the bucket already.

    entries    [e0][e1][e2][e3][e4] ...[e9][e10][e11]        of the manifest
               | clean: each key once    | dirty             |
            log start                cleaned_offset        archive's end

    1 index    the keys of the dirty entries, one download after the other      (child process)
    2 rewrite  all entries up to there, in runs of neighbours, one download after the other
      for each run that loses records:
      2a put .log    crash point compact.after-log       under a name never used before
      2b put .meta   crash point compact.after-meta
      2c verify      size and checksum of both           crash point compact.before-commit
      2d commit      the manifest; in the same step the old objects are marked for deletion
                                                         crash point compact.after-commit
                     (several runs of a sealed page at once, since it is rewritten for them)
    3 commit   the mark: clean up to here                crash point compact.after-mark

A compaction is a merge that drops records, and commits like one: a crash before 2d leaves orphans,
one after it leaves a clean part. Each step of the partition does one download or one run, so that
copies and deletions run in between, and waits while too many replaced objects wait for their grace
time. If a run is gone by its commit, its new objects are orphans. The child follows the rules of
the local cleaner (`cleaning.py`), with one segment at a time in the scratch folder. A record goes
if the archive itself has a newer one of its key, so a compaction does not depend on a local disk.

A tombstone stays until no tier has had older records of its key for delete.retention.ms
(`compaction_mark`).

A round reads the whole archive, and a failed one may have done so in vain: so the waits between
them grow. A segment that cannot be read, because it is damaged or must be restored first, ends a
few rounds; then there are none until the next start, or until another segment is in its place.

The cost of a step does not depend on the size of the archive, nor does that of a commit: the bound
on marks bounds the root, and a page of thousands of entries is rewritten once for many runs, or
once in some seconds (docs/decisions/0018).
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
    NO_TIMESTAMP,
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
from strandline.storage.remote.segment.download import download
from strandline.storage.tiering.copy.upload import UploadPoints
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.policy.object_options import may_rewrite, object_options
from strandline.storage.tiering.policy.quota import TierQuota
from strandline.storage.tiering.policy.retry import OBJECT_UNREADABLE, UNREADABLE_TIMES, named_in
from strandline.storage.tiering.rewrite.merging import (
    RUN_SEGMENTS_MAX,
    SegmentMerger,
    aborted_in,
)
from strandline.storage.tiering.rewrite.scratch import made

log = logging.getLogger(__name__)

# The child reads and writes in pieces of this size.
IO_BYTES = 1024 * 1024
LOAD_FACTOR = 0.9
# Indexes of aborted transactions that one step reads: a bound on its requests.
INDEXES_PER_STEP = 32

# A page may be 2 MiB: it is rewritten once for this many runs, or once in this many seconds. The
# same bounds apply to the orphans of a crash.
RUNS_PER_COMMIT_MAX = 64
COMMIT_S_MAX = 5.0

T = TypeVar("T")

_POINTS = UploadPoints(after_log=COMPACT_AFTER_LOG, after_meta=COMPACT_AFTER_META)


# --- deciding --------------------------------------------------------------------------------


def is_worth_compacting(
    manifest: Manifest,
    config: LogConfig,
    *,
    now_ms: TimestampMs,
    last_round_ms: TimestampMs = NO_TIMESTAMP,
) -> bool:
    """Returns whether enough was archived after the last round, or whether it is too old (KIP-354).

    Enough is a share of the bytes, so that a byte is rewritten about as often as the archive grows
    by that share. Too old is a record beyond max.compaction.lag.ms. There is one round for it in
    that time, or each segment with old timestamps would have the whole archive read.
    """
    if not config.is_compacted or manifest.is_empty:
        return False
    parts: list[PageRef | SegmentEntry] = [*manifest.pages, *manifest.segments]
    cleaned_offset = 0 if manifest.compaction is None else manifest.compaction.cleaned_offset
    if manifest.segment_count < 2 and not parts[0].base_offset < cleaned_offset:
        # One segment was compacted before it was copied, unless a merge made it of several.
        return False
    dirty = [part for part in parts if part.end_offset > cleaned_offset]
    if not dirty:
        return False
    dirty_bytes = sum(part.size_bytes for part in dirty)
    if dirty_bytes > config.min_cleanable_dirty_ratio * manifest.size_bytes:
        return True
    waits_since_ms = max(last_round_ms, min(part.min_timestamp_ms for part in dirty))
    return now_ms - waits_since_ms > config.max_compaction_lag_ms


def borders_of(
    manifest: Manifest, entries: Sequence[SegmentEntry], *, span_ms_max: int | None
) -> frozenset[Offset]:
    """Returns the offsets at which a new run starts: edges of pages, gaps of deleted segments, and
    every RUN_SEGMENTS_MAX entries, which bounds the segments of a run. Between two of them lie at
    most `span_ms_max`, as in a merge, or one segment.
    """
    edges = {page.base_offset for page in manifest.pages}
    if manifest.segments:
        edges.add(manifest.segments[0].base_offset)
    gaps = {b.base_offset for a, b in pairwise(entries) if a.end_offset != b.base_offset}
    counted = {entry.base_offset for entry in entries[::RUN_SEGMENTS_MAX]}
    return frozenset((*edges, *gaps, *counted, *_spans(entries, span_ms_max)))


def _spans(entries: Sequence[SegmentEntry], span_ms_max: int | None) -> Iterator[Offset]:
    """Where the entries since the last border would span too much."""
    if span_ms_max is None or not entries:
        return
    oldest_ms, newest_ms = entries[0].oldest_ms, entries[0].newest_ms
    for entry in entries[1:]:
        oldest_ms, newest_ms = min(oldest_ms, entry.oldest_ms), max(newest_ms, entry.newest_ms)
        if newest_ms - oldest_ms > span_ms_max:
            yield entry.base_offset
            oldest_ms, newest_ms = entry.oldest_ms, entry.newest_ms


# --- doing -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """The input of a round. `entries` are all entries above the log start, in order."""

    partition: TopicIdPartition
    config: LogConfig
    entries: tuple[SegmentEntry, ...]
    borders: frozenset[Offset]
    cleaned_offset: Offset
    horizon_end_offset: Offset


class CompactionRound:
    """One round over one archive. Its methods block; `advance` and `go_on` alternate."""

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
        """Raises DiskError if its temporary folder cannot be made."""
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
        """Reads some indexes, downloads one segment or rewrites one run; returns a rewritten run,
        or the statistics at the end of the round.

        Raises ObjectCorrupt if a segment differs from its entry, CorruptRecords, ChildFailed, and
        the errors of disk and store.
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
        """Lets the child continue after `advance`. Raises ChildFailed."""
        if self._is_begun:
            self._process.proceed()

    def close(self) -> None:
        """Ends the round, and the child if it is busy."""
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
            # A restore reads the producers from the `.meta`, not from the records.
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
            self._aborted.update(aborted_in(self._store, self._unread.popleft()))

    def _fetch(self, entry: SegmentEntry) -> None:
        """Downloads the segment to a file, in place of the one before."""
        self._forget_fetched()
        path = self._directory / file_name(entry.base_offset, LOG_SUFFIX)
        self._fetched = path
        try:
            with open(path, "wb") as file:
                crc = download(self._store, entry, file)
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
        """Uploads a rewritten run; returns it as a verified, uncommitted replacement."""
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
        """Returns the aborted transactions whose markers the rewritten segment has.

        For a reader, one without its marker would include the producer's next transaction.
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
    """Runs one compaction round at a time in this broker. Used on the event loop."""

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
        """`scratch` is the folder for temporary segments; None: the system's. `believed_ms` is the
        time for expiring tombstones, which does not follow a clock jump at once.
        """
        self.store = store
        # May be changed at any time; the next round takes it.
        self.key_bytes_max = key_bytes_max
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
            scratch=scratch,
        )
        self._round: CompactionRound | None = None

    @property
    def is_busy(self) -> bool:
        return self._round is not None

    def round_of(self, partition: TopicIdPartition) -> CompactionRound | None:
        """Returns the running round, if it is that of `partition`."""
        under_way = self._round
        return under_way if under_way and under_way.job.partition == partition else None

    def begin(self, job: CompactionJob) -> None:
        """Begins a round; none may be running. Raises DiskError."""
        assert self._round is None, (job.partition, self._round)
        self._round = self._new_round(job, key_bytes_max=self.key_bytes_max)

    async def run(self, call: Callable[[], T]) -> T:
        """Returns the result of a blocking call, made in the threads of copies."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def end(self, finished: CompactionRound) -> asyncio.Future[None]:
        """Ends the round; the future is done when another one may begin."""
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._executor, self._end, finished)
        except (OutOfResources, RuntimeError, MemoryError):
            # Without a thread it is ended here, which takes as long as killing a child. It must
            # end: its pending runs are dropped, and its mark would call them clean.
            self._end(finished)
        ended = loop.create_future()
        ended.set_result(None)
        return ended

    def _end(self, finished: CompactionRound) -> None:
        """Ends the round, then admits the next one, which uses the same child. Blocks shortly."""
        if self._round is finished:
            try:
                finished.close()
            finally:
                self._round = None

    def end_if_idle(self) -> None:
        """Ends the child if it has been idle long enough. Blocks."""
        if self._round is None:
            self._process.end_if_idle()

    def close(self) -> None:
        """Ends the child for good; a running round fails at once."""
        self._process.close()


# --- the steps of one partition --------------------------------------------------------------


class CompactionSteps:
    """Compacts one partition's archive. Used on the event loop only."""

    def __init__(self, owner: ManifestOwner, compactor: ArchiveCompactor) -> None:
        self._owner = owner
        self._compactor = compactor
        # Rewritten runs of one page that wait for a common commit, and since when.
        self._pending: list[Replacement] = []
        self._pending_since_s = 0.0
        # When the last round of this process ended.
        self._last_round_ms = NO_TIMESTAMP
        # The last unreadable segment, the key that shows whether it is still there (its page's or
        # its `.log`'s), and the number of failures.
        self._unreadable: tuple[SegmentEntry, str, int] | None = None

    async def step(self) -> bool:
        """Begins or continues a round; returns whether there may be more to do."""
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
        """Whether the broker's one round is that of this partition."""
        return self._under_way is not None

    @property
    def _under_way(self) -> CompactionRound | None:
        return self._compactor.round_of(self._owner.remote.partition)

    def end_round(self) -> asyncio.Future[None] | None:
        """Ends this partition's round between two steps, if there is one, so that other partitions
        can begin theirs; they can when the future is done.
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
        if manifest is None or not may_rewrite(config):
            return False
        if self._compactor.is_busy or self._is_left_alone(manifest):
            return False
        now_ms = self._compactor.believed_ms()
        if not is_worth_compacting(
            manifest, config, now_ms=now_ms, last_round_ms=self._last_round_ms
        ):
            return False
        start_offset = manifest.log_start_offset
        entries = await self._owner.remote.all_from(start_offset)
        find_borders = partial(
            borders_of, manifest, entries, span_ms_max=config.archived_span_ms_max
        )
        borders = await self._owner.threads.run(find_borders)
        if self._owner.life.is_detached() or self._compactor.is_busy or not entries:
            return False
        mark = manifest.compaction
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
        """Does one download or one run; returns whether the round is over."""
        if await self._compactor.quota.wait_a_step():
            return False
        call = partial(
            under_way.advance,
            leader_epoch=self._owner.life.leader_epoch,
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
            self._last_round_ms = self._compactor.believed_ms()
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
        """Commits the pending runs; False if some are gone from the manifest."""
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
            new = await self._owner.threads.run(replaced)
        except ValueError:
            return False
        if self._owner.life.is_detached():
            return False
        crash_point(COMPACT_BEFORE_COMMIT)
        await self._owner.commit(new)  # 2d
        crash_point(COMPACT_AFTER_COMMIT)
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
    """Returns the key of the page or segment at the entry's offset.

    Another key may mean another segment; the page is not read to find out.
    """
    page = manifest.find_page(entry.base_offset)
    if page is not None:
        return page.key
    found = manifest.find(entry.base_offset)
    return "" if found is None else found.log_key
