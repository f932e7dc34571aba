"""Sends the parts of an answer to a socket: buffers together, files by `sendfile`.

Each call sends from the head of the parts, removes the bytes that the socket took, and returns how
many bytes were offered and taken. A file that cannot be read is a DiskError; any other OSError is
the socket's.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque

from strandline.broker.protocol.schema.schema import Part
from strandline.storage.errors import DiskError
from strandline.storage.files import FileRange
from strandline.storage.model import Buffer

# sendmsg takes at most IOV_MAX (1024) buffers.
SEND_BUFFERS_MAX = 512
# Excess over a turn, so that the end of an answer needs no turn of its own.
SLACK_BYTES = 64 * 1024
# Below this, joining buffers is cheaper than a vectored write, and reading a file cheaper than
# `sendfile`.
JOIN_BYTES_MAX = 16 * 1024
# Errors of `sendfile` that the file causes: sockets never have these.
_FAULTS_OF_FILES = frozenset(
    {errno.EIO, errno.ENXIO, errno.ENODATA, errno.EBADMSG, errno.ESTALE, errno.EUCLEAN}
)
# In place of (bytes offered, bytes sent): the turn is over, the socket was not called.
NO_TURN_LEFT = (1, 0)


def send_bytes(connected: socket.socket, outgoing: deque[Part], bytes_max: int) -> tuple[int, int]:
    """Sends the run of buffers at the head; returns the bytes offered and taken.

    Raises DiskError, OSError.
    """
    run: list[Buffer] = []
    run_bytes = 0
    file_follows = False
    for part in outgoing:
        if isinstance(part, bytes | bytearray | memoryview):
            content: Buffer = part
        elif isinstance(part, FileRange) and part.length <= JOIN_BYTES_MAX:
            content = _read(part)
        else:
            file_follows = True
            break
        run.append(content)
        run_bytes += len(content)
        if run_bytes > bytes_max or len(run) == SEND_BUFFERS_MAX:
            break
    offered = run
    if run_bytes > bytes_max:
        run_bytes = bytes_max - SLACK_BYTES
        if run_bytes <= 0:
            return NO_TURN_LEFT
        offered = _first_bytes(run, run_bytes)
    flags = socket.MSG_MORE if file_follows else 0
    if len(offered) == 1:
        sent = connected.send(offered[0], flags)
    elif run_bytes <= JOIN_BYTES_MAX:
        sent = connected.send(b"".join(offered), flags)
    else:
        sent = connected.sendmsg(offered, (), flags)
    _drop_sent(outgoing, run, sent)
    return run_bytes, sent


def _drop_sent(outgoing: deque[Part], run: list[Buffer], sent: int) -> None:
    for part in run:
        size = len(part)
        if sent < size:
            outgoing[0] = memoryview(part)[sent:]
            return
        sent -= size
        outgoing.popleft()


def send_file(
    connected: socket.socket, outgoing: deque[Part], part: FileRange, bytes_max: int
) -> tuple[int, int]:
    """Sends from a file; returns the bytes offered and taken. Raises DiskError, OSError."""
    asked = part.length if part.length <= bytes_max else bytes_max - SLACK_BYTES
    if asked <= 0:
        return NO_TURN_LEFT
    try:
        sent = os.sendfile(connected.fileno(), part.file.fileno(), part.position, asked)
    except OSError as error:
        if error.errno in _FAULTS_OF_FILES:
            raise DiskError(f"cannot read {part.file.path}: {error.strerror}") from error
        raise
    if sent == 0:
        raise _too_short(part)
    if sent == part.length:
        outgoing.popleft()
    else:
        outgoing[0] = FileRange(part.file, part.position + sent, part.length - sent)
    return asked, sent


def _read(part: FileRange) -> bytes:
    """Reads the range that `sendfile` would send. Raises DiskError."""
    content = part.read()
    if len(content) != part.length:
        raise _too_short(part)
    return content


def _too_short(part: FileRange) -> DiskError:
    return DiskError(f"{part.file.path} ends before {part.position + part.length}")


def _first_bytes(run: list[Buffer], byte_count: int) -> list[Buffer]:
    """Returns the first `byte_count` bytes of a longer run."""
    found: list[Buffer] = []
    for part in run:
        if len(part) >= byte_count:
            found.append(memoryview(part)[:byte_count])
            break
        found.append(part)
        byte_count -= len(part)
    return found
