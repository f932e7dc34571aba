"""What the broker and its download process say to each other, in bytes.

    request   size u32 | marshal of a tuple       [its first byte carries a descriptor]
    answer    kind u8 | count u32 | payload
                  INDEX             3 * count + 1 numbers i64: base and next offsets, positions
                  REFUSED, CORRUPT  `count` bytes of text

`marshal`, because both ends are one Python on one machine, and because it is there already: a first
cold read waits for the child's imports, so this module and those it needs load little.
"""

from __future__ import annotations

import marshal
import socket
import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from strandline.storage.remote.object_store.direct_read import DirectRead
from strandline.storage.remote.segment.batch_index import BatchIndex

if TYPE_CHECKING:
    from strandline.storage.model import Offset

_SIZE = struct.Struct("=I")
_ANSWER_HEAD = struct.Struct("=BI")
_INDEX, _REFUSED, _CORRUPT = range(3)
_NUMBER_BYTES = 8
# What the child says on its first socket when it listens to the others, as a message of
# `multiprocessing.connection`: size i32, content.
READY = b"\0\0\0\1+"
# Of a `NotDone`; a word too many is no reason to lose the child.
_DETAIL_BYTES_MAX = 4096


class DownloadRequest(NamedTuple):
    """Bytes [start, start + size_bytes) of `source`, to the beginning of block number `block`.

    The first batch must begin with `base_offset`. If the block `is_new` to the child, its
    descriptor comes along. `forgotten` are the numbers of blocks that are gone. The bytes are
    received no faster than `bytes_per_s`; 0: as fast as they come.
    """

    source: DirectRead
    start: int
    size_bytes: int
    base_offset: Offset
    block: int
    block_bytes: int
    is_new: bool
    forgotten: tuple[int, ...]
    bytes_per_s: int = 0


class CheckRequest(NamedTuple):
    """Bytes [start, start + size_bytes) of the file whose descriptor comes along: are they whole?

    The first batch must begin with `base_offset`. They are read no faster than `bytes_per_s`; 0: as
    fast as it goes.
    """

    start: int
    size_bytes: int
    base_offset: Offset
    bytes_per_s: int = 0


class NotDone(NamedTuple):
    """Why there is no index of what was asked for."""

    detail: str
    is_corrupt: bool = False


Request: TypeAlias = DownloadRequest | CheckRequest
Answer: TypeAlias = BatchIndex | NotDone


def encode_request(request: Request) -> bytes:
    if isinstance(request, DownloadRequest):
        body = marshal.dumps((tuple(request.source), *request[1:]))
    else:
        body = marshal.dumps(tuple(request))
    return _SIZE.pack(len(body)) + body


def receive_request(channel: socket.socket) -> tuple[Request, int]:
    """The next request and the descriptor with it, or -1. Raises EOFError at the end."""
    head, descriptors, _, _ = socket.recv_fds(channel, _SIZE.size, 1)
    if len(head) < _SIZE.size:
        raise EOFError
    (size_bytes,) = _SIZE.unpack(head)
    body = channel.recv(size_bytes, socket.MSG_WAITALL)
    if len(body) < size_bytes:
        raise EOFError
    fields = marshal.loads(body)
    descriptor = descriptors[0] if descriptors else -1
    if len(fields) == len(CheckRequest._fields):
        return CheckRequest(*fields), descriptor
    return DownloadRequest(DirectRead(*fields[0]), *fields[1:]), descriptor


def encode_answer(answer: Answer) -> bytes:
    if isinstance(answer, NotDone):
        detail = answer.detail.encode(errors="replace")[:_DETAIL_BYTES_MAX]
        kind = _CORRUPT if answer.is_corrupt else _REFUSED
        return _ANSWER_HEAD.pack(kind, len(detail)) + detail
    head = _ANSWER_HEAD.pack(_INDEX, len(answer.base_offsets))
    return head + b"".join(numbers.tobytes() for numbers in answer)


def decode_answer(received: bytearray) -> Answer | None:
    """The answer that begins `received`; None if more of it has to come."""
    if len(received) < _ANSWER_HEAD.size:
        return None
    kind, count = _ANSWER_HEAD.unpack_from(received)
    payload_bytes = (3 * count + 1) * _NUMBER_BYTES if kind == _INDEX else count
    if len(received) < _ANSWER_HEAD.size + payload_bytes:
        return None
    with memoryview(received)[_ANSWER_HEAD.size :] as payload:
        if kind != _INDEX:
            return NotDone(str(payload[:count], errors="replace"), kind == _CORRUPT)
        found = BatchIndex(array("q"), array("q"), array("q"))
        start = 0
        for numbers, length in zip(found, (count, count, count + 1), strict=True):
            end = start + length * _NUMBER_BYTES
            numbers.frombytes(payload[start:end])
            start = end
        return found
