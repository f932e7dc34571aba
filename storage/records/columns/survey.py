"""Headers and time bounds of a segment's batches at compiled speed, and their keys into a filter.

    segment --survey kernel, ROWS_MAX batches a call--> (header, position, bounds)

What the kernel does not read (old messages, impossible headers, a partial batch) is left to the
caller: the walk ends there. Imports numba when it is first used; see `vectorised`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from strandline.storage.model import Buffer
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.columns import vectorised
from strandline.storage.records.columns.key_filter import KeyFilterBuilder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# 140 KB of rows, and as many batches between two looks at how full the filter is.
ROWS_MAX = 1024


class SurveyedBatch(NamedTuple):
    """`min_ms` and `max_ms` are of the records; only if `is_read`."""

    header: BatchHeader
    position: int
    is_read: bool
    is_compressed: bool
    min_ms: int
    max_ms: int


def survey(buffer: Buffer, position: int, keys: KeyFilterBuilder) -> Iterator[SurveyedBatch]:
    """The batches from `position` up to the first that the kernel leaves alone.

    CRCs are the caller's. The keys of compressed batches are not looked at.
    """
    import numpy as np

    from strandline.storage.records.kernels import survey as kernels
    from strandline.storage.records.kernels.key_filter import CASTAGNOLI, IEEE, KEYS_LOST

    view = vectorised.as_array(buffer)
    rows = np.empty((ROWS_MAX, kernels.ROW_FIELDS), np.int64)
    nothing: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
    count = ROWS_MAX
    while count == ROWS_MAX:
        wanted = keys.is_complete
        words = keys.words if wanted else nothing
        count, position, added = kernels.survey(
            view, position, rows, CASTAGNOLI, IEEE, words, 0 if wanted else KEYS_LOST
        )
        if wanted and added == KEYS_LOST:
            keys.give_up()
        elif wanted:
            keys.count(added)
        for row in rows[:count].tolist():
            outcome = row[kernels.OUTCOME]
            yield SurveyedBatch(
                BatchHeader(*row[: kernels.HEADER_FIELDS]),
                row[kernels.POSITION],
                outcome == kernels.READ,
                outcome == kernels.COMPRESSED,
                row[kernels.MIN_MS],
                row[kernels.MAX_MS],
            )
