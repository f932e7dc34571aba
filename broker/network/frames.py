"""Framing without I/O: bytes in, request frames out.

    frame = length i32 | length bytes

One buffer per connection is filled by `recv_into` and handed out as views, so a frame is never
copied. A view is valid until the next `free_space()`: the connection answers a request before it
reads on.

A receive that fills the buffer shows that more is waiting: the buffer grows up to BUSY_BYTES_MAX,
so that many frames of a pipelining client are received, handled and answered per system call.

The buffer grows with what has *arrived*, not with what a length field announces: a client that
announces 100 MiB and sends ten bytes costs the smallest buffer. It stays as large as the frames
received, up to RETAINED_BYTES_MAX, and `shrink` frees it when the connection is idle.

What exceeds INITIAL_BYTES is taken from a pool (`buffer_pool.py`). If it is bounded, a buffer above
INITIAL_BYTES is that of one frame: it has its size, and is freed once the frame is answered. No
buffer is larger than the largest frame that is allowed.
"""

from __future__ import annotations

import struct

from strandline.broker.network.buffer_pool import BufferPool

_LENGTH = struct.Struct(">i")

# Holds a few small requests; the memory of an idle connection.
INITIAL_BYTES = 16 * 1024
# The most that one receive takes from a client that keeps its socket full.
BUSY_BYTES_MAX = 1024 * 1024
# Two frames of the usual largest batch (1 MiB) with room to spare; a larger buffer is freed after
# its frame.
RETAINED_BYTES_MAX = 4 * 1024 * 1024


class FrameError(Exception):
    """A length that no correct client sends; the connection must be closed."""


class FrameBuffer:
    """The buffer of received bytes that are not consumed yet."""

    __slots__ = (
        "_buffer",
        "_end",
        "_frame_bytes_max",
        "_granted_bytes",
        "_is_short",
        "_pool",
        "_start",
        "_view",
        "missing_bytes",
    )

    def __init__(self, frame_bytes_max: int, pool: BufferPool) -> None:
        """`frame_bytes_max` is `socket.request.max.bytes`, or less before a login."""
        self._frame_bytes_max = frame_bytes_max
        self._pool = pool
        # Taken from the pool: the buffer may grow to so much more than INITIAL_BYTES.
        self._granted_bytes = 0
        # What `free_space` lacked.
        self.missing_bytes = 0
        self._buffer = bytearray(self._smallest_bytes)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        # The last receive filled the buffer.
        self._is_short = False

    @property
    def pending_bytes(self) -> int:
        """Bytes received that are not yet consumed."""
        return self._end - self._start

    @property
    def capacity_bytes(self) -> int:
        return len(self._buffer)

    @property
    def pool(self) -> BufferPool:
        return self._pool

    @property
    def _largest_bytes(self) -> int:
        return _LENGTH.size + self._frame_bytes_max

    @property
    def _smallest_bytes(self) -> int:
        return min(INITIAL_BYTES, self._largest_bytes)

    def allow(self, frame_bytes_max: int, pool: BufferPool) -> None:
        """Sets another limit and pool from now on."""
        pool.take_anyway(self._granted_bytes)
        self._pool.give_back(self._granted_bytes)
        self._frame_bytes_max, self._pool = frame_bytes_max, pool

    def free_space(self) -> memoryview | None:
        """Returns the space to receive into; never empty. Invalidates frames returned before.

        None: the pool has not the `missing_bytes` that the frame needs.
        """
        is_bounded = self._pool.is_bounded
        if self._is_short and len(self._buffer) < BUSY_BYTES_MAX and not is_bounded:
            self._reallocate(min(4 * len(self._buffer), BUSY_BYTES_MAX, self._largest_bytes))
        self._is_short = False
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > (INITIAL_BYTES if is_bounded else RETAINED_BYTES_MAX):
                self._reallocate(self._smallest_bytes)
        is_at_end = self._end == len(self._buffer) or self._start > len(self._buffer) // 2
        if is_at_end and not self._make_room():
            return None
        return self._view[self._end :]

    def granted(self) -> None:
        """The pool has granted the missing bytes."""
        self._granted_bytes += self.missing_bytes

    def received(self, byte_count: int) -> None:
        self._end += byte_count
        self._is_short = self._end == len(self._buffer)

    def next_frame(self) -> memoryview | None:
        """Returns the next complete frame without its length, or None if bytes are missing.

        Raises FrameError for a negative length or one above the limit.
        """
        available = self._end - self._start
        if available < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if not 0 <= length <= self._frame_bytes_max:
            raise FrameError(
                f"frame length {length} is outside 0..{self._frame_bytes_max} "
                "(socket.request.max.bytes; sasl.server.max.receive.size before a login)"
            )
        if available < _LENGTH.size + length:
            return None
        begin = self._start + _LENGTH.size
        self._start = begin + length
        return self._view[begin : self._start]

    def next_may_begin_with(self, begin: bytes) -> bool:
        """Returns whether the next frame begins so, as far as it has come."""
        content = self._start + _LENGTH.size
        return begin.startswith(self._buffer[content : min(content + len(begin), self._end)])

    def release(self) -> None:
        """Gives back what the last frame took from a bounded pool: it was answered."""
        if self._pool.is_bounded:
            self.shrink()

    def shrink(self) -> None:
        """Frees a large buffer if it is empty. Frames returned before stay valid."""
        if self._start == self._end and len(self._buffer) > INITIAL_BYTES:
            self._reallocate(self._smallest_bytes)

    def close(self) -> None:
        """Frees the buffer; frames returned before stay valid."""
        self._pool.give_back(self._granted_bytes)
        self._granted_bytes = self._start = self._end = 0
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)

    def _make_room(self) -> bool:
        """Moves the rest to the front, and grows if the next frame does not fit.

        Returns False if the pool has not the memory for it.
        """
        pending = self._end - self._start
        wanted = len(self._buffer)
        if pending >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, self._start)
            frame_bytes = _LENGTH.size + max(0, min(length, self._frame_bytes_max))
            if frame_bytes > len(self._buffer) or pending == len(self._buffer):
                # Doubling what has arrived bounds the cost of an announced length; twice the frame
                # lets the next one follow without moving bytes.
                generous = min(2 * frame_bytes, max(frame_bytes, RETAINED_BYTES_MAX))
                if self._pool.is_bounded:
                    generous = frame_bytes
                generous = min(generous, self._largest_bytes)
                if not self._is_granted(generous):
                    return False
                wanted = max(len(self._buffer), min(generous, 4 * max(pending, INITIAL_BYTES)))
        if wanted > len(self._buffer):
            self._reallocate(wanted)
        elif self._start:
            self._view[:pending] = self._view[self._start : self._end]
            self._start, self._end = 0, pending
        return True

    def _is_granted(self, capacity_bytes: int) -> bool:
        """Returns whether the buffer may grow to `capacity_bytes`; takes them from the pool."""
        self.missing_bytes = capacity_bytes - INITIAL_BYTES - self._granted_bytes
        if self.missing_bytes <= 0:
            return True
        if not self._pool.take(self.missing_bytes):
            return False
        self.granted()
        return True

    def _reallocate(self, capacity_bytes: int) -> None:
        """Allocates a buffer with the pending bytes at its front; old views stay valid."""
        is_smaller = capacity_bytes < len(self._buffer)
        pending = self._view[self._start : self._end]
        buffer = bytearray(capacity_bytes)
        buffer[: len(pending)] = pending
        self._start, self._end = 0, len(pending)
        self._buffer = buffer
        self._view = memoryview(buffer)
        spare_bytes = self._granted_bytes - max(0, capacity_bytes - INITIAL_BYTES)
        if is_smaller and spare_bytes > 0:
            self._granted_bytes -= spare_bytes
            self._pool.give_back(spare_bytes)
