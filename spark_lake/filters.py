"""Filters that Spark pushes, turned into what the planner prunes with.

    topic, partition    evaluated while planning: a partition is read or it is not
    offset, timestamp   ranges, which prune segments and chunks and are exact for every row

What is understood completely is taken from Spark; everything else stays with it. Times are
milliseconds here and microseconds in Spark: `timestamp > t` means `ms >= floor(t / 1000) + 1`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from strandline.storage.model import TopicPartition
from strandline.storage.records.columns import RowLimits
from strandline.storage.records.vectorised import INT64_MAX, INT64_MIN

# Columns that are null in no row.
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFilters:
    """All of what was taken; `limits` is exact, `partitions` are tests on topic and partition."""

    limits: RowLimits = field(default_factory=RowLimits)
    partitions: tuple[Filter, ...] = ()

    def wants(self, partition: TopicPartition) -> bool:
        """Whether any row of the partition can pass."""
        values: dict[str, str | int] = {"topic": partition.topic, "partition": partition.partition}
        return all(_holds(test, values) for test in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushdown:
    """What was taken and what Spark still has to do."""

    pushed: PushedFilters
    left: tuple[Filter, ...]


def push_down(filters: Sequence[Filter]) -> Pushdown:
    """Splits the filters, which are joined by "and"."""
    pushed = PushedFilters()
    left: list[Filter] = []
    for one in filters:
        taken = _taken(pushed, one)
        if taken is None:
            left.append(one)
        else:
            pushed = taken
    return Pushdown(pushed=pushed, left=tuple(left))


def _taken(pushed: PushedFilters, one: Filter) -> PushedFilters | None:
    """`pushed` with this filter in it; None if it is not understood completely."""
    match one:
        case IsNotNull((column,)) if column in _NEVER_NULL:
            return pushed
        case EqualTo(("offset",), value) | EqualNullSafe(("offset",), value) if _is_number(value):
            return _with_offsets(pushed, value, value + 1)
        case GreaterThan(("offset",), value) if _is_number(value):
            return _with_offsets(pushed, value + 1, INT64_MAX)
        case GreaterThanOrEqual(("offset",), value) if _is_number(value):
            return _with_offsets(pushed, value, INT64_MAX)
        case LessThan(("offset",), value) if _is_number(value):
            return _with_offsets(pushed, INT64_MIN, value)
        case LessThanOrEqual(("offset",), value) if _is_number(value):
            return _with_offsets(pushed, INT64_MIN, value + 1)
        case EqualTo(("timestamp",), value) | EqualNullSafe(("timestamp",), value):
            return _with_times(pushed, _ms_from(value), _ms_behind(value))
        case GreaterThan(("timestamp",), value):
            return _with_times(pushed, _ms_behind(value), INT64_MAX)
        case GreaterThanOrEqual(("timestamp",), value):
            return _with_times(pushed, _ms_from(value), INT64_MAX)
        case LessThan(("timestamp",), value):
            return _with_times(pushed, INT64_MIN, _ms_from(value))
        case LessThanOrEqual(("timestamp",), value):
            return _with_times(pushed, INT64_MIN, _ms_behind(value))
        case _ if _is_partition_test(one):
            return replace(pushed, partitions=(*pushed.partitions, one))
        case _:
            return None


# --- ranges -----------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return type(value) is int


def _with_offsets(pushed: PushedFilters, start: int, end: int) -> PushedFilters:
    limits = pushed.limits
    return replace(
        pushed,
        limits=replace(
            limits,
            start_offset=min(max(limits.start_offset, start), INT64_MAX),
            end_offset=min(limits.end_offset, end),
        ),
    )


def _with_times(pushed: PushedFilters, start: int | None, end: int | None) -> PushedFilters | None:
    if start is None or end is None:
        return None
    limits = pushed.limits
    return replace(
        pushed,
        limits=replace(
            limits,
            start_timestamp_ms=max(limits.start_timestamp_ms, start),
            end_timestamp_ms=min(limits.end_timestamp_ms, end),
        ),
    )


def _microseconds(value: object) -> int | None:
    # Without a time zone it would be another type than the column's, and mean something else.
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND


def _ms_from(value: object) -> int | None:
    """The first millisecond at or after the time."""
    microseconds = _microseconds(value)
    return None if microseconds is None else -(-microseconds // 1000)


def _ms_behind(value: object) -> int | None:
    """The first millisecond after the time."""
    microseconds = _microseconds(value)
    return None if microseconds is None else microseconds // 1000 + 1


# --- tests of a partition ---------------------------------------------------------------------


def _is_partition_test(one: Filter) -> bool:
    match one:
        case Not(child):
            return _is_partition_test(child)
        case In(("topic",), values):
            return all(isinstance(value, str) for value in values)
        case In(("partition",), values):
            return all(_is_number(value) for value in values)
        case (
            EqualTo(("topic",), value)
            | EqualNullSafe(("topic",), value)
            | StringStartsWith(("topic",), value)
            | StringEndsWith(("topic",), value)
            | StringContains(("topic",), value)
        ):
            return isinstance(value, str)
        case (
            EqualTo(("partition",), value)
            | EqualNullSafe(("partition",), value)
            | GreaterThan(("partition",), value)
            | GreaterThanOrEqual(("partition",), value)
            | LessThan(("partition",), value)
            | LessThanOrEqual(("partition",), value)
        ):
            return _is_number(value)
        case _:
            return False


def _holds(test: Filter, values: dict[str, str | int]) -> bool:
    match test:
        case Not(child):
            return not _holds(child, values)
        case In((column,), choices):
            return values[column] in choices
        case EqualTo((column,), value) | EqualNullSafe((column,), value):
            return bool(values[column] == value)
        case GreaterThan((column,), value):
            return bool(values[column] > value)
        case GreaterThanOrEqual((column,), value):
            return bool(values[column] >= value)
        case LessThan((column,), value):
            return bool(values[column] < value)
        case LessThanOrEqual((column,), value):
            return bool(values[column] <= value)
        case StringStartsWith((column,), value):
            return str(values[column]).startswith(value)
        case StringEndsWith((column,), value):
            return str(values[column]).endswith(value)
        case StringContains((column,), value):
            return value in str(values[column])
        case _:
            raise AssertionError(test)
