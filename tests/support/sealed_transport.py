"""A transport that encrypts, as TLS does to its caller, with a cipher that hides nothing.

    record = length u16 | kind u8 | bytes XOR mask(number of the record in its stream)

What makes it hard is what TLS has: records of any size, which come in pieces or many at once; bytes
that are received and not asked for yet; a greeting before the first byte; and, at any time, a
question of the peer whose answer must be in the socket before anything more is read. `SealedStream`
is one end without I/O.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections import deque
from collections.abc import Callable
from enum import IntEnum

from strandline.broker.protocol.schema.schema import Part
from strandline.storage.errors import DiskError
from strandline.storage.files import FileRange

HEADER_BYTES = 3
RECORD_BYTES_MAX = 16 * 1024
# What one receive takes of the socket, and what one send gathers of an answer.
CIPHER_BYTES = 48 * 1024
CHUNK_BYTES = 64 * 1024


class Kind(IntEnum):
    DATA = 0
    GREETING = 1
    QUESTION = 2
    ANSWER = 3
    END = 4


def _mask(content: bytes, number: int) -> bytes:
    key = bytes((value ^ (number * 31 + 7)) & 0xFF for value in range(256))
    return content.translate(key)


class SealedStream:
    """Seals in records of random sizes, and opens what the other end sealed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sealed_count = 0
        self._opened_count = 0
        self._received = bytearray()

    def seal(self, content: bytes) -> bytes:
        records = []
        while content:
            size = self._random.choice((1, 700, 5000, RECORD_BYTES_MAX))
            records.append(self.record(Kind.DATA, content[:size]))
            content = content[size:]
        return b"".join(records)

    def record(self, kind: Kind, content: bytes = b"") -> bytes:
        masked = _mask(content, self._sealed_count)
        self._sealed_count += 1
        return len(masked).to_bytes(2, "big") + bytes([kind]) + masked

    def received(self, sealed: bytes | memoryview) -> None:
        self._received += sealed

    @property
    def has_record(self) -> bool:
        if len(self._received) < HEADER_BYTES:
            return False
        return len(self._received) >= HEADER_BYTES + int.from_bytes(self._received[:2], "big")

    def next_record(self) -> tuple[Kind, bytes]:
        """The next record; there must be one."""
        end = HEADER_BYTES + int.from_bytes(self._received[:2], "big")
        kind = Kind(self._received[2])
        content = _mask(bytes(self._received[HEADER_BYTES:end]), self._opened_count)
        self._opened_count += 1
        del self._received[:end]
        return kind, content


class SealedTransport:
    """As Transport, over a connected socket."""

    def __init__(self, connected: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = connected
        self._loop = loop
        self._stream = SealedStream(seed=1)
        self._scratch = memoryview(bytearray(CIPHER_BYTES))
        # Opened and not asked for yet.
        self._opened = bytearray()
        self._is_at_end = False
        # Bytes of the answer at the head of the queue that are sealed, and the rest of their
        # records. What the peer asked is answered behind them.
        self._chunk_bytes = 0
        self._chunk: bytes | memoryview = b""
        self._owed: bytes | memoryview = b""
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._telling: asyncio.Handle | None = None
        self._is_closed = False
        self.is_full = False

    # --- readiness ---------------------------------------------------------------------------

    def start_reading(self, on_readable: Callable[[], None]) -> None:
        self._on_readable = on_readable
        self._loop.add_reader(self._socket.fileno(), on_readable)
        self._tell_if_pending()

    def stop_reading(self) -> None:
        self._on_readable = None
        self._loop.remove_reader(self._socket.fileno())

    def start_writing(self, on_writable: Callable[[], None]) -> None:
        self._on_writable = on_writable
        self._watch_writable()

    def stop_writing(self) -> None:
        self._on_writable = None
        self._watch_writable()

    def _watch_writable(self) -> None:
        if self._on_writable is not None or self._owed:
            self._loop.add_writer(self._socket.fileno(), self._can_write)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def _can_write(self) -> None:
        if self._owed:
            try:
                self._flush()
            except OSError:
                self._owed = b""  # The reader finds out.
            self._watch_writable()
            self._tell_if_pending()
        if self._on_writable is not None:
            self._on_writable()

    @property
    def _has_pending(self) -> bool:
        may_open = not self._owed and self._stream.has_record
        return bool(self._opened) or self._is_at_end or may_open

    def _tell_if_pending(self) -> None:
        """The socket is silent about what was taken of it already."""
        if self._on_readable is not None and self._telling is None and self._has_pending:
            self._telling = self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = None
        if self._on_readable is not None and self._has_pending:
            self._on_readable()

    # --- receiving ---------------------------------------------------------------------------

    def receive_into(self, space: memoryview, /) -> int:
        if not self._has_pending:
            self._take(self._socket.recv_into(self._scratch))
        self._open(len(space))
        if not self._opened:
            self._tell_if_pending()
            if self._is_at_end:
                return 0
            raise BlockingIOError
        size = min(len(space), len(self._opened))
        space[:size] = self._opened[:size]
        del self._opened[:size]
        self._tell_if_pending()
        return size

    def has_ended(self) -> bool:
        """Looks behind what was pipelined too, up to a chunk: the end is a record."""
        try:
            while not self._is_at_end and len(self._opened) < CHUNK_BYTES:
                self._take(self._socket.recv_into(self._scratch))
                self._open(CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return self._is_at_end and not self._opened

    def _take(self, byte_count: int) -> None:
        if byte_count == 0:
            self._is_at_end = True
        self._stream.received(self._scratch[:byte_count])

    def _open(self, bytes_max: int) -> None:
        while len(self._opened) < bytes_max and not self._owed and self._stream.has_record:
            kind, content = self._stream.next_record()
            if kind is Kind.DATA:
                self._opened += content
            elif kind is Kind.END:
                self._is_at_end = True
            else:
                self._owed = self._stream.record(Kind.ANSWER)
                self._flush()
                self._watch_writable()

    # --- sending -----------------------------------------------------------------------------

    def send(self, outgoing: deque[Part], bytes_max: int) -> int:
        sent = 0
        self.is_full = False
        while outgoing:
            if not self._chunk_bytes:
                content = _gather(outgoing, min(CHUNK_BYTES, bytes_max - sent))
                self._flush()
                if self._owed:
                    self.is_full = True
                    break
                self._chunk_bytes = len(content)
                self._chunk = self._stream.seal(content)
            self._flush()
            if self._chunk:
                self.is_full = True
                break
            _drop(outgoing, self._chunk_bytes)
            sent += self._chunk_bytes
            self._chunk_bytes = 0
            if sent >= bytes_max:
                break
        self._watch_writable()
        return sent

    def _flush(self) -> None:
        """Sends what is sealed, in the order in which it was."""
        try:
            while self._chunk:
                self._chunk = memoryview(self._chunk)[self._socket.send(self._chunk) :]
            while self._owed:
                self._owed = memoryview(self._owed)[self._socket.send(self._owed) :]
        except BlockingIOError:
            pass

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        self._on_readable = self._on_writable = None
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()


def _gather(outgoing: deque[Part], bytes_max: int) -> bytes:
    """Copies the head of the parts, which stay. Raises DiskError."""
    chunk = bytearray()
    for part in outgoing:
        left = bytes_max - len(chunk)
        if left <= 0:
            break
        if isinstance(part, FileRange):
            size = min(left, part.length)
            content = os.pread(part.file.fileno(), size, part.position)
            if len(content) < size:
                raise DiskError(f"{part.file.path} ends before {part.position + size}")
            chunk += content
        else:
            chunk += memoryview(part)[:left]
    return bytes(chunk)


def _drop(outgoing: deque[Part], byte_count: int) -> None:
    while byte_count or (outgoing and _size(outgoing[0]) == 0):
        part = outgoing[0]
        size = _size(part)
        if byte_count >= size:
            outgoing.popleft()
            byte_count -= size
        else:
            if isinstance(part, FileRange):
                outgoing[0] = FileRange(
                    part.file, part.position + byte_count, part.length - byte_count
                )
            else:
                outgoing[0] = memoryview(part)[byte_count:]
            return


def _size(part: Part) -> int:
    return part.length if isinstance(part, FileRange) else len(part)
