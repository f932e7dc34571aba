"""Decides the state of each local segment of one partition: copy, wait (with a reason), or free.

    log start          remote end              last stable offset    end
        |                  |                           |              |
        [ 0,100 )[100,200 )[200,300 )[300,400 )[400,500 )[500,   ...  )
          archived           next      queued    unstable   active

Copying goes strictly in order, one segment per partition at a time, and never past the last stable
offset, so that an archived segment holds no part of an open transaction. It starts at the end of
the archive or at the log start, whichever is further: inside a segment, if an earlier leader closed
its own elsewhere. Of a compacted log only what the cleaner is
done with is copied, and what is copied the cleaner leaves alone.

Freeing needs one of two facts: the whole segment lies below the end of the *committed* archive, or
below a log start that is on durable storage. Nothing else frees a segment. Where another broker
writes the archive the first says nothing: it may have other records under the same offsets.

This file only decides. Every segment that is not archived gets exactly one reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from strandline.storage.model import Offset, TimestampMs

# One on the wire and one before it. More would take bandwidth from the one that is due.
COPIES_PER_PARTITION = 2


class SegmentState(Enum):
    """State of a local segment; the value is shown to operators."""

    ARCHIVED = "archived: the copy is committed"
    DELETED = "below the log start: it will be removed, not copied"
    NEXT = "next to be copied"
    QUEUED = "waits for earlier segments of the partition"
    ACTIVE = "still being written"
    UNSTABLE = "holds records above the last stable offset"
    UNCLEANED = "waits for the cleaner: of a compacted log only compacted segments are copied"
    DELAYED = "waits for remote.copy.lag.ms or remote.copy.lag.bytes"
    TIERING_DISABLED = "remote.storage.enable is false"
    COPY_DISABLED = "remote.log.copy.disable is true"
    MANIFEST_UNKNOWN = "the manifest of the partition is not loaded yet"
    FENCED = "another broker owns the manifest of the partition"
    GAP = "the local log starts above the end of the archive: records between are missing"
    OVERLAP = "the archive has other records than this segment begins with"


_NOT_COPYABLE_YET = (SegmentState.ACTIVE, SegmentState.UNSTABLE, SegmentState.UNCLEANED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """A local segment, as far as decisions need it."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    is_active: bool
    # Of its newest record; asked for only where copying is delayed.
    newest_ms: TimestampMs = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """The input of the verdict; `segments` are in order and adjacent.

    `copy_lag_ms` and `copy_lag_bytes` are KIP-1241's: 0 is no delay, -1 no such condition.

    `remote_end_offset` is the exclusive end of the committed archive, None while it is empty.
    `durable_log_start_offset` is the log start that survives a crash of this machine.
    `is_log_start_noted` says whether this disk has a checkpoint of where the log starts: without
    one an archive that was lost looks like one that never existed.
    `cleaned_offset` is up to where a compacted log is clean, None for other logs.
    `has_archived_past` says whether the records before the archive's end are the archive's.
    """

    segments: Sequence[SegmentView]
    log_start_offset: Offset
    durable_log_start_offset: Offset
    last_stable_offset: Offset
    remote_end_offset: Offset | None
    tiering_enabled: bool = True
    copy_disabled: bool = False
    manifest_known: bool = True
    fenced: bool = False
    is_log_start_noted: bool = True
    cleaned_offset: Offset | None = None
    has_archived_past: bool = True
    now_ms: TimestampMs = 0
    copy_lag_ms: int = 0
    copy_lag_bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentVerdict:
    """The state of one local segment, and whether its local copy may be freed.

    The offsets are those that the archive does not have, unless it has them all.
    """

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    state: SegmentState
    freeable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """One verdict per local segment, oldest first."""

    segments: tuple[SegmentVerdict, ...]

    def next_copies(self) -> tuple[SegmentVerdict, ...]:
        """Returns the segment to copy now and those that wait for nothing but it, oldest first."""
        copies: list[SegmentVerdict] = []
        for segment in self.segments:
            if segment.state is (SegmentState.QUEUED if copies else SegmentState.NEXT):
                copies.append(segment)
            elif copies:
                break
        return tuple(copies[:COPIES_PER_PARTITION])

    @property
    def not_copyable_yet(self) -> tuple[SegmentVerdict, ...]:
        """All segments behind the archive's end, if the first of them has to wait for more than its
        turn: for its end, the end of a transaction, or the cleaner. Else none.
        """
        pending = self.pending
        return pending if all(s.state in _NOT_COPYABLE_YET for s in pending) else ()

    @property
    def misfit(self) -> SegmentVerdict | None:
        """The segment that needs a repair of the archive before its copy, if there is one."""
        misfits = (SegmentState.GAP, SegmentState.OVERLAP)
        return next((s for s in self.segments if s.state in misfits), None)

    @property
    def freeable_end_offset(self) -> Offset | None:
        """Local segments up to here may be freed; None if not even the first may."""
        end_offset = None
        for segment in self.segments:
            if not segment.freeable:
                break
            end_offset = segment.end_offset
        return end_offset

    @property
    def pending(self) -> tuple[SegmentVerdict, ...]:
        """Segments that are not archived and should be, oldest first."""
        done = (SegmentState.ARCHIVED, SegmentState.DELETED)
        return tuple(s for s in self.segments if s.state not in done)


def judge(view: PartitionView) -> PartitionVerdict:
    """Returns the verdict for every local segment of the partition."""
    verdicts: list[SegmentVerdict] = []
    # Once one segment has to wait, all later ones wait for it: copies are made in order.
    blocked = False
    expected_base = view.remote_end_offset
    newer_bytes = sum([segment.size_bytes for segment in view.segments])
    for segment in view.segments:
        newer_bytes -= segment.size_bytes
        state = _state(view, segment, expected_base)
        if state is SegmentState.NEXT and _is_delayed(view, segment, newer_bytes):
            state = SegmentState.DELAYED
        if state is SegmentState.NEXT and blocked:
            state = SegmentState.QUEUED
        base_offset = segment.base_offset
        if state not in (SegmentState.ARCHIVED, SegmentState.DELETED):
            blocked = True
            base_offset = max(base_offset, expected_base or 0)
            expected_base = segment.end_offset
        verdicts.append(
            SegmentVerdict(
                base_offset=base_offset,
                end_offset=segment.end_offset,
                size_bytes=segment.size_bytes,
                state=state,
                freeable=is_freeable(view, segment),
            )
        )
    return PartitionVerdict(segments=tuple(verdicts))


def is_freeable(view: PartitionView, segment: SegmentView) -> bool:
    """Returns whether freeing the local copy of `segment` now loses no records."""
    if segment.is_active:
        return False
    # A log start that is only in memory would go back after a crash, and expose the lost records.
    if segment.end_offset <= view.durable_log_start_offset:
        return True
    return view.is_log_start_noted and _is_archived(view, segment)


def _is_archived(view: PartitionView, segment: SegmentView) -> bool:
    if not view.manifest_known or view.fenced or view.remote_end_offset is None:
        return False
    return segment.end_offset <= view.remote_end_offset


def _state(view: PartitionView, segment: SegmentView, expected_base: Offset | None) -> SegmentState:
    if not segment.is_active:
        if _is_archived(view, segment):
            return SegmentState.ARCHIVED
        if segment.end_offset <= view.log_start_offset:
            return SegmentState.DELETED
    if not view.tiering_enabled:
        return SegmentState.TIERING_DISABLED
    is_inside = expected_base is not None and segment.base_offset < expected_base
    is_of_others = is_inside and not view.has_archived_past
    if segment.is_active and not is_of_others:
        return SegmentState.ACTIVE
    if not view.manifest_known:
        return SegmentState.MANIFEST_UNKNOWN
    if view.fenced:
        return SegmentState.FENCED
    if view.copy_disabled:
        return SegmentState.COPY_DISABLED
    if is_of_others:
        return SegmentState.OVERLAP
    if segment.end_offset > view.last_stable_offset:
        return SegmentState.UNSTABLE
    # The cleaner leaves a segment alone of which the archive has the beginning.
    cleaned_offset = None if is_inside else view.cleaned_offset
    if cleaned_offset is not None and segment.end_offset > cleaned_offset:
        return SegmentState.UNCLEANED
    # Records below the log start were deleted on purpose: with [0,100) archived and the log start
    # at 150, both [100,200) and [120,200) continue the archive, [160,200) does not. [80,200) does,
    # from 100 on.
    continues_at = max(view.log_start_offset, expected_base or 0)
    return SegmentState.GAP if segment.base_offset > continues_at else SegmentState.NEXT


def _is_delayed(view: PartitionView, segment: SegmentView, newer_bytes: int) -> bool:
    """Whether KIP-1241 lets the segment wait: neither is it old enough, nor is enough behind it.

    As in RemoteLogManager.RLMCopyTask: a time in the future is no reason to wait.
    """
    lag_ms, lag_bytes = view.copy_lag_ms, view.copy_lag_bytes
    if lag_ms == 0 or lag_bytes == 0:
        return False
    age_ms = view.now_ms - segment.newest_ms
    is_old = lag_ms > 0 and (age_ms >= lag_ms or age_ms < 0)
    return not is_old and not (lag_bytes > 0 and newer_bytes >= lag_bytes)
