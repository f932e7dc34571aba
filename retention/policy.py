"""Retention policy: a pure verdict on which oldest units of a log to delete.

    units      [ 0,100 )[100,200 )[200,300 )[300,400 )[400, ... )
                  drop      drop      keep      keep     active
    verdict    drop_count 2, end_offset 200

A unit can only be dropped whole: a segment, or a whole sealed page of a manifest. Units are dropped
oldest first, up to the first one that has to stay. Each is dropped for one of three reasons:

* LOG_START: it lies below the log start, its records were deleted by a client;
* AGE: its newest record is at least `retention_ms` old;
* SIZE: without it the log still holds at least `retention_bytes`.

Retention may be late, never early. So an age limit beyond the beginning of time is no limit (the
cutoff would be negative, and records with small timestamps would be dropped at once), nothing is
dropped past `gate_offset`, and the caller asks with a time that a jumping clock cannot push forward
(see `jump_guard`).

The active segment is never dropped. If it exceeds the limit itself it is rolled, so that the next
round finds it closed (Kafka does so too, KAFKA-15047).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from strandline.storage.config.log_config import UNLIMITED, LogConfig
from strandline.storage.model import Offset, TimestampMs

if TYPE_CHECKING:
    from strandline.storage.remote.manifest.entries import SegmentEntry


class DropReason(Enum):
    """Why a unit is dropped; the value appears in the log line."""

    LOG_START = "below the log start"
    AGE = "older than the age limit"
    SIZE = "the log is larger than the size limit"


class Unit(Protocol):
    """A deletable part of the log; RetentionUnit explains the properties.

    Only the oldest units are asked for their time, and sizes only if there is a size limit: a
    segment that was not opened since the start need not be opened to learn that it stays.
    """

    @property
    def end_offset(self) -> Offset: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def newest_ms(self) -> TimestampMs: ...
    @property
    def is_active(self) -> bool: ...
    @property
    def written_ms(self) -> TimestampMs: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionUnit:
    """A unit whose properties are known.

    `newest_ms` is the largest record timestamp; for records without one, when they were written.
    `written_ms` (active segment only) is the wall time at which its first record was appended.
    """

    end_offset: Offset
    size_bytes: int
    newest_ms: TimestampMs
    is_active: bool = False
    written_ms: TimestampMs = 0

    @classmethod
    def archived(cls, entry: SegmentEntry) -> RetentionUnit:
        """The unit of an archived segment."""
        return cls(
            end_offset=entry.end_offset, size_bytes=entry.size_bytes, newest_ms=entry.newest_ms
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """The retention limits, age and size; -1 is unlimited."""

    retention_ms: int
    retention_bytes: int

    @classmethod
    def total(cls, config: LogConfig) -> RetentionLimits:
        """Returns the limits over both tiers."""
        return cls(retention_ms=config.retention_ms, retention_bytes=config.retention_bytes)

    @classmethod
    def local(cls, config: LogConfig) -> RetentionLimits:
        """Returns the limits of the local tier of a tiered topic."""
        return cls(
            retention_ms=config.effective_local_retention_ms,
            retention_bytes=config.effective_local_retention_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionVerdict:
    """The `drop_count` oldest units to drop; the log then starts at `end_offset`, None if none."""

    drop_count: int
    end_offset: Offset | None
    reasons: tuple[DropReason, ...]
    roll_active: bool


def judge(
    units: Sequence[Unit],
    limits: RetentionLimits,
    *,
    now_ms: TimestampMs,
    log_start_offset: Offset,
    gate_offset: Offset | None = None,
) -> RetentionVerdict:
    """Decides which of `units` (in order, adjacent, the active one last) may be dropped.

    `gate_offset`: units that end above it stay, whatever their age and size; None is no gate.
    """
    reasons: list[DropReason] = []
    has_size_limit = limits.retention_bytes > UNLIMITED
    remaining_bytes = sum(unit.size_bytes for unit in units) if has_size_limit else 0
    for unit in units:
        reason = _reason(unit, limits, now_ms, log_start_offset, remaining_bytes)
        is_gated = gate_offset is not None and unit.end_offset > gate_offset
        if unit.is_active or reason is None or is_gated:
            break
        reasons.append(reason)
        if has_size_limit:
            remaining_bytes -= unit.size_bytes
    return RetentionVerdict(
        drop_count=len(reasons),
        end_offset=units[len(reasons) - 1].end_offset if reasons else None,
        reasons=tuple(reasons),
        roll_active=_outlives(units, limits, now_ms),
    )


def _reason(
    unit: Unit,
    limits: RetentionLimits,
    now_ms: TimestampMs,
    log_start_offset: Offset,
    remaining_bytes: int,
) -> DropReason | None:
    """Returns why `unit` may be dropped as the oldest of `remaining_bytes`, or None."""
    if unit.end_offset <= log_start_offset:
        return DropReason.LOG_START
    if _is_too_old(unit.newest_ms, limits, now_ms):
        return DropReason.AGE
    limit_bytes = limits.retention_bytes
    if limit_bytes > UNLIMITED and remaining_bytes - unit.size_bytes >= limit_bytes:
        return DropReason.SIZE
    return None


def _is_too_old(newest_ms: TimestampMs, limits: RetentionLimits, now_ms: TimestampMs) -> bool:
    if limits.retention_ms <= UNLIMITED:
        return False
    cutoff_ms = now_ms - limits.retention_ms
    return cutoff_ms >= 0 and newest_ms <= cutoff_ms


def _outlives(units: Sequence[Unit], limits: RetentionLimits, now_ms: TimestampMs) -> bool:
    """Returns whether the active segment must be rolled, so that it can be archived or dropped.

    Records may have old timestamps (a backfill), so the age limit is also compared with the wall
    time at which the segment began: else every check would cut a tiny segment during a backfill.
    """
    if not units or not units[-1].is_active or not units[-1].size_bytes:
        return False
    active = units[-1]
    if limits.retention_bytes == 0:
        return True
    return _is_too_old(active.newest_ms, limits, now_ms) and _is_too_old(
        active.written_ms, limits, now_ms
    )
