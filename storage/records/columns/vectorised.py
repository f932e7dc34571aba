"""Shared by `columns`, `survey` and `key_index`: loading the compiled loops, and numpy's view.

The loops are compiled by numba, which costs 0.3 s and more to import: nothing is imported before
the first call.
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes: TypeAlias = npt.NDArray[np.uint8]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


def available() -> bool:
    """Whether numba and numpy are installed; without numba all is slower."""
    return bool(importlib.util.find_spec("numba") and importlib.util.find_spec("numpy"))


@functools.cache
def load_kernels() -> ModuleType:
    """Returns the compiled loops: imports numba."""
    from strandline.storage.records.kernels import batches as kernels

    return kernels


def as_array(buffer: Buffer) -> Bytes:
    """Returns the same memory as numpy sees it."""
    import numpy as np

    # Always read-only: numba would compile every kernel once more for writable input.
    view = np.frombuffer(buffer, np.uint8)
    view.flags.writeable = False
    return view


def corrupt_record(status: int, base_offset: int, record: int) -> CorruptRecords:
    """Returns the error for the kernel's error code in a record of the batch at `base_offset`."""
    from strandline.storage.records.kernels import parts

    kernels = load_kernels()
    if status == kernels.SPARE_BATCH_BYTES:
        return CorruptRecords(f"batch at offset {base_offset} has bytes behind its last record")
    reason = {
        parts.BAD_VARINT: "ends inside a varint, or has one of more than 64 bits",
        parts.BAD_RECORD_LENGTH: "has a length that exceeds its batch",
        parts.BAD_LENGTH: "has a key, value or header longer than itself",
        kernels.BAD_HEADER_COUNT: "has an impossible header count",
        kernels.SPARE_RECORD_BYTES: "has spare bytes",
        kernels.BAD_OFFSET: "has an offset delta outside its batch, or not above the one before",
        kernels.BAD_TIMESTAMP: "has a timestamp of more than 64 bits",
    }[status]
    return CorruptRecords(f"record {record} of the batch at offset {base_offset} {reason}")
