"""Merges adjacent small segments of the archive into one: fewer objects and requests to pay for.

    [1][1][1][2][1]...[64][64]        entries of the root manifest, oldest first
     \\____ run ____/                   merged when it is worth a rewrite

    1 read the segments, one after the other, each checked against the manifest
    2 inspect the whole (own process), as a copy does
    3 put .log      crash point merge.after-log         under a name never used before
    4 put .meta     crash point merge.after-meta
    5 verify        size and checksum of both           crash point merge.before-commit
    6 commit        the manifest; in the same step the old objects are marked for deletion
                                                        crash point merge.after-commit

A crash before 6 leaves orphans and the old segments; a crash after 6 leaves the marks, by which
`expiration.py` deletes the old objects after the grace time of their readers. The records are the
same bytes at the same offsets: only the objects' borders move.

A run is merged if it makes an object of at least half the target, which is not merged again. Many
segments are also merged into less, if none of them has more than a quarter of the bytes. So each
merge but the last one puts a byte into an object at least four times as large: a byte is rewritten
a logarithmic number of times, however long segments trickle in.

Retention deletes whole objects. So what is merged spans at most an eighth of retention.ms, and has
at most an eighth of retention.bytes: a record outlives its retention by that much at most. Objects
that span more (of an older release, or of times before retention.ms was lowered) are not merged
again; retention moves the log start on inside them.

If a run is gone by its commit, its new objects are orphans. A segment that cannot be read, because
it is damaged or must be restored first, is tried a few times and then excluded until the next
start; later segments are merged all the same.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.crash_points import (
    MERGE_AFTER_COMMIT,
    MERGE_AFTER_LOG,
    MERGE_AFTER_META,
    MERGE_BEFORE_COMMIT,
    crash_point,
)
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    DiskError,
    ObjectCorrupt,
    StrandlineError,
)
from strandline.storage.local.formats.producer_state import iter_snapshot
from strandline.storage.model import AbortedTransaction, Epoch, TimestampMs, TopicIdPartition
from strandline.storage.records.txn_index import decode_entries
from strandline.storage.remote.keys import new_unique, segment_keys
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.object_store.interface import (
    FileBody,
    ObjectOptions,
    ObjectStore,
)
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.download import download
from strandline.storage.remote.segment.meta import MetaReader, Section
from strandline.storage.tiering.copy.inspection import Offsets, SegmentFacts
from strandline.storage.tiering.copy.inspector import InspectionRequest, SegmentInspector
from strandline.storage.tiering.copy.segment_sections import entry_of, sections_of
from strandline.storage.tiering.copy.upload import UploadPoints, upload_segment
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.policy.object_options import (
    may_rewrite,
    minimum_duration_ms,
    object_options,
)
from strandline.storage.tiering.policy.quota import TierQuota
from strandline.storage.tiering.policy.retry import OBJECT_UNREADABLE, UNREADABLE_TIMES, named_in
from strandline.storage.tiering.rewrite.scratch import made

log = logging.getLogger(__name__)

# A run of this many segments is worth a rewrite, however small they are,
RUN_SEGMENTS_ENOUGH = 16
# if it makes an object this many times as large as the largest of them.
RUN_GROWTH = 4
# The most segments that one merge reads: a bound on its requests.
RUN_SEGMENTS_MAX = 256
# The indexes of a restored segment hold relative offsets of 32 bits, signed.
RUN_OFFSETS_MAX = 2**31 - 1


# --- deciding --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """The bounds of a merged segment: its bytes, and the ms between its oldest and newest record.

    Segments uploaded after `uploaded_until_ms` are left alone; None: there are none such.
    """

    target_bytes: int
    span_ms_max: int | None = None
    uploaded_until_ms: TimestampMs | None = None

    @classmethod
    def of_topic(cls, config: LogConfig, *, target_bytes: int, now_ms: TimestampMs) -> MergeLimits:
        """Returns the limits by the topic's retention and storage class."""
        bytes_max, minimum_ms = config.archived_bytes_max, minimum_duration_ms(config)
        return cls(
            target_bytes=target_bytes if bytes_max is None else min(target_bytes, bytes_max),
            span_ms_max=config.archived_span_ms_max,
            uploaded_until_ms=now_ms - minimum_ms if minimum_ms else None,
        )

    def spans_too_much(self, span_ms: int) -> bool:
        """Whether records of a merged segment would outlive their retention by too much."""
        return self.span_ms_max is not None and span_ms > self.span_ms_max

    def is_worth_it(self, count: int, *, size_bytes: int, largest_bytes: int) -> bool:
        """Whether a run of `count` segments is worth a rewrite."""
        if count < 2:
            return False
        is_many = count >= RUN_SEGMENTS_ENOUGH and size_bytes >= RUN_GROWTH * largest_bytes
        return is_many or 2 * size_bytes >= self.target_bytes

    def leaves_alone(self, entry: SegmentEntry) -> bool:
        """Whether the segment is large enough, or must stay for a while."""
        until_ms = self.uploaded_until_ms
        is_young = until_ms is not None and entry.uploaded_ms > until_ms
        return is_young or 2 * entry.size_bytes >= self.target_bytes


def choose_run(
    manifest: Manifest, limits: MergeLimits, *, left_alone: Collection[str] = ()
) -> Sequence[SegmentEntry]:
    """Returns the oldest run that is worth a merge, as long as it may be, or an empty one.

    It has only entries of the root, above the log start. `left_alone` are keys of `.log` objects
    that must not be merged.
    """
    entries = manifest.segments
    for first, entry in enumerate(entries):
        if entry.end_offset > manifest.log_start_offset:
            count = _worth_merging(entries[first:], limits, left_alone)
            if count:
                return entries[first : first + count]
    return ()


def _worth_merging(
    entries: Sequence[SegmentEntry], limits: MergeLimits, left_alone: Collection[str]
) -> int:
    """Returns how many of the first `entries` are worth a merge; 0: none."""
    first = entries[0]
    end_offset, size_bytes, largest_bytes = first.base_offset, 0, 0
    oldest_ms, newest_ms = first.oldest_ms, first.newest_ms
    worth_count = 0
    for count, entry in enumerate(entries[:RUN_SEGMENTS_MAX], start=1):
        size_bytes += entry.size_bytes
        largest_bytes = max(largest_bytes, entry.size_bytes)
        oldest_ms, newest_ms = min(oldest_ms, entry.oldest_ms), max(newest_ms, entry.newest_ms)
        if (
            limits.leaves_alone(entry)
            or entry.log_key in left_alone
            or entry.base_offset != end_offset
            or size_bytes > limits.target_bytes
            or entry.end_offset - first.base_offset > RUN_OFFSETS_MAX
            or limits.spans_too_much(newest_ms - oldest_ms)
            # Of a mixture, retention goes by the records with a time: too early for the others.
            or entry.has_times != first.has_times
        ):
            break
        end_offset = entry.end_offset
        if limits.is_worth_it(count, size_bytes=size_bytes, largest_bytes=largest_bytes):
            worth_count = count
    return worth_count


# --- doing -----------------------------------------------------------------------------------


MERGE_POINTS = UploadPoints(after_log=MERGE_AFTER_LOG, after_meta=MERGE_AFTER_META)


class SegmentMerger:
    """Merges runs of segments of any partition: steps 1 to 5."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        inspector: SegmentInspector,
        executor: Executor,
        clock: Clock,
        timeout_ms: int,
        quota: TierQuota,
        target_bytes: int,
        scratch: Path | None = None,
    ) -> None:
        """`scratch` is the folder for temporary segments; None: the system's. A `target_bytes` of 0
        disables merges.
        """
        self.quota = quota
        self.target_bytes = target_bytes
        self._store = store
        self._inspector = inspector
        self.executor = executor
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        self._scratch = scratch

    def merge(
        self,
        partition: TopicIdPartition,
        run: Sequence[SegmentEntry],
        *,
        leader_epoch: Epoch,
        options: ObjectOptions,
    ) -> SegmentEntry:
        """Returns a verified, uncommitted segment with the records of `run`; blocks.

        Raises ObjectCorrupt if a segment differs from its entry, DiskError, and as a copy does.
        """
        try:
            with tempfile.NamedTemporaryFile(dir=made(self._scratch), prefix="merge-") as file:
                for entry in run:  # 1
                    if download(self._store, entry, file) != entry.log_crc32c:
                        raise ObjectCorrupt(entry.log_key, "merge", "is not what the manifest says")
                return self.publish(
                    partition, run, Path(file.name), leader_epoch=leader_epoch, options=options
                )
        except OSError as error:
            raise DiskError(f"cannot merge in a temporary file: {error.strerror}") from error

    def publish(
        self,
        partition: TopicIdPartition,
        run: Sequence[SegmentEntry],
        path: Path,
        *,
        leader_epoch: Epoch,
        options: ObjectOptions,
        points: UploadPoints = MERGE_POINTS,
        aborted: Collection[AbortedTransaction] | None = None,
    ) -> SegmentEntry:
        """Steps 2 to 5: uploads the file as a verified, uncommitted segment of the run's offsets.

        Blocks. `aborted` are its aborted transactions; None: those of the run.
        """
        keys = segment_keys(
            partition,
            base_offset=run[0].base_offset,
            leader_epoch=leader_epoch,
            unique=new_unique(),
        )
        facts = self._inspector.inspect(  # 2
            InspectionRequest(
                path=path,
                base_offset=run[0].base_offset,
                end_offset=run[-1].end_offset,
                # The checksum of each segment was checked by the download.
                offsets=Offsets.SOME,
            ),
            timeout_s=self._timeout_s,
        )
        if aborted is None:
            aborted = {found for entry in run for found in aborted_in(self._store, entry)}
        meta = self._meta(run, facts, aborted)
        body = FileBody(
            path=path, size_bytes=facts.size_bytes, crc32c=facts.crc32c, options=options
        )
        upload_segment(self._store, keys, body, meta, points=points)  # 3, 4, 5
        return entry_of(
            facts,
            keys,
            meta,
            base_offset=run[0].base_offset,
            end_offset=facts.end_offset,
            has_transactions=any(entry.has_transactions for entry in run),
            recompressed_from_bytes=_recompressed_from_bytes(run),
            # Retention goes by it where records have no time: a merge does not make them younger.
            uploaded_ms=self._clock.now_ms()
            if facts.bounds.max_ms >= 0
            else max(entry.uploaded_ms for entry in run),
        )

    def _meta(
        self,
        run: Sequence[SegmentEntry],
        facts: SegmentFacts,
        aborted: Collection[AbortedTransaction],
    ) -> bytes:
        last = _meta_reader(self._store, run[-1])
        epochs = last.read(Section.LEADER_EPOCHS)
        snapshot = last.read(Section.PRODUCER_SNAPSHOT)
        if snapshot is not None:
            # Otherwise only a restore would detect damage, when it is too late.
            for _ in iter_snapshot(snapshot):
                pass
        return segment_meta.encode(
            sections_of(
                facts,
                leader_epochs=facts.leader_epochs
                if epochs is None
                else segment_meta.decode_leader_epochs(epochs, source=run[-1].meta_key),
                aborted=aborted,
                producer_snapshot=snapshot,
            )
        )


def aborted_in(store: ObjectStore, entry: SegmentEntry) -> Sequence[AbortedTransaction]:
    """Reads the aborted transactions of an archived segment; blocks. Raises as the store does."""
    index = None
    if entry.has_transactions:
        index = _meta_reader(store, entry).read(Section.TXN_INDEX)
    return () if index is None else decode_entries(index, source=entry.meta_key)


def _meta_reader(store: ObjectStore, entry: SegmentEntry) -> MetaReader:
    return MetaReader(store, entry.meta_key, entry.meta_size_bytes)


def _recompressed_from_bytes(run: Sequence[SegmentEntry]) -> int | None:
    """Returns the records' size on the broker's disk, if some segments were recompressed."""
    if all(entry.recompressed_from_bytes is None for entry in run):
        return None
    return sum(entry.recompressed_from_bytes or entry.size_bytes for entry in run)


# --- the steps of one partition --------------------------------------------------------------


class MergeSteps:
    """Merges one partition's small segments. Used on the event loop only."""

    def __init__(self, owner: ManifestOwner, merger: SegmentMerger) -> None:
        self._owner = owner
        self._merger = merger
        # Failed reads of segments in the root, by key.
        self._unreadable: dict[str, int] = {}

    @property
    def is_crowded(self) -> bool:
        """Whether entries of the root will soon be sealed, after which they cannot be merged."""
        manifest = self._owner.remote.manifest
        return manifest is not None and len(manifest.segments) > manifest_store.PAGE_ENTRIES

    async def step(self) -> bool:
        """Merges one run, if there is one; True if there may be more.

        Raises StorageError, RecordsRejected.
        """
        manifest, config = self._owner.remote.manifest, self._owner.log.config
        target_bytes = self._merger.target_bytes
        if manifest is None or target_bytes <= 0 or not may_rewrite(config):
            return False
        if not manifest.marks_left:
            return False
        now_ms = self._owner.clock.now_ms()
        limits = MergeLimits.of_topic(config, target_bytes=target_bytes, now_ms=now_ms)
        run = choose_run(manifest, limits, left_alone=self._left_alone)
        if not run or await self._merger.quota.wait_a_step():
            return bool(run)
        merged = await self._merge(manifest, run)
        if self._owner.life.is_detached() or self._owner.remote.manifest is not manifest:
            return False
        crash_point(MERGE_BEFORE_COMMIT)
        now_ms = self._owner.clock.now_ms()
        await self._owner.commit(manifest.with_replacement(run, merged, marked_ms=now_ms))  # 6
        crash_point(MERGE_AFTER_COMMIT)
        log.info(
            "archived segments merged",
            extra={
                "fields": {
                    "partition": str(self._owner.log.topic_partition),
                    "segments": len(run),
                    "base_offset": merged.base_offset,
                    "size_bytes": merged.size_bytes,
                }
            },
        )
        return True

    async def _merge(self, manifest: Manifest, run: Sequence[SegmentEntry]) -> SegmentEntry:
        self._merger.quota.record(sum(entry.size_bytes for entry in run))
        call = partial(
            self._merger.merge,
            self._owner.remote.partition,
            run,
            leader_epoch=self._owner.life.leader_epoch,
            options=object_options(self._owner.log.config),
        )
        try:
            return await asyncio.get_running_loop().run_in_executor(self._merger.executor, call)
        except (CorruptFile, CorruptRecords) as error:
            self._note_unreadable(manifest, run, error)
            raise
        except OBJECT_UNREADABLE as error:
            self._note_unreadable(manifest, named_in(error, run), error)
            raise

    @property
    def _left_alone(self) -> frozenset[str]:
        times = self._unreadable.items()
        return frozenset(key for key, count in times if count >= UNREADABLE_TIMES)

    def _note_unreadable(
        self, manifest: Manifest, entries: Sequence[SegmentEntry], error: StrandlineError
    ) -> None:
        in_root = {entry.log_key for entry in manifest.segments}
        times = {key: count for key, count in self._unreadable.items() if key in in_root}
        self._unreadable = times
        for entry in entries:
            times[entry.log_key] = times.get(entry.log_key, 0) + 1
            if times[entry.log_key] != UNREADABLE_TIMES:
                continue
            log.warning(
                "segment cannot be merged and is left as it is",
                extra={"fields": {"key": entry.log_key, "reason": str(error)}},
            )
