"""The byte streams of a connection: `Transport`, and the one over a plain socket.

A connection knows nothing else of its socket, so a transport may encrypt. It may then have received
bytes although its socket is not readable, and may have to write while it reads: it tells readiness
in its own words, and watches the socket itself.

Plain, buffers are sent together and files by `sendfile`. The few bytes between and behind files
would be packets of their own and wake the client: TCP_CORK holds the last packet back until all
data of this turn is written. A range of a few records, as for a consumer at the end of a log, is
read instead, and sent with the rest in one call.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

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
_NO_TURN_LEFT = (1, 0)


class Transport(Protocol):
    """Both byte streams of one connection, and the readiness of each."""

    @property
    def is_full(self) -> bool:
        """Whether the last `send` ended because the transport took no more."""
        ...

    def receive_into(self, space: memoryview, /) -> int:
        """Receives at most as much as there is space for; returns how many bytes, 0 at the end.

        Raises BlockingIOError if nothing has come, OSError if the connection is broken.
        """
        ...

    def send(self, outgoing: deque[Part], bytes_max: int) -> int:
        """Sends about `bytes_max` bytes from the head of the parts; returns how many.

        Bytes are removed once the system has them: when the queue is empty, all is sent. The head
        that one call leaves is the head of the next. Raises DiskError if a file cannot be read, and
        OSError if the connection is broken; it must be closed then.
        """
        ...

    def has_ended(self) -> bool:
        """Whether the peer disconnected, as far as that shows without receiving."""
        ...

    def start_reading(self, on_readable: Callable[[], None]) -> None:
        """Calls in each turn of the loop in which `receive_into` may find something."""
        ...

    def stop_reading(self) -> None: ...

    def start_writing(self, on_writable: Callable[[], None]) -> None:
        """Calls in each turn of the loop in which `send` may take something."""
        ...

    def stop_writing(self) -> None: ...

    def close(self) -> None:
        """Ends both streams; nothing is called any more."""
        ...


class PlainTransport:
    """A connected socket, as it is."""

    __slots__ = ("_descriptor", "_loop", "_socket", "is_full", "receive_into")

    def __init__(self, connected: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Owns the socket, which must not block."""
        self._socket = connected
        self._descriptor = connected.fileno()
        self._loop = loop
        self.is_full = False
        # The socket's own: a method here would be one more call for each request.
        self.receive_into: Callable[[memoryview], int] = connected.recv_into

    def has_ended(self) -> bool:
        """As Transport; peeks. What was pipelined hides the end, until it is received."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def start_reading(self, on_readable: Callable[[], None]) -> None:
        self._loop.add_reader(self._descriptor, on_readable)

    def stop_reading(self) -> None:
        self._loop.remove_reader(self._descriptor)

    def start_writing(self, on_writable: Callable[[], None]) -> None:
        self._loop.add_writer(self._descriptor, on_writable)

    def stop_writing(self) -> None:
        self._loop.remove_writer(self._descriptor)

    def close(self) -> None:
        self.stop_reading()
        self.stop_writing()
        self._socket.close()

    # --- sending -----------------------------------------------------------------------------

    def send(self, outgoing: deque[Part], bytes_max: int) -> int:
        """As Transport."""
        left = bytes_max
        self.is_full = is_corked = False
        try:
            while outgoing:
                head = outgoing[0]
                if isinstance(head, FileRange) and head.length > JOIN_BYTES_MAX:
                    if not is_corked and len(outgoing) > 1:
                        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                        is_corked = True
                    asked_and_sent = self._send_file(outgoing, head, left)
                else:
                    asked_and_sent = self._send_bytes(outgoing, left)
                asked, sent = asked_and_sent
                left -= sent
                if sent < asked:
                    self.is_full = asked_and_sent is not _NO_TURN_LEFT
                    break
        except (BlockingIOError, InterruptedError):
            self.is_full = True
        if is_corked:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        return bytes_max - left

    def _send_bytes(self, outgoing: deque[Part], bytes_max: int) -> tuple[int, int]:
        """Sends the run of buffers at the head; returns the bytes offered and taken."""
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
                return _NO_TURN_LEFT
            offered = _first_bytes(run, run_bytes)
        flags = socket.MSG_MORE if file_follows else 0
        if len(offered) == 1:
            sent = self._socket.send(offered[0], flags)
        elif run_bytes <= JOIN_BYTES_MAX:
            sent = self._socket.send(b"".join(offered), flags)
        else:
            sent = self._socket.sendmsg(offered, (), flags)
        if offered is run and sent == run_bytes and len(run) == len(outgoing):
            outgoing.clear()
        else:
            _drop_sent(outgoing, run, sent)
        return run_bytes, sent

    def _send_file(self, outgoing: deque[Part], part: FileRange, bytes_max: int) -> tuple[int, int]:
        """Sends from a file; returns the bytes offered and taken."""
        asked = part.length if part.length <= bytes_max else bytes_max - SLACK_BYTES
        if asked <= 0:
            return _NO_TURN_LEFT
        try:
            sent = os.sendfile(self._descriptor, part.file.fileno(), part.position, asked)
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


def _drop_sent(outgoing: deque[Part], run: list[Buffer], sent: int) -> None:
    for part in run:
        size = len(part)
        if sent < size:
            outgoing[0] = memoryview(part)[sent:]
            return
        sent -= size
        outgoing.popleft()


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
