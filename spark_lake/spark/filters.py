"""Conversion of Spark's pushed filters to the comparisons of `predicate`.

Filters that the predicate evaluates completely are taken from Spark; Spark evaluates all others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strandline.spark_lake.plan.predicate import Comparison, Operator, Predicate, taken

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

# By the names of Spark's classes, which PySpark 4.0 does not have yet.
_OPERATORS = {
    "EqualTo": Operator.EQUAL,
    # With a value that is not null (`taken` refuses null) both mean the same to a filter.
    "EqualNullSafe": Operator.EQUAL,
    "GreaterThan": Operator.GREATER,
    "GreaterThanOrEqual": Operator.GREATER_OR_EQUAL,
    "In": Operator.IN,
    "IsNotNull": Operator.NOT_NULL,
    "LessThan": Operator.LESS,
    "LessThanOrEqual": Operator.LESS_OR_EQUAL,
    "StringContains": Operator.CONTAINS,
    "StringEndsWith": Operator.ENDS_WITH,
    "StringStartsWith": Operator.STARTS_WITH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushdown:
    """The taken filters as a predicate, and those that Spark still evaluates."""

    pushed: Predicate
    left: tuple[Filter, ...]


def push_down(filters: Sequence[Filter], *, left_to_spark: Collection[str] = ()) -> Pushdown:
    """Splits filters joined by "and"; leaves those of `left_to_spark` columns to Spark."""
    pushed = Predicate()
    left: list[Filter] = []
    for one in filters:
        comparison = comparison_of(one)
        is_left = comparison is None or comparison.column in left_to_spark
        more = None if comparison is None or is_left else taken(pushed, comparison)
        if more is None:
            left.append(one)
        else:
            pushed = more
    return Pushdown(pushed=pushed, left=tuple(left))


def comparison_of(one: Filter) -> Comparison | None:
    """The comparison of a filter; None if it has none, or is about a field inside a column."""
    child: Filter | None = getattr(one, "child", None)
    if child is not None:  # of a Not
        inside = comparison_of(child)
        return None if inside is None else replace(inside, negated=not inside.negated)
    operator = _OPERATORS.get(type(one).__name__)
    attribute: Sequence[str] = getattr(one, "attribute", ())
    if operator is None or len(attribute) != 1:
        return None
    return Comparison(attribute[0], operator, getattr(one, "value", None))
