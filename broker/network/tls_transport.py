"""TLS as the transport of a connection, by OpenSSL over memory.

    socket ── 256 KiB ──► received ── FEED_BYTES ──► incoming ── a record ──► the frame buffer
    socket ◄── sealed ── outgoing ◄── OpenSSL ◄── one chunk ◄── answers and ranges of files

One receive takes many records of the socket; OpenSSL itself would read each with two system calls.
It gets them in small pieces, because its memory of a connection stays as large as the largest one.
A part of an answer stays in the queue until the records that have it are in the socket.

What was received and does not fit into the frame buffer waits here, while the socket is silent: the
transport then tells by itself. A peer may also ask for new keys, at any time, and gets an answer;
nothing more is read until the socket has taken it, so answers cannot pile up.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from strandline.broker.protocol.schema.schema import Part
from strandline.storage.errors import DiskError
from strandline.storage.files import FileRange
from strandline.storage.model import Buffer

# What one receive takes of the socket, at most.
RECEIVED_BYTES_MAX = 256 * 1024
# At most this much is in OpenSSL's incoming memory; a record has up to 16 KiB and its frame.
FEED_BYTES = 32 * 1024
# What is sealed at once.
CHUNK_BYTES = 64 * 1024
# Records that one receive opens: a peer may send them with a byte each, or with none.
READS_MAX = 512
# Received without a byte for the broker, over and above the frames of records with data: at most
# one record that is not whole yet (16.6 KB), and some hundred requests for new keys, each of which
# costs the loop 20 us. A client that means well asks for new keys every 100 GB or so.
BARREN_BYTES_MAX = 24 * 1024
# The frame of a record: that of TLS 1.3 is always the same, and only there keys are renewed.
FRAME_BYTES_1_3 = 22
FRAME_BYTES_MAX = 384


class Scratch:
    """The buffers that all connections of a loop share: none is used beyond one call."""

    __slots__ = ("chunk", "received")

    def __init__(self) -> None:
        self.received = memoryview(bytearray(RECEIVED_BYTES_MAX))
        self.chunk = memoryview(bytearray(CHUNK_BYTES))


@dataclass(frozen=True, slots=True)
class TlsSession:
    """OpenSSL's state of one connection, and the memory at both its ends."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO

    @classmethod
    def of_server(cls, context: ssl.SSLContext) -> TlsSession:
        """Makes one whose handshake the peer begins."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        return cls(context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)


class TlsTransport:
    """A connected socket whose handshake is done."""

    __slots__ = (
        "_barren_bytes",
        "_descriptor",
        "_frame_bytes",
        "_has_more",
        "_incoming",
        "_is_at_end",
        "_is_cut_off",
        "_is_held",
        "_loop",
        "_on_readable",
        "_on_writable",
        "_opened",
        "_outgoing",
        "_received",
        "_scratch",
        "_sealed",
        "_sealed_parts_bytes",
        "_socket",
        "_telling",
        "_tls",
        "is_full",
    )

    def __init__(
        self,
        connected: socket.socket,
        loop: asyncio.AbstractEventLoop,
        session: TlsSession,
        scratch: Scratch,
    ) -> None:
        """Owns the socket, which must not block. The session may have received data already."""
        self._socket = connected
        self._descriptor = connected.fileno()
        self._loop = loop
        self._scratch = scratch
        self._tls = session.tls
        self._incoming, self._outgoing = session.incoming, session.outgoing
        # Received and not yet in `incoming`.
        self._received: memoryview | None = None
        # Opened while the broker looked for the end, and not asked for yet.
        self._opened: memoryview | None = None
        # Whether OpenSSL may have more without another byte of the socket.
        self._has_more = session.incoming.pending > 0
        self._is_at_end = False
        # Whether the socket ended, and the peer did not say so in a record.
        self._is_cut_off = False
        # Whether nothing is read because the socket does not take what the peer asked for.
        self._is_held = False
        # Given to OpenSSL, and not accounted for by data and the frames of records.
        self._barren_bytes = 0
        is_1_3 = session.tls.version() == "TLSv1.3"
        self._frame_bytes = FRAME_BYTES_1_3 if is_1_3 else FRAME_BYTES_MAX
        # Records that the socket has not taken, and how much of the queue is in records.
        self._sealed: Buffer = b""
        self._sealed_parts_bytes = 0
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._telling: asyncio.Handle | None = None
        self.is_full = False

    # --- readiness ---------------------------------------------------------------------------

    def start_reading(self, on_readable: Callable[[], None]) -> None:
        self._on_readable = on_readable
        if not self._is_held:
            self._loop.add_reader(self._descriptor, on_readable)
            self._tell_if_pending()

    def stop_reading(self) -> None:
        self._on_readable = None
        self._loop.remove_reader(self._descriptor)

    def start_writing(self, on_writable: Callable[[], None]) -> None:
        self._on_writable = on_writable
        self._loop.add_writer(self._descriptor, self._can_write)

    def stop_writing(self) -> None:
        self._on_writable = None
        if not self._owes:
            self._loop.remove_writer(self._descriptor)

    def _can_write(self) -> None:
        if self._on_writable is not None:
            self._on_writable()
            return
        try:
            is_paid = self._pay()
        except OSError:
            is_paid = True  # The reader finds out.
            self._release()
        if is_paid:
            self._loop.remove_writer(self._descriptor)

    def _hold(self) -> None:
        """Reads no more until the peer takes what it asked for."""
        self._is_held = True
        self._loop.remove_reader(self._descriptor)
        self._loop.add_writer(self._descriptor, self._can_write)

    def _release(self) -> None:
        self._is_held = False
        if self._on_readable is not None:
            self.start_reading(self._on_readable)

    @property
    def _owes(self) -> bool:
        return bool(self._sealed) or self._outgoing.pending > 0

    @property
    def _has_pending(self) -> bool:
        return self._has_more or self._is_at_end or self._opened is not None

    def _tell_if_pending(self) -> None:
        """The socket is silent about what was taken of it already."""
        if self._has_pending and self._on_readable is not None and self._telling is None:
            self._telling = self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = None
        if self._on_readable is not None and self._has_pending and not self._is_held:
            self._on_readable()

    # --- receiving ---------------------------------------------------------------------------

    def receive_into(self, space: memoryview, /) -> int:
        """As Transport."""
        opened = self._opened
        if opened is not None:
            size = min(len(opened), len(space))
            space[:size] = opened[:size]
            self._opened = opened[size:] if size < len(opened) else None
        else:
            size = self._open(space)
        if self._has_more or self._is_at_end or self._opened is not None:
            self._tell_if_pending()
        if not size and not self._is_at_end:
            raise BlockingIOError
        return size

    def has_ended(self) -> bool:
        """As Transport. A peer says that it leaves in a record, which has to be opened."""
        if self._opened is not None:
            return False
        record = memoryview(bytearray(FEED_BYTES))
        try:
            size = self._open(record)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True
        if size:
            self._opened = record[:size]
        return self._is_at_end and not size

    def _open(self, space: memoryview) -> int:
        """Opens what has come, into the space; returns how many bytes. Raises OSError."""
        if self._is_at_end:
            return 0
        if self._is_held or (self._owes and not self._pay()):
            self._hold()
            return 0
        is_fresh = not self._has_more
        if is_fresh:
            self._receive(len(space))
        try:
            size = self._read(space)
        except OSError:
            with suppress(OSError):
                self._pay()  # The alert, which tells the peer why.
            raise
        if is_fresh and self._received is not None:
            self._received = memoryview(bytes(self._received))
        if self._outgoing.pending and not self._pay():
            self._hold()
        return size

    def _receive(self, wanted_bytes: int) -> None:
        """Receives what may open to so many bytes, and somewhat more. Raises BlockingIOError."""
        received = self._scratch.received
        size = self._socket.recv_into(received, min(2 * wanted_bytes, RECEIVED_BYTES_MAX))
        if not size:
            self._is_at_end = self._is_cut_off = True
            return
        self._give(received[: min(size, FEED_BYTES)])
        if size > FEED_BYTES:
            self._received = received[FEED_BYTES:size]
        self._has_more = True

    def _give(self, piece: memoryview) -> None:
        self._barren_bytes += self._incoming.write(piece)

    def _read(self, space: memoryview) -> int:
        """Reads records until there is none, or no space."""
        got, size, reads_left = 0, len(space), READS_MAX
        read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]
        while self._has_more and got < size and reads_left:
            reads_left -= 1
            try:
                # What exceeds the space stays with OpenSSL.
                count = read(size - got, space[got:] if got else space)
            except ssl.SSLWantReadError:
                if self._barren_bytes > BARREN_BYTES_MAX:
                    raise ConnectionAbortedError(
                        errno.ECONNABORTED, "many records without data"
                    ) from None
                self._has_more = self._feed()
                continue
            if not count:
                self._is_at_end = True
                break
            got += count
            self._barren_bytes = max(0, self._barren_bytes - count - self._frame_bytes)
        return got

    def _feed(self) -> bool:
        """Gives OpenSSL the next piece of what was received; returns whether there was one."""
        received = self._received
        if received is None:
            return False
        self._give(received[:FEED_BYTES])
        self._received = received[FEED_BYTES:] if len(received) > FEED_BYTES else None
        return True

    # --- sending -----------------------------------------------------------------------------

    def send(self, outgoing: deque[Part], bytes_max: int) -> int:
        """As Transport."""
        sent = 0
        self.is_full = False
        while True:
            if (self._sealed or self._outgoing.pending) and not self._pay():
                self.is_full = True
                return sent
            if self._sealed_parts_bytes:
                _drop(outgoing, self._sealed_parts_bytes)
                sent += self._sealed_parts_bytes
                self._sealed_parts_bytes = 0
            if not outgoing or sent >= bytes_max:
                return sent
            content = self._gather(outgoing, min(bytes_max - sent, CHUNK_BYTES))
            if not content:
                outgoing.clear()  # Only empty parts are left.
                return sent
            size = self._tls.write(content)
            while size < len(content):
                size += self._tls.write(memoryview(content)[size:])
            self._sealed_parts_bytes = size

    def _pay(self) -> bool:
        """Sends what is sealed; returns whether the socket took all. Raises OSError."""
        while True:
            if not self._sealed:
                self._sealed = self._outgoing.read()
                if not self._sealed:
                    break
            try:
                count = self._socket.send(self._sealed)
            except (BlockingIOError, InterruptedError):
                return False
            if count < len(self._sealed):
                self._sealed = memoryview(self._sealed)[count:]
                return False
            self._sealed = b""
        if self._is_held:
            self._release()
        return True

    def _gather(self, outgoing: deque[Part], bytes_max: int) -> Buffer:
        """Returns the head of the parts, which stay, as one piece. Raises DiskError."""
        head = outgoing[0]
        if isinstance(head, bytes | bytearray | memoryview):
            if len(head) >= bytes_max:
                return memoryview(head)[:bytes_max]
            if len(outgoing) == 1:
                return head
        chunk, end = self._scratch.chunk, 0
        for part in outgoing:
            left = bytes_max - end
            if not left:
                break
            if isinstance(part, bytes | bytearray | memoryview):
                size = min(left, len(part))
                chunk[end : end + size] = memoryview(part)[:size]
            else:
                assert isinstance(part, FileRange), part
                size = min(left, part.length)
                _read_range(part, chunk[end : end + size])
            end += size
        return chunk[:end]

    def close(self) -> None:
        """As Transport; tells the peer, unless a record is under way to it, or it has ended the
        connection without a word itself.
        """
        if self._telling is not None:
            self._telling.cancel()
        self._on_readable = self._on_writable = None
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        if not self._sealed and not self._is_cut_off:
            with suppress(OSError, ValueError):
                self._tls.unwrap()
            with suppress(OSError):
                self._socket.send(self._outgoing.read())
        self._socket.close()


def _read_range(part: FileRange, space: memoryview) -> None:
    try:
        count = os.preadv(part.file.fileno(), [space], part.position)
    except OSError as error:
        raise DiskError(f"cannot read {part.file.path}: {error.strerror}") from error
    if count < len(space):
        raise DiskError(f"{part.file.path} ends before {part.position + part.length}")


def _drop(outgoing: deque[Part], byte_count: int) -> None:
    """Removes so many bytes from the head of the parts, and empty parts behind them."""
    while outgoing:
        part = outgoing[0]
        if isinstance(part, bytes | bytearray | memoryview):
            size = len(part)
            if size > byte_count:
                if byte_count:
                    outgoing[0] = memoryview(part)[byte_count:]
                return
        else:
            assert isinstance(part, FileRange), part
            size = part.length
            if size > byte_count:
                outgoing[0] = FileRange(part.file, part.position + byte_count, size - byte_count)
                return
        outgoing.popleft()
        byte_count -= size
