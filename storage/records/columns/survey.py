"""Computes the time bounds of many batches, and adds their keys to a filter, at compiled speed.

    positions of each batch's records --survey kernel, one call--> time bounds of each

Imports numba when it is first used; see `vectorised`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from strandline.storage.model import Buffer
from strandline.storage.records.columns import vectorised
from strandline.storage.records.columns.key_filter import KeyFilterBuilder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class SurveyedRecords(NamedTuple):
    """Decompressed records [start, end) in a buffer; the fields are those of the kernel's table."""

    start: int
    end: int
    base_timestamp_ms: int
    record_count: int


def survey(
    buffer: Buffer, batches: Sequence[SurveyedRecords], keys: KeyFilterBuilder
) -> list[tuple[int, int] | None]:
    """Smallest and largest timestamp of each batch's records; None if they cannot be read.

    Reads only lengths, timestamps and keys, so that odd contents never keep a segment from
    being archived. The keys go to `keys`, which gives up if some cannot be found.
    """
    if not batches:
        return []
    import numpy as np

    from strandline.storage.records.kernels import survey as kernels
    from strandline.storage.records.kernels.key_filter import CASTAGNOLI, IEEE, KEYS_LOST

    wanted = keys.is_complete
    nothing: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
    found = np.empty((len(batches), kernels.FOUND_FIELDS), np.int64)
    added = kernels.survey(
        vectorised.as_array(buffer),
        np.array(batches, np.int64),
        found,
        CASTAGNOLI,
        IEEE,
        keys.words if wanted else nothing,
        0 if wanted else KEYS_LOST,
    )
    if wanted and added == KEYS_LOST:
        keys.abandon()
    elif wanted:
        keys.count(added)
    return [
        (smallest, largest) if is_readable else None
        for is_readable, smallest, largest in found.tolist()
    ]
