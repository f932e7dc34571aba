"""A round of compaction over one partition's archive, in steps that the copier's turns allow.

    begin      every entry from the log start on, if enough of them is dirty
    go on      one download or one rewritten run at a time, committed like a merge
    wait       while too much of what was replaced before is waiting for its grace time
    end        the mark of how far the archive is clean, or nothing if the world changed

A round reads the whole archive, so one that fails may have paid for all of it: the next one waits
longer and longer. Of a segment that cannot be read, because it is damaged or lies in a class that
has to be restored first, a few rounds are enough: then there is none until the next start, or until
that segment is another one.

`archive_compaction.py` has the round itself, and numbers its steps. Between two steps the partition
is copied and deleted as ever; what was rewritten of a run that is gone meanwhile is an orphan.

However large the archive is, a step costs the same, and so does a commit: the root is bounded by
the bound on marks, and a page of thousands of entries is written once for many runs, unless these
take so long that it does not matter (docs/decisions/0018).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from strandline.storage.crash_points import (
    COMPACT_AFTER_COMMIT,
    COMPACT_AFTER_MARK,
    COMPACT_BEFORE_COMMIT,
    crash_point,
)
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    OutOfResources,
    StrandlineError,
)
from strandline.storage.local.cleaner.messages import CleaningStatistics
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.compaction_mark import CompactionMark, next_mark
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import Replacement
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.partition.tiering_tools import PartitionCounters, TieringTools
from strandline.storage.tiering.policy.object_options import RESTORED_FIRST, object_options
from strandline.storage.tiering.policy.retry import OBJECT_UNREADABLE, UNREADABLE_TIMES, named_in
from strandline.storage.tiering.rewrite.archive_compaction import (
    CompactionJob,
    CompactionRound,
    borders_of,
    is_worth_compacting,
)

log = logging.getLogger(__name__)

# A page may be 2 MiB: it is written anew once for so many runs, or once in so many seconds. What a
# crash makes orphans of is bounded by the same.
RUNS_PER_COMMIT_MAX = 64
COMMIT_S_MAX = 5.0


class CompactionSteps:
    """See the top of this file. Used on the event loop only."""

    def __init__(
        self, owner: ManifestOwner, tools: TieringTools, counters: PartitionCounters
    ) -> None:
        self._owner = owner
        self._tools = tools
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
        return self._tools.compactor.round_of(self._owner.remote.partition)

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
        end = partial(self._tools.compactor.end, under_way)
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._tools.copies, end)
        except (OutOfResources, RuntimeError, MemoryError):
            # Without a thread it is ended here, which takes as long as killing a child. What was
            # pending is gone: a round that went on would call clean what it never committed.
            end()
        ended = loop.create_future()
        ended.set_result(None)
        return ended

    async def _begin_compacting(self) -> bool:
        manifest, config = self._owner.remote.manifest, self._owner.log.config
        is_out_of_reach = config.strandline_remote_storage_class in RESTORED_FIRST
        if manifest is None or is_out_of_reach or config.remote_log_copy_disable:
            return False
        if self._tools.compactor.is_busy or not is_worth_compacting(manifest, config):
            return False
        if self._is_left_alone(manifest):
            return False
        start_offset = manifest.log_start_offset
        entries = await self._owner.remote.all_from(start_offset)
        borders = await asyncio.get_running_loop().run_in_executor(
            self._tools.executor, borders_of, manifest, entries
        )
        if self._owner.life.is_detached() or self._tools.compactor.is_busy or not entries:
            return False
        mark, now_ms = manifest.compaction, self._tools.believed_ms()
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
        self._tools.compactor.begin(job)
        return True

    async def _go_on_compacting(self, under_way: CompactionRound) -> bool:
        """One download or one run; whether the round is over."""
        if await self._tools.copy_quota.wait_a_step():
            return False
        loop, copies = asyncio.get_running_loop(), self._tools.copies
        call = partial(
            under_way.advance,
            leader_epoch=self._owner.leader_epoch,
            options=object_options(self._owner.log.config),
        )
        done = await loop.run_in_executor(copies, call)
        manifest, config = self._owner.remote.manifest, self._owner.log.config
        is_wanted = config.is_compacted and not config.remote_log_copy_disable
        if self._owner.life.is_detached() or manifest is None or not is_wanted:
            return True
        if isinstance(done, CleaningStatistics):
            if not await self._commit_pending():
                return True
            manifest = self._owner.manifest()
            await self._owner.commit(  # 3
                self._owner.owned(manifest.with_compaction(self._next_mark(done)))
            )
            crash_point(COMPACT_AFTER_MARK)
            self._report_compacted(under_way, done)
            return True
        if isinstance(done, Replacement):
            self._note_rewritten(done)
        if self._is_commit_due(manifest) and not await self._commit_pending():
            return True
        await loop.run_in_executor(copies, under_way.go_on)
        return False

    def _note_rewritten(self, done: Replacement) -> None:
        self._tools.copy_quota.record(done.new.size_bytes)
        if not self._pending:
            self._pending_since_s = self._tools.clock.monotonic_s()
        self._pending.append(done)

    def _is_commit_due(self, manifest: Manifest) -> bool:
        if not self._pending:
            return False
        is_in_root = manifest.find_page(self._pending[-1].old[0].base_offset) is None
        waited_s = self._tools.clock.monotonic_s() - self._pending_since_s
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
            self._tools.store,
            manifest,
            runs,
            marked_ms=self._tools.clock.now_ms(),
        )
        try:
            new = await asyncio.get_running_loop().run_in_executor(self._tools.executor, replaced)
        except ValueError:
            return False
        if self._owner.life.is_detached():
            return False
        crash_point(COMPACT_BEFORE_COMMIT)
        await self._owner.commit(self._owner.owned(new))  # 2d
        crash_point(COMPACT_AFTER_COMMIT)
        self._counters.compacted_segments.add(sum(len(run.old) for run in runs))
        return True

    def _next_mark(self, done: CleaningStatistics) -> CompactionMark:
        return next_mark(
            self._owner.manifest().compaction,
            cleaned_offset=done.next_dirty_offset,
            local_start_offset=self._owner.log.local_start_offset,
            now_ms=self._tools.believed_ms(),
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
