"""Shared parts of the compiled loops: how they are compiled, memcpy, varints of Kafka and Avro.

This module imports numba (0.3 s) at its top, and so only modules of compiled loops import it. Each
of those is imported when it is first needed.

numba keeps machine code per file and recompiles when that file has changed: after a change of
this one, remove the `*.nbi` beside the files that use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., object])
Bytes: TypeAlias = npt.NDArray[np.uint8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]

_VARINT_LAST_SHIFT = 63  # the tenth byte of a 64-bit varint holds one bit


def compiled(function: F) -> F:
    """Compiles on first use; keeps the machine code on disk where a folder can be written."""
    try:
        return cast("F", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # No writable cache folder (a read-only installation, a zip on a Spark executor): each
        # process compiles for itself, which costs seconds but changes nothing else.
        return cast("F", numba.njit(nogil=True)(function))


def inlined(function: F) -> F:
    """Compiles a part of the kernels into its callers, which makes records a third faster."""
    return cast("F", numba.njit(nogil=True, forceinline=True)(function))


# numba writes slice assignment as a loop over bytes; the C library's memcpy moves 116-byte records
# twice and 1 KiB records four times as fast, and copying is most of what decoding does. Nothing is
# checked in here: the caller has compared positions with ends. The types of numba's code generation
# are not public.
def _generate_copy(
    _typing: Any, source: Any, position: Any, length: Any, target: Any, target_position: Any
) -> Any:

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_view, from_position, size, target_view, to_position = arguments
        from_array = context.make_array(signature.args[0])(context, builder, source_view)
        to_array = context.make_array(signature.args[3])(context, builder, target_view)
        to_address = builder.gep(to_array.data, [to_position])
        from_address = builder.gep(from_array.data, [from_position])
        # llvmlite has no types.
        cgutils.raw_memcpy(builder, to_address, from_address, size, 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return numba.types.void(source, position, length, target, target_position), generate


# copy_bytes(source, position, length, target, target position)
copy_bytes = cast("Callable[[Bytes, int, int, Bytes, int], None]", intrinsic(_generate_copy))


@inlined
def read_varint(buffer: Bytes, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it; position -1 if it is cut or over 64 bits."""
    # Nearly every length and delta is one or two bytes.
    if position < end:
        low = np.int64(buffer[position])
        if low < 0x80:
            return int((low >> 1) ^ -(low & 1)), position + 1
        if position + 1 < end and buffer[position + 1] < 0x80:
            both = (low & 0x7F) | (np.int64(buffer[position + 1]) << 7)
            return int((both >> 1) ^ -(both & 1)), position + 2
    result = np.uint64(0)
    shift = 0
    while position < end:
        byte = np.uint64(buffer[position])
        position += 1
        if shift == _VARINT_LAST_SHIFT and byte > np.uint64(1):
            return 0, -1
        result |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(0x80):
            half = np.int64(result >> np.uint64(1))
            return int(half ^ -np.int64(result & np.uint64(1))), position
        shift += 7
    return 0, -1


# Error codes of a record; 0 is none.
DONE = 0
BAD_VARINT = 2
BAD_RECORD_LENGTH = 3
BAD_LENGTH = 4


@inlined
def step_record(buffer: Bytes, position: int, end: int) -> tuple[int, int, int, int, int]:
    """Steps over one record of [position, end).

    Its end, where its timestamp delta lies, the position behind that, where its offset delta lies,
    the timestamp delta, and the error code.
    """
    length, position = read_varint(buffer, position, end)
    if position < 0:
        return 0, 0, 0, 0, BAD_VARINT
    if length < 1 or length > end - position:
        return 0, 0, 0, 0, BAD_RECORD_LENGTH
    record_end = position + length
    timestamp_delta, after_delta = read_varint(buffer, position + 1, record_end)
    if after_delta < 0:
        return 0, 0, 0, 0, BAD_VARINT
    return record_end, position + 1, after_delta, timestamp_delta, DONE


@inlined
def skip_nullable(buffer: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Length of a field (-1 is null), where its bytes begin, and the error code."""
    length, position = read_varint(buffer, position, end)
    if position < 0:
        return 0, 0, BAD_VARINT
    if length < -1 or length > end - position:
        return 0, 0, BAD_LENGTH
    return length, position, DONE


@inlined
def sum_wraps(left: int, right: int) -> bool:
    """Returns whether the sum of two numbers of 64 bits is beyond 64 bits."""
    total = left + right
    return ((left ^ total) & (right ^ total)) < 0
