"""Copies one closed segment into the bucket, without committing or freeing anything; where the
archive ends inside it, from there on.

    1 flush      the segment and all earlier ones are durable on this disk, but no later one
    2 inspect    every batch checked; checksum, counts, time bounds, chunks (own process);
                 if the topic asks for recompression, the segment is rewritten first, and steps 3
                 and 4 upload the rewritten one                crash point copy.after-rewrite
    3 put .log   under a key unique to this attempt            crash point copy.after-log
    4 put .meta                                                crash point copy.after-meta
    5 verify     size and checksum of both, as stored
    ---- then, in steps.py, if the partition is still ours and the deadline has not passed:
                                                               crash point copy.before-commit
    6 commit     the manifest, by compare-and-swap             crash point copy.after-commit
                 from here on retention may free the local segment

A crash before 6 leaves orphans (objects that no manifest names), which are deleted later; the
segment is copied again under new keys. A crash after 6 loses nothing: the manifest names the
segment. Step 1 comes first because recovery truncates unflushed records, and the archive must never
have more records than a restarted broker.

All steps of a copy share one deadline. An upload that ends after it cannot be committed, which
makes the grace time of orphans safe: an uncommitted object older than the deadline stays one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import result_of
from strandline.storage.crash_points import (
    COPY_AFTER_LOG,
    COPY_AFTER_META,
    COPY_AFTER_REWRITE,
    crash_point,
)
from strandline.storage.errors import (
    CorruptFile,
    DiskError,
    OutOfResources,
    StorageError,
    TierError,
    TierUnavailable,
)
from strandline.storage.local.formats.producer_state import iter_snapshot
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import (
    AbortedTransaction,
    Buffer,
    Epoch,
    EpochStart,
    Offset,
    Position,
    TopicIdPartition,
)
from strandline.storage.records.txn_index import decode_entries
from strandline.storage.remote.keys import SegmentKeys, new_unique, segment_keys
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.object_store.interface import FileBody, ObjectOptions, ObjectStore
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import Section
from strandline.storage.tiering.copy.inspection import Offsets, SegmentFacts
from strandline.storage.tiering.copy.inspector import InspectionRequest, SegmentInspector
from strandline.storage.tiering.copy.recompression import Recompression, nameless_file
from strandline.storage.tiering.copy.segment_sections import entry_of, sections_of
from strandline.storage.tiering.copy.upload import UploadPoints, upload_segment
from strandline.storage.tiering.log.segment_views import position_of
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.policy.lifecycle import SegmentVerdict
from strandline.storage.tiering.policy.object_options import object_options
from strandline.storage.tiering.policy.quota import TierQuota

log = logging.getLogger(__name__)

_POINTS = UploadPoints(after_log=COPY_AFTER_LOG, after_meta=COPY_AFTER_META)


class CopyUseless(TierError):
    """The copy is no longer wanted."""


class CopyDeadlineMissed(TierError):
    """A copy took longer than it may; the store may be well, only slow for this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySource:
    """The input of one copy, which must be committed by `deadline_s`.

    Setting `useless` cancels the copy: it raises CopyUseless before its next upload.
    """

    segment: LogSegment
    base_offset: Offset
    end_offset: Offset
    # Where the copy begins in the segment's file.
    position: Position
    keys: SegmentKeys
    leader_epochs: tuple[EpochStart, ...]
    # Every aborted transaction that touches the segment, wherever its marker lies. None is open:
    # the segment ends below the last stable offset.
    aborted: tuple[AbortedTransaction, ...]
    options: ObjectOptions
    offsets: Offsets
    deadline_s: float
    useless: threading.Event
    # zstd's level; None: the segment is uploaded unchanged.
    recompression_level: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """A running copy; `outcome` is the verified entry to commit, or the error."""

    source: CopySource
    outcome: asyncio.Future[SegmentEntry]


class SegmentCopier:
    """Uploads closed segments of any partition: steps 1 to 5."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        inspector: SegmentInspector,
        executor: Executor,
        clock: Clock,
        timeout_ms: int,
        quota: TierQuota,
        copies_max: int,
    ) -> None:
        """`executor` runs the blocking steps, `copies_max` of them at a time."""
        self.quota = quota
        # May be changed at any time; running copies continue.
        self.copies_max = copies_max
        self._under_way_count = 0
        self._store = store
        self._inspector = inspector
        self._executor = executor
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        # The error last logged for a failed cleanup; reset by a successful copy.
        self._noted_kind = ""

    @property
    def may_go_ahead(self) -> bool:
        """Whether a thread is free for a copy beyond the next one of each partition.

        The next one may always run: the number of workers bounds those.
        """
        return self._under_way_count < self.copies_max

    def is_late(self, source: CopySource) -> bool:
        """Returns whether the deadline of the copy has passed, so that it may not be committed."""
        return self._clock.monotonic_s() > source.deadline_s

    def begin(
        self, unified_log: UnifiedLog, wanted: SegmentVerdict, *, leader_epoch: Epoch
    ) -> Copying:
        """Starts to upload what a closed segment has of these offsets; `finish` waits for it.

        Raises CorruptFile if the segment has no border there.
        """
        local = unified_log.local
        # Found by its end: `wanted` may begin with segments that compaction emptied.
        segment = next(
            s for s in local.segments if s.end_offset == wanted.end_offset and s.size_bytes
        )
        base_offset = wanted.base_offset
        assert not segment.is_active, segment
        assert segment.end_offset <= local.last_stable_offset, (segment, unified_log)
        partition = TopicIdPartition(
            local.topic_partition.topic, local.topic_id, local.topic_partition.partition
        )
        source = CopySource(
            segment=segment,
            base_offset=base_offset,
            end_offset=wanted.end_offset,
            position=position_of(segment, base_offset),
            keys=segment_keys(
                partition, base_offset=base_offset, leader_epoch=leader_epoch, unique=new_unique()
            ),
            leader_epochs=tuple(
                s for s in local.leader_epochs.starts if s.start_offset < segment.end_offset
            ),
            aborted=tuple(local.aborted_transactions(base_offset, segment.end_offset)),
            options=object_options(local.config),
            offsets=Offsets.SOME if local.has_gaps else Offsets.EVERY,
            deadline_s=self._clock.monotonic_s() + self._timeout_s,
            useless=threading.Event(),
            recompression_level=local.config.remote_recompression_level,
        )
        outcome = asyncio.get_running_loop().run_in_executor(
            self._executor, self._copy, source, local
        )
        self._under_way_count += 1
        outcome.add_done_callback(self._end)
        return Copying(source=source, outcome=outcome)

    def _end(self, outcome: asyncio.Future[SegmentEntry]) -> None:
        self._under_way_count -= 1
        if not outcome.cancelled():
            # Marks the error as retrieved: a cancelled copy has no waiter.
            outcome.exception()

    async def finish(self, copying: Copying) -> SegmentEntry:
        """Waits for a copy.

        Raises CorruptRecords or CorruptFile if the segment is damaged, DiskError, InspectionFailed,
        CopyDeadlineMissed, and what the store raises.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                # A copy that timed out keeps running; a purge waits for its end.
                return await result_of(copying.outcome)
        except TimeoutError:
            raise self._too_late(copying.source) from None

    def delete_when_ended(self, copying: Copying) -> None:
        """Deletes the objects of a copy once it has ended; no commit of it was or will be tried."""
        copying.outcome.add_done_callback(self._delete_copy)

    def _delete_copy(self, outcome: asyncio.Future[SegmentEntry]) -> None:
        if outcome.cancelled() or outcome.exception() is not None:
            # A failed copy deletes its own objects.
            return
        entry = outcome.result()
        # While the broker stops, or without a thread, the search for orphans deletes them.
        with suppress(RuntimeError, OutOfResources):
            self._executor.submit(self._delete, entry.log_key, entry.meta_key)

    def _copy(self, source: CopySource, local: LocalLog) -> SegmentEntry:
        """Runs steps 1 to 5; blocks."""
        self._check_wanted(source)
        local.flush(source.end_offset)  # 1
        if source.recompression_level is None:
            return self._copy_inspected(source, self._inspect(source))
        with nameless_file(source.segment.log_path.parent) as path:
            wanted = Recompression(path=path, level=source.recompression_level)
            facts = self._inspect(source, wanted)
            is_rewritten = facts.recompressed_from_bytes is not None
            if is_rewritten:
                crash_point(COPY_AFTER_REWRITE)
            return self._copy_inspected(source, facts, path if is_rewritten else None)

    def _copy_inspected(
        self, source: CopySource, facts: SegmentFacts, rewritten: Path | None = None
    ) -> SegmentEntry:
        """Steps 3 to 5 for the inspected segment, or what was made of it."""
        segment, keys = source.segment, source.keys
        self._check_wanted(source)
        meta = segment_meta.encode(_sections(source, facts))
        try:
            upload_segment(  # 3, 4, 5
                self._store,
                keys,
                FileBody(
                    path=rewritten or segment.log_path,
                    start=0 if rewritten else source.position,
                    size_bytes=facts.size_bytes,
                    crc32c=facts.crc32c,
                    options=source.options,
                ),
                meta,
                points=_POINTS,
                check=partial(self._check_deadline, source),
            )
        except StorageError as error:
            self._clean_up(keys, error)
            raise
        self._noted_kind = ""
        return entry_of(
            facts,
            keys,
            meta,
            base_offset=source.base_offset,
            end_offset=segment.end_offset,
            # Any transactional batch, committed or not.
            has_transactions=bool(facts.transactional_batch_count or facts.control_batch_count),
            recompressed_from_bytes=facts.recompressed_from_bytes,
            uploaded_ms=self._clock.now_ms(),
        )

    def _clean_up(self, keys: SegmentKeys, error: StorageError) -> None:
        """Deletes the objects of a failed copy, so that retries of a lasting failure leave no heap.

        No manifest names these keys. If the store is unreachable, the search for orphans has them.
        """
        if not isinstance(error, TierUnavailable):
            self._delete(keys.log_key, keys.meta_key)

    def _delete(self, log_key: str, meta_key: str) -> None:
        try:
            self._store.delete([log_key, meta_key])
        except StorageError as error:
            kind = type(error).__name__
            log.log(
                logging.DEBUG if kind == self._noted_kind else logging.INFO,
                "failed copy is left as an orphan",
                extra={"fields": {"key": log_key, "reason": str(error)}},
            )
            self._noted_kind = kind

    def _inspect(
        self, source: CopySource, recompression: Recompression | None = None
    ) -> SegmentFacts:
        segment = source.segment
        facts = self._inspector.inspect(
            InspectionRequest(
                path=segment.log_path,
                base_offset=source.base_offset,
                end_offset=segment.end_offset,
                position=source.position,
                offsets=source.offsets,
                recompression=recompression,
            ),
            timeout_s=max(0.0, source.deadline_s - self._clock.monotonic_s()),
        )
        rewritten_bytes = facts.recompressed_from_bytes
        found_bytes = facts.size_bytes if rewritten_bytes is None else rewritten_bytes
        expected_bytes = segment.size_bytes - source.position
        if found_bytes != expected_bytes:
            raise CorruptFile(
                f"{segment.log_path} has {found_bytes} bytes, {expected_bytes} expected"
            )
        if facts.unreadable_batch_count:
            log.warning(
                "segment holds batches whose records cannot be read; archived as they are",
                extra={
                    "fields": {
                        "path": str(segment.log_path),
                        "batches": facts.unreadable_batch_count,
                    }
                },
            )
        return facts

    def _check_wanted(self, source: CopySource) -> None:
        if source.useless.is_set():
            raise CopyUseless(source.keys.log_key, "copy", "nobody waits for it any more")

    def _check_deadline(self, source: CopySource) -> None:
        if self.is_late(source):
            raise self._too_late(source)

    def _too_late(self, source: CopySource) -> CopyDeadlineMissed:
        detail = f"not done in {self._timeout_s:g} s"
        return CopyDeadlineMissed(source.keys.log_key, "copy", detail)


def _sections(source: CopySource, facts: SegmentFacts) -> dict[Section, Buffer]:
    """Returns the sections of the `.meta` object."""
    segment = source.segment
    aborted = set(source.aborted)
    if segment.txn_index_path.exists():
        # Decoding refuses a torn index, with which aborted records would always be visible.
        indexed = decode_entries(_read(segment.txn_index_path), source=str(segment.txn_index_path))
        aborted.update(one for one in indexed if one.last_offset >= source.base_offset)
    return sections_of(
        facts,
        leader_epochs=source.leader_epochs,
        aborted=aborted,
        producer_snapshot=_producer_snapshot(segment.snapshot_path),
    )


def _producer_snapshot(path: Path) -> bytes | None:
    """Returns the producer snapshot at the end of the segment; None if it is missing or damaged.

    The segment is archived all the same: an older snapshot and the log can rebuild this one.
    """
    if not path.exists():
        return None
    try:
        snapshot = _read(path)
        deque(iter_snapshot(snapshot), maxlen=0)
    except CorruptFile as error:
        log.warning(
            "producer snapshot is damaged, archiving without it",
            extra={"fields": {"path": str(path), "reason": str(error)}},
        )
        return None
    return snapshot


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DiskError(f"cannot read {path}: {error.strerror}") from error
