"""Filter of record batches by the comparisons that the decoder does not evaluate.

As in SQL, a null is equal to nothing and different from nothing: such a row is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark_lake.plan.predicate import Comparison, Operator

_FUNCTIONS = {
    Operator.EQUAL: "equal",
    Operator.GREATER: "greater",
    Operator.GREATER_OR_EQUAL: "greater_equal",
    Operator.LESS: "less",
    Operator.LESS_OR_EQUAL: "less_equal",
}
_TEXTS = {
    Operator.STARTS_WITH: "starts_with",
    Operator.ENDS_WITH: "ends_with",
    Operator.CONTAINS: "match_substring",
}


class RowFilter:
    """Filter for rows whose key is among `keys` (None: any) and that pass all `comparisons`."""

    def __init__(
        self, *, keys: Collection[bytes] | None = None, comparisons: Sequence[Comparison] = ()
    ) -> None:
        self._comparisons = list(comparisons)
        if keys is not None:
            self._comparisons.append(Comparison("key", Operator.IN, sorted(keys)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a batch needs."""
        return tuple(dict.fromkeys(one.column for one in self._comparisons))

    def apply(self, batch: Any) -> Any:
        """Returns the `pyarrow.RecordBatch` of the rows that are kept."""
        for one in self._comparisons:
            batch = batch.filter(
                _mask(batch.column(one.column), one), null_selection_behavior="drop"
            )
        return batch


def _mask(column: Any, one: Comparison) -> Any:
    if pa.types.is_integer(column.type):
        column = column.cast(pa.int64())  # the type of a filter's numbers
    if one.operator is Operator.NOT_NULL:
        mask = column.is_valid()
    elif one.operator is Operator.IN:
        assert isinstance(one.value, list | tuple), one
        values = pa.array(list(one.value), column.type)
        mask = pc.if_else(column.is_valid(), pc.is_in(column, values, skip_nulls=True), None)
    elif one.operator in _TEXTS:
        mask = pc.call_function(
            _TEXTS[one.operator], [column], pc.MatchSubstringOptions(str(one.value))
        )
    else:
        scalar = pa.scalar(one.value, column.type)
        mask = pc.call_function(_FUNCTIONS[one.operator], [column, scalar])
    return pc.invert(mask) if one.negated else mask
