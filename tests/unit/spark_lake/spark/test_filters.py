"""Pushed filters: what is taken is exact, everything else stays with Spark."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from strandline.spark_lake.spark.filters import push_down
from strandline.storage.model import TopicPartition
from strandline.storage.records.columns.columns import RowLimits
from strandline.storage.records.columns.vectorised import INT64_MAX

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
COMPARISONS = {
    EqualTo: lambda left, right: left == right,
    EqualNullSafe: lambda left, right: left == right,
    GreaterThan: lambda left, right: left > right,
    GreaterThanOrEqual: lambda left, right: left >= right,
    LessThan: lambda left, right: left < right,
    LessThanOrEqual: lambda left, right: left <= right,
}


def limits_of(*filters: Filter) -> RowLimits:
    pushdown = push_down(filters)
    assert pushdown.left == ()
    return pushdown.pushed.limits


@given(st.sampled_from(list(COMPARISONS)), st.integers(0, 40), st.integers(0, 40))
def test_offset_filters_keep_exactly_their_rows(
    kind: type[Filter], value: int, offset: int
) -> None:
    limits = limits_of(kind(("offset",), value))  # type: ignore[call-arg]
    kept = limits.start_offset <= offset < limits.end_offset
    assert kept == COMPARISONS[kind](offset, value)


@given(st.sampled_from(list(COMPARISONS)), st.integers(-4000, 4000), st.integers(-5, 5))
def test_timestamp_filters_keep_exactly_their_rows(
    kind: type[Filter], microseconds: int, row_ms: int
) -> None:
    value = EPOCH + dt.timedelta(microseconds=microseconds)
    limits = limits_of(kind(("timestamp",), value))  # type: ignore[call-arg]
    kept = limits.start_timestamp_ms <= row_ms <= limits.last_timestamp_ms
    assert kept == COMPARISONS[kind](row_ms * 1000, microseconds)


def test_several_filters_narrow_each_other() -> None:
    limits = limits_of(
        GreaterThan(("offset",), 10),
        LessThanOrEqual(("offset",), 90),
        GreaterThanOrEqual(("offset",), 5),
        IsNotNull(("offset",)),
    )
    assert (limits.start_offset, limits.end_offset) == (11, 91)


def test_the_largest_offset_does_not_overflow() -> None:
    limits = limits_of(GreaterThan(("offset",), INT64_MAX))
    assert limits.start_offset == INT64_MAX
    assert limits_of(EqualTo(("offset",), INT64_MAX)).end_offset == INT64_MAX


@pytest.mark.parametrize(
    ("test", "wanted"),
    [
        (EqualTo(("topic",), "orders"), ["orders-0", "orders-1"]),
        (In(("topic",), ("carts", "x")), ["carts-0"]),
        (StringStartsWith(("topic",), "or"), ["orders-0", "orders-1"]),
        (StringEndsWith(("topic",), "ts"), ["carts-0"]),
        (StringContains(("topic",), "rder"), ["orders-0", "orders-1"]),
        (EqualNullSafe(("partition",), 1), ["orders-1"]),
        (In(("partition",), (0, 7)), ["orders-0", "carts-0"]),
        (GreaterThan(("partition",), 0), ["orders-1"]),
        (GreaterThanOrEqual(("partition",), 1), ["orders-1"]),
        (LessThan(("partition",), 1), ["orders-0", "carts-0"]),
        (LessThanOrEqual(("partition",), 0), ["orders-0", "carts-0"]),
        (Not(EqualTo(("topic",), "orders")), ["carts-0"]),
        (Not(In(("partition",), (0,))), ["orders-1"]),
    ],
)
def test_partitions_are_chosen_by_topic_and_number(test: Filter, wanted: list[str]) -> None:
    pushdown = push_down([test])
    assert pushdown.left == ()
    partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    partitions.append(TopicPartition("carts", 0))
    assert [str(one) for one in partitions if pushdown.pushed.wants(one)] == wanted


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("key",), "k"),
        Not(EqualTo(("key",), b"k")),
        IsNotNull(("key",)),
        IsNull(("offset",)),
        In(("offset",), (1, 2)),
        Not(EqualTo(("offset",), 3)),
        EqualTo(("offset",), None),
        EqualTo(("topic",), None),
        In(("topic",), ("a", None)),
        In(("partition",), (1, None)),
        Not(In(("partition",), (None,))),
        EqualTo(("timestampType",), 1),
        GreaterThan(("timestamp",), None),
        GreaterThan(("timestamp",), dt.datetime(2024, 1, 1)),
        EqualTo(("headers", "key"), "a"),
    ],
)
def test_what_is_not_understood_completely_stays_with_spark(one: Filter) -> None:
    pushdown = push_down([GreaterThan(("offset",), 4), one])
    assert pushdown.left == (one,)
    assert pushdown.left[0] is one
    assert pushdown.pushed.limits == RowLimits(start_offset=5)
    assert pushdown.pushed.partitions == ()
    assert pushdown.pushed.keys is None
