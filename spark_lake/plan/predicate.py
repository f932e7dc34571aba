"""Predicate of a query: plain comparisons, and the limits that the planner derives from them.

    topic, partition    evaluated while planning: a partition is read or it is not
    offset, timestamp   ranges, which prune segments and chunks and are exact for every row
    key = k, key in ks  the keys that a row may have; segments without any of them can be left out,
                        and `residual` drops the other rows
    all others          are not taken; the caller evaluates them (Spark, or `residual`)

Times are milliseconds here and microseconds in the comparisons: `timestamp > t` means
`ms >= floor(t / 1000) + 1`. Pure.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from strandline.storage.model import TopicPartition
from strandline.storage.records.columns.columns import RowLimits
from strandline.storage.records.columns.vectorised import INT64_MAX, INT64_MIN

# Columns that are never null.
NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class Operator(Enum):
    """Comparison operator; the values are those of `scan(filters=...)`."""

    EQUAL = "=="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    IN = "in"
    STARTS_WITH = "starts with"
    ENDS_WITH = "ends with"
    CONTAINS = "contains"
    NOT_NULL = "is not null"


COMPARED: Mapping[Operator, Callable[[Any, Any], Any]] = {
    Operator.EQUAL: operator.eq,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The filter `column operator value`, negated or not; a null in the column never passes."""

    column: str
    operator: Operator
    value: object = None
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """The conjunction of all taken comparisons. `limits` is exact; `keys` None allows any key."""

    limits: RowLimits = field(default_factory=RowLimits)
    partitions: tuple[Comparison, ...] = ()
    keys: frozenset[bytes] | None = None

    def wants(self, partition: TopicPartition) -> bool:
        """Returns whether any row of the partition can pass."""
        values: dict[str, str | int] = {"topic": partition.topic, "partition": partition.partition}
        return all(_holds(test, values[test.column]) for test in self.partitions)


def taken(predicate: Predicate, one: Comparison) -> Predicate | None:
    """`predicate` with this comparison added; None if it cannot evaluate it completely."""
    value = one.value
    if one.column in ("topic", "partition") and _is_partition_test(one):
        return replace(predicate, partitions=(*predicate.partitions, one))
    if one.negated:
        return None
    match one.column, one.operator:
        case column, Operator.NOT_NULL if column in NEVER_NULL:
            return predicate
        case "offset", operator if _is_number(value):
            return _with_offsets(predicate, operator, value)
        case "timestamp", operator:
            return _with_times(predicate, operator, value)
        case "key", Operator.EQUAL if isinstance(value, bytes | bytearray):
            return _with_keys(predicate, frozenset([bytes(value)]))
        case "key", Operator.IN if isinstance(value, Sequence):
            # A null in the list matches nothing, as in SQL.
            keys = [key for key in value if key is not None]
            if all(isinstance(key, bytes | bytearray) for key in keys):
                return _with_keys(predicate, frozenset(bytes(key) for key in keys))
    return None


# --- ranges -----------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return type(value) is int


def _with_offsets(predicate: Predicate, operator: Operator, value: object) -> Predicate | None:
    assert isinstance(value, int), value
    match operator:
        case Operator.EQUAL:
            start, end = value, value + 1
        case Operator.GREATER:
            start, end = value + 1, INT64_MAX
        case Operator.GREATER_OR_EQUAL:
            start, end = value, INT64_MAX
        case Operator.LESS:
            start, end = INT64_MIN, value
        case Operator.LESS_OR_EQUAL:
            start, end = INT64_MIN, value + 1
        case _:
            return None
    limits = predicate.limits
    return replace(
        predicate,
        limits=replace(
            limits,
            start_offset=min(max(limits.start_offset, start), INT64_MAX),
            end_offset=min(limits.end_offset, end),
        ),
    )


def _with_times(predicate: Predicate, operator: Operator, value: object) -> Predicate | None:
    # A time without a zone has another type than the column, and another meaning.
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        return None
    microseconds = (value - _EPOCH) // _MICROSECOND
    from_ms = -(-microseconds // 1000)  # the first millisecond at or after the time
    behind_ms = microseconds // 1000 + 1  # the first one after it
    match operator:
        case Operator.EQUAL:
            start, last = from_ms, behind_ms - 1
        case Operator.GREATER:
            start, last = behind_ms, INT64_MAX
        case Operator.GREATER_OR_EQUAL:
            start, last = from_ms, INT64_MAX
        case Operator.LESS:
            start, last = INT64_MIN, from_ms - 1
        case Operator.LESS_OR_EQUAL:
            start, last = INT64_MIN, behind_ms - 1
        case _:
            return None
    limits = predicate.limits
    return replace(
        predicate,
        limits=replace(
            limits,
            start_timestamp_ms=max(limits.start_timestamp_ms, start),
            last_timestamp_ms=min(limits.last_timestamp_ms, last),
        ),
    )


def _with_keys(predicate: Predicate, keys: frozenset[bytes]) -> Predicate:
    return replace(predicate, keys=keys if predicate.keys is None else predicate.keys & keys)


# --- tests of a partition ---------------------------------------------------------------------

_TEXTS: dict[Operator, Callable[[str, str], bool]] = {
    Operator.STARTS_WITH: str.startswith,
    Operator.ENDS_WITH: str.endswith,
    Operator.CONTAINS: str.__contains__,
}


def _is_partition_test(one: Comparison) -> bool:
    kind = str if one.column == "topic" else int
    match one.operator:
        case Operator.IN:
            return isinstance(one.value, list | tuple) and all(
                type(value) is kind for value in one.value
            )
        case Operator.EQUAL:
            return type(one.value) is kind
        case operator:
            return type(one.value) is kind and operator in (_TEXTS if kind is str else COMPARED)


def _holds(test: Comparison, value: str | int) -> bool:
    wanted = test.value
    match test.operator:
        case Operator.EQUAL:
            holds = value == wanted
        case Operator.IN:
            assert isinstance(wanted, list | tuple), test
            holds = value in wanted
        case operator if isinstance(value, str):
            assert isinstance(wanted, str), test
            holds = _TEXTS[operator](value, wanted)
        case operator:
            assert isinstance(wanted, int), test
            holds = COMPARED[operator](value, wanted)
    return holds != test.negated
