"""The archive side of one partition: what is done next, in which order, and what a crash leaves.

One step, under the partition's lock:

    load the manifest, once; claim it if this disk has no more
                                                             log start := the higher of both
    0 write topic.json, and a manifest that names nothing, before anything else of them
    1 move the log start in the manifest        crash point delete.after-log-start
    2 copy one segment, commit it               crash points copy.*, see copier, copy_pipeline
    3 mark entries below the log start          crash point delete.after-mark
      ... grace time: readers with an older manifest finish ...
    4 delete the marked objects                 crash point delete.after-objects
    5 drop the marks

1 is durable before 3, so nothing is deleted that a restarted broker would still offer. After 3 no
reader finds the entry. A crash between 4 and 5 deletes absent objects once more, which is fine.
1 comes before 2, so that the archive may go on behind records that were deleted before they were
ever copied.

Every commit is a compare-and-swap. If its outcome is not known the manifest is read again before
anything else is done, and a copy that was verified is kept until then: it is committed again, not
uploaded again. A commit that had gone through after all is recognised by what the manifest says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from strandline.storage.crash_points import (
    COPY_AFTER_COMMIT,
    COPY_BEFORE_COMMIT,
    DELETE_AFTER_LOG_START,
    DELETE_AFTER_MARK,
    DELETE_AFTER_OBJECTS,
    MERGE_AFTER_COMMIT,
    MERGE_BEFORE_COMMIT,
    TAIL_AFTER_COMMIT,
    crash_point,
)
from strandline.storage.errors import (
    RecordsRejected,
    StorageError,
    TierUnavailable,
)
from strandline.storage.local.segment import LogSegment
from strandline.storage.metrics import Counter
from strandline.storage.model import Epoch, Offset, TopicIdPartition
from strandline.storage.remote import manifest_store
from strandline.storage.remote.keys import manifest_key
from strandline.storage.remote.manifest import Manifest, new_generation
from strandline.storage.remote.manifest_entries import DeletedEntry, SegmentEntry
from strandline.storage.remote.manifest_store import StoredManifest
from strandline.storage.remote.object_store import ObjectStore
from strandline.storage.remote.tail import TailPart
from strandline.storage.tiering.compaction_steps import CompactionSteps
from strandline.storage.tiering.copier import CopiedSegment
from strandline.storage.tiering.copy_pipeline import COPIES_PER_PARTITION, CopyPipeline
from strandline.storage.tiering.failures import RetryState
from strandline.storage.tiering.grace_times import GraceTimes
from strandline.storage.tiering.lifecycle import SegmentVerdict
from strandline.storage.tiering.local_restart import restart_behind
from strandline.storage.tiering.merging import choose_run
from strandline.storage.tiering.object_options import RESTORED_FIRST, object_options
from strandline.storage.tiering.partition_statistics import PartitionStatistics, statistics_of
from strandline.storage.tiering.remote_log import RemoteLog
from strandline.storage.tiering.tail_copy import is_prefix_of
from strandline.storage.tiering.tail_timer import TailTimer
from strandline.storage.tiering.tiering_tools import PartitionCounters, TieringTools
from strandline.storage.tiering.topic_registration import TopicRegistration
from strandline.storage.tiering.unified_log import UnifiedLog

log = logging.getLogger(__name__)

# One commit marks, and one request deletes, at most this many segments: 1000 keys is what S3 takes.
SEGMENTS_PER_DELETE_MAX = 500

# As long as a worker waits for the copy quota at a time; deleting has its turn in between.
THROTTLE_STEP_S = 1.0

T = TypeVar("T")


class PartitionTiering:
    """Owner of one partition's remote state. Used on the event loop only."""

    def __init__(
        self,
        unified_log: UnifiedLog,
        remote: RemoteLog,
        *,
        topic: TopicRegistration,
        leader_epoch: Epoch,
        tools: TieringTools,
        past_generation: str = "",
    ) -> None:
        """`past_generation` is that of an archive that the partition had before, if it is known."""
        self._past_generation = past_generation
        self.log = unified_log
        self.remote = remote
        self.topic = topic
        self.leader_epoch = leader_epoch
        self._tools = tools
        if tools.follows:
            remote.follow = self.follow
        self._lock = asyncio.Lock()
        self._detached = False
        self._in_doubt = False
        # The manifest is held to be read, and is not claimed although it must be.
        self._is_unclaimed = False
        self._copies = CopyPipeline(tools.copier, slots=tools.copy_slots, clock=tools.clock)
        self._tail_timer = TailTimer(tools.clock, interval_ms=tools.interval_ms)
        self._tail_checked: LogSegment | None = None
        subject = str(unified_log.topic_partition)
        self._copying = RetryState("copy", subject, policy=tools.retry, clock=tools.clock)
        self._deleting = RetryState("delete", subject, policy=tools.retry, clock=tools.clock)
        self._merging = RetryState("merge", subject, policy=tools.retry, clock=tools.clock)
        self._counters = PartitionCounters(tools.metrics, unified_log.topic_partition.topic)
        self._compaction = CompactionSteps(self, tools, self._counters)

        self._compacting = RetryState("compact", subject, policy=tools.retry, clock=tools.clock)
        self._grace_times: GraceTimes[DeletedEntry] = GraceTimes(
            tools.clock, grace_ms=tools.delete_grace_ms
        )

    # --- for the manager ---------------------------------------------------------------------

    @property
    def is_detached(self) -> bool:
        """Whether nothing may be committed any more."""
        return self._detached

    def detach(self) -> None:
        """Nothing new begins from here on; what is under way is thrown away, not committed."""
        self._detached = True
        self._copies.forget_all()
        if not self._lock.locked():
            self._compaction.give_up()
        self.log.is_restarting = False
        self.log.remote = None
        self.log.local.on_segment_closed = None

    def lead(self, leader_epoch: Epoch) -> None:
        """Owns the manifest under this epoch from now on, if nobody has a higher one."""
        self.leader_epoch = leader_epoch
        self.remote.outrun = False
        self._in_doubt = True

    @property
    def generation(self) -> str:
        """That of its archive, or of the one before while there is none."""
        manifest = self.remote.manifest
        return self._past_generation if manifest is None else manifest.generation

    async def wait_until_idle(self) -> None:
        """Returns when no step is under way, and no copy."""
        async with self._lock:
            await self._copies.wait_until_idle()

    async def load(self) -> None:
        """Loads the manifest if it is not known yet; a failure is noted and tried again later."""
        async with self._lock:
            if not self._detached and self._copying.may_try:
                await self._guard(self._copying, self._counters.copy_errors, self._load_if_needed)

    async def step(self) -> bool:
        """Does what is due; True if there is more to do right away."""
        async with self._lock:
            more = False
            if not self._detached and self.log.is_tiered and self._tools.health.is_up:
                more = await self._next_step()
            if self._detached or self.remote.fenced or not self.log.is_tiered:
                given_up = self._compaction.give_up()
                if given_up is not None:
                    await given_up
            return more and not self._detached

    async def _next_step(self) -> bool:
        more, counters = False, self._counters
        if not self.remote.ownership.is_ours and self.remote.known:
            return False
        if self._copying.may_try:
            more = await self._guard(self._copying, counters.copy_errors, self._copy_step)
        if self._may_delete() and self._deleting.may_try:
            more |= await self._guard(self._deleting, counters.delete_errors, self._delete_step)
        may_merge = self._may_delete() and self._merging.may_try
        if may_merge and (not more or self._is_crowded()):
            more |= await self._guard(self._merging, counters.copy_errors, self._merge_step)
        # A round that is under way is finished beside what is copied: others wait for its place.
        may_compact = self._may_delete() and self._compacting.may_try
        if may_compact and (not more or self._compaction.is_under_way):
            more |= await self._guard(self._compacting, counters.copy_errors, self._compaction.step)
        return more

    def _is_crowded(self) -> bool:
        """Whether entries of the root will soon be sealed, and could not be merged any more."""
        manifest = self.remote.manifest
        return manifest is not None and len(manifest.segments) > manifest_store.PAGE_ENTRIES

    async def follow(self) -> bool:
        """For an archive that somebody else writes: takes over its newest manifest."""
        async with self._lock:
            if not self._detached and self._tools.health.is_up and self._copying.may_try:
                await self._guard(self._copying, self._counters.copy_errors, self._look_again)
        return False

    async def _look_again(self) -> bool:
        held = self.remote.stored
        key = manifest_key(self.remote.partition)
        if held is not None:
            found = await self._run(partial(self._tools.store.head, key))
            if found.etag == held.etag:
                return False
        self._in_doubt = True
        return await self._load_if_needed()

    def _may_delete(self) -> bool:
        remote = self.remote
        is_settled = remote.settled and not self._in_doubt and not remote.fenced
        return is_settled and not self._detached and self._tools.health.is_up

    async def _guard(
        self, state: RetryState, errors: Counter, work: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Runs `work`; what the world did wrong is noted and ends it, to be tried again."""
        try:
            more = await work()
        except (StorageError, RecordsRejected) as error:
            errors.add()
            state.failed(error)
            if not self.remote.known:
                self.remote.load_error = error
            if isinstance(error, TierUnavailable):
                self._tools.health.failed(error)
            return False
        state.succeeded()
        return more

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._tools.executor, call)

    # --- the manifest ------------------------------------------------------------------------

    async def _load_if_needed(self) -> bool:
        if self.remote.known and not self._in_doubt:
            return False
        stored = await self._run(partial(self._loader(), self._tools.store, self.remote.partition))
        self.remote.refuse_regress(stored)
        if not self.remote.ownership.is_ours and stored is not None:
            must_claim = self._must_claim(stored.manifest)
            if must_claim or self._is_behind(stored.manifest):
                self._only_read(stored)
                return False
        if stored is not None and self._must_claim(stored.manifest):
            stored = await self._run(
                partial(
                    manifest_store.commit, self._tools.store, stored, self.owned(stored.manifest)
                )
            )
        self._in_doubt = self._is_unclaimed = False
        self.remote.adopt(stored)
        if stored is not None and stored.manifest.leader_epoch > self.leader_epoch:
            self._note_fenced(stored.manifest)
        await self._restart_local_if_behind()
        if not self._detached:
            self.log.adopt_remote_log_start()
        return False

    def _is_behind(self, manifest: Manifest) -> bool:
        bucket_end = max(manifest.tail_end_offset, manifest.log_start_offset, manifest.end_offset)
        return self.log.local.end_offset < bucket_end

    def _only_read(self, stored: StoredManifest) -> None:
        """This disk would have to follow the archive, which may be another broker's.

        What it has all of can be read until that is known; what lies ahead of it cannot even be
        offered. In either case nobody writes.
        """
        self.log.is_restarting = self._in_doubt = True
        if self._is_behind(stored.manifest):
            return
        self._is_unclaimed = True
        self.remote.adopt(stored)
        self.log.adopt_remote_log_start()

    def _loader(self) -> Callable[[ObjectStore, TopicIdPartition], StoredManifest | None]:
        """Without a manifest the log begins where this disk does: not for one wrong answer."""
        local = self.log.local
        is_all_here = local.start_offset == 0 and local.end_offset > 0
        is_believed = self.remote.known or self._tools.follows or is_all_here
        return manifest_store.load if is_believed else manifest_store.load_or_refuse

    def _must_claim(self, manifest: Manifest) -> bool:
        """Whether this disk has nothing that the bucket has not: it may be another one.

        Then offsets are given out once more, and a commit of the broker before, still on its way,
        would bury the new records. After the claim it cannot be done any more.
        """
        is_claimed = self.remote.known and not self._is_unclaimed
        if is_claimed or self._tools.follows or self._detached:
            return False
        bucket_end = max(manifest.tail_end_offset, manifest.log_start_offset)
        is_all_there = self.log.local.end_offset <= bucket_end
        return is_all_there and manifest.leader_epoch < self.leader_epoch

    def _note_fenced(self, manifest: Manifest) -> None:
        if not self.remote.outrun:
            self.remote.outrun = True
            log.warning(
                "another broker owns the archive of the partition, copying stops",
                extra={
                    "fields": {
                        "partition": str(self.log.topic_partition),
                        "leader_epoch": self.leader_epoch,
                        "manifest_leader_epoch": manifest.leader_epoch,
                    }
                },
            )

    async def commit(self, new: Manifest) -> None:
        """Writes `new` and takes it over. After any failure the manifest is read again first."""
        self._in_doubt = True
        stored = await self._run(
            partial(
                manifest_store.commit,
                self._tools.store,
                self.remote.stored,
                new,
                now_ms=self._tools.clock.now_ms(),
            )
        )
        self._in_doubt = False
        self.remote.adopt(stored)

    async def _restart_local_if_behind(self) -> None:
        """If this disk lost what the archive has, goes on behind the archive.

        Otherwise offsets that the archive knows would be given to other records.
        """
        manifest = self.remote.manifest
        if manifest is None or self._detached:
            return
        # If it fails, it is begun again by the next step, and until then nobody appends.
        self.log.is_restarting = self._in_doubt = True
        await restart_behind(
            self.log,
            self.remote,
            manifest,
            tools=self._tools,
            is_detached=lambda: self._detached,
        )
        if self._tools.follows and not manifest.is_empty:
            self.log.drop_archived(manifest.end_offset)
        self.log.is_restarting = self._in_doubt = False

    # --- copying -----------------------------------------------------------------------------

    async def _copy_step(self) -> bool:
        await self._load_if_needed()
        if self.remote.fenced or self._detached or not self.remote.ownership.is_ours:
            return False
        await self._move_remote_log_start()  # 1
        more = await self._copy_next()  # 2
        if more or self._detached or self._in_doubt:
            return more
        return await self._copy_tail()

    async def _move_remote_log_start(self) -> None:
        manifest = self.remote.manifest
        if manifest is None or self.log.log_start_offset <= manifest.log_start_offset:
            return
        await self.commit(self.owned(manifest).with_log_start(self.log.log_start_offset))
        crash_point(DELETE_AFTER_LOG_START)

    async def _copy_next(self) -> bool:
        wanted = self.log.judge().next_copies(COPIES_PER_PARTITION)
        self._copies.keep(wanted)
        if not wanted:
            return False
        head = wanted[0]
        if not self._copies.has(head):
            await self._ensure_manifest()
            if await self.is_throttled():
                return True
            if self._detached:
                return False
        self._begin_copies(wanted)
        copied = await self._copies.finish(head)
        # The world went on while the copy was made.
        if self._detached or not self._still_fits(copied, head.base_offset):
            return not self._detached
        await self._commit_copy(copied.entry)
        self._copies.forget(head.base_offset)
        return self.log.judge().next_copy is not None

    def _begin_copies(self, wanted: Sequence[SegmentVerdict]) -> None:
        """Begins the next copy, and those behind it as far as nothing speaks against it."""
        for segment in wanted:
            if self._copies.has(segment):
                continue
            is_ahead = segment is not wanted[0]
            # Behind a segment that cannot be copied nothing could be committed in time.
            is_stuck = self._copying.failure is not None
            over_quota = self._tools.copy_quota.throttle_s() > 0
            if is_ahead and (is_stuck or over_quota or not self._copies.may_go_ahead):
                return
            self._tools.copy_quota.record(segment.size_bytes)
            self._copies.begin(self.log, segment, leader_epoch=self.leader_epoch)

    async def is_throttled(self) -> bool:
        """Whether the copy quota says to wait; waits for a part of it, and others have a turn."""
        wait_s = self._tools.copy_quota.throttle_s()
        if wait_s <= 0:
            return False
        waited_s = min(wait_s, THROTTLE_STEP_S)
        self._tools.copy_quota.note_throttled(waited_s)
        await asyncio.sleep(waited_s)
        return True

    def _still_fits(self, copied: CopiedSegment, base_offset: Offset) -> bool:
        """Whether the verified copy may be committed: in time, wanted, and of the right segment."""
        return (
            copied.entry.base_offset == base_offset
            and copied.entry.end_offset > self.log.log_start_offset
            and self._tools.clock.monotonic_s() <= copied.deadline_s
        )

    async def _commit_copy(self, entry: SegmentEntry) -> None:
        new = (
            self.owned(self.manifest())
            .with_log_start(self.log.log_start_offset)
            .with_segment(entry, marked_ms=self._tools.clock.now_ms())
        )
        crash_point(COPY_BEFORE_COMMIT)
        await self.commit(new)
        crash_point(COPY_AFTER_COMMIT)
        self._counters.copied_bytes.add(entry.size_bytes)
        self._counters.copied_segments.add()
        log.info(
            "segment archived",
            extra={
                "fields": {
                    "partition": str(self.log.topic_partition),
                    "base_offset": entry.base_offset,
                    "end_offset": entry.end_offset,
                    "size_bytes": entry.size_bytes,
                    "key": entry.log_key,
                }
            },
        )

    async def _copy_tail(self) -> bool:
        """Puts what is new in the open segment into the bucket, if it is time to."""
        local, segment = self.log.local, self.log.local.active_segment
        tail = await self._tail_that_fits()
        covered = tail[-1].end_offset if tail else segment.base_offset
        if not self._tail_timer.is_due(self.log, max(covered, self.log.log_start_offset)):
            return False
        await self._ensure_manifest()
        if self._detached or local.active_segment is not segment:
            # What was found above is about a segment that is closed by now.
            return not self._detached
        end_offset = local.end_offset
        parts = await self._tools.tails.copy(
            local, tail, self.remote.partition, leader_epoch=self.leader_epoch
        )
        if self._detached or local.active_segment is not segment:
            # It was closed meanwhile, and is copied as a whole: the part is an orphan.
            return True
        now_ms = self._tools.clock.now_ms()
        await self.commit(self.owned(self.manifest()).with_tail(parts, marked_ms=now_ms))
        crash_point(TAIL_AFTER_COMMIT)
        if parts[-1].end_offset < end_offset:
            # The rest came as long ago: it is due as well.
            return True
        self._tail_timer.reset()
        return False

    async def _tail_that_fits(self) -> tuple[TailPart, ...]:
        """The committed parts, if they are the beginning of the segment that is open now."""
        tail = () if self.remote.manifest is None else self.remote.manifest.tail
        segment = self.log.local.active_segment
        if not tail or tail[0].base_offset != segment.base_offset:
            return ()
        if self._tail_checked is not segment:
            # Once after a start: the disk may have another past than the bucket.
            if not await self._run(partial(is_prefix_of, tail, self.log.local)):
                return ()
            self._tail_checked = segment
        return tail

    async def _ensure_manifest(self) -> None:
        """Returns when the bucket has topic and manifest, which come before any other object.

        So an object without a manifest says that the manifest was lost. And the only commit that
        could be done after a purge, because it wants nothing to be there, names nothing.
        """
        await self.topic.ensure()
        if self.remote.manifest is None and not self._detached:
            await self.commit(self.owned(self.manifest()))

    def manifest(self) -> Manifest:
        """The committed one, or an empty one to begin with."""
        partition = self.remote.partition
        return self.remote.manifest or Manifest(
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            generation=new_generation(self._tools.clock.now_ms(), after=self._past_generation),
        ).with_log_start(self.log.log_start_offset)

    def owned(self, manifest: Manifest) -> Manifest:
        """The same under this broker's epoch. Raises ValueError if a higher one owns it."""
        return manifest.with_leader_epoch(self.leader_epoch)

    # --- merging -----------------------------------------------------------------------------

    async def _merge_step(self) -> bool:
        """Makes one segment of several small ones, if there are such."""
        manifest, target_bytes = self.remote.manifest, self._tools.merge_target_bytes
        config = self.log.config
        # What has to be restored first cannot be read, so it cannot be merged either.
        is_out_of_reach = config.strandline_remote_storage_class in RESTORED_FIRST
        if manifest is None or target_bytes <= 0 or is_out_of_reach:
            return False
        if config.remote_log_copy_disable or self._compaction.is_under_way:
            return False
        if not manifest.marks_left:
            return False
        run = choose_run(manifest, target_bytes=target_bytes)
        if not run or await self.is_throttled():
            return bool(run)
        self._tools.copy_quota.record(sum(entry.size_bytes for entry in run))
        call = partial(
            self._tools.merger.merge,
            self.remote.partition,
            run,
            leader_epoch=self.leader_epoch,
            options=object_options(config),
        )
        merged = await asyncio.get_running_loop().run_in_executor(self._tools.copies, call)
        if self._detached or self.remote.manifest is not manifest:
            return False
        crash_point(MERGE_BEFORE_COMMIT)
        now_ms = self._tools.clock.now_ms()
        await self.commit(self.owned(manifest).with_replacement(run, merged, marked_ms=now_ms))
        crash_point(MERGE_AFTER_COMMIT)
        self._counters.merged_segments.add(len(run))
        log.info(
            "archived segments merged",
            extra={
                "fields": {
                    "partition": str(self.log.topic_partition),
                    "segments": len(run),
                    "base_offset": merged.base_offset,
                    "size_bytes": merged.size_bytes,
                }
            },
        )
        return True

    # --- deleting ----------------------------------------------------------------------------

    async def _delete_step(self) -> bool:
        if self.remote.manifest is None:
            return False
        more = await self._mark_below_log_start()  # 3
        await self._delete_marked()  # 4, 5
        return more

    async def _mark_below_log_start(self) -> bool:
        """Takes entries that nobody may read any more out of the manifest.

        As many as there is room for: the others are no burden to a commit where they are.
        """
        manifest = self.remote.manifest
        assert manifest is not None
        entries: list[SegmentEntry] = []
        count_max = min(SEGMENTS_PER_DELETE_MAX, manifest.marks_left)
        if manifest.first_offset >= manifest.log_start_offset or not count_max:
            return False
        async for entry in self.remote.entries_from(0):
            is_below = entry.end_offset <= manifest.log_start_offset
            if not is_below or len(entries) == count_max:
                break
            entries.append(entry)
        if entries:
            now_ms = self._tools.clock.now_ms()
            await self.commit(self.owned(manifest).with_deleting(entries, marked_ms=now_ms))
            crash_point(DELETE_AFTER_MARK)
            log.info(
                "archived segments are let go",
                extra={
                    "fields": {
                        "partition": str(self.log.topic_partition),
                        "segments": len(entries),
                        "log_start_offset": manifest.log_start_offset,
                    }
                },
            )
        return len(entries) == count_max

    async def _delete_marked(self) -> None:
        """Deletes the objects whose grace time is over, and then their marks."""
        manifest = self.remote.manifest
        assert manifest is not None
        waiting = ((mark, mark.marked_ms) for mark in manifest.deleting)
        due = self._grace_times.over(waiting)[:SEGMENTS_PER_DELETE_MAX]
        if not due:
            return
        keys = [key for mark in due for key in mark.keys]
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._tools.deletes, self._tools.store.delete, keys)
        crash_point(DELETE_AFTER_OBJECTS)
        await self.commit(self.owned(manifest).without_deleting(due))
        self._counters.deleted_segments.add(sum(mark.log_key != mark.meta_key for mark in due))

    # --- what an operator sees ---------------------------------------------------------------

    def statistics(self) -> PartitionStatistics:
        """Everything about this partition, as of now."""
        return statistics_of(
            self.log,
            self.remote,
            copy_failure=self._copying.failure,
            delete_failure=self._deleting.failure,
            merge_failure=self._merging.failure,
        )

    def __repr__(self) -> str:
        return f"<PartitionTiering {self.log!r} {self.remote!r} {self._copying!r}>"
