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
"""

from __future__ import annotations

import struct

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

    __slots__ = ("_buffer", "_end", "_is_short", "_start", "_view", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        """`frame_bytes_max` is `socket.request.max.bytes`."""
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray(INITIAL_BYTES)
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

    def free_space(self) -> memoryview:
        """Returns the space to receive into; never empty. Invalidates frames returned before."""
        if self._is_short and len(self._buffer) < BUSY_BYTES_MAX:
            self._reallocate(min(4 * len(self._buffer), BUSY_BYTES_MAX))
        self._is_short = False
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > RETAINED_BYTES_MAX:
                self._reallocate(INITIAL_BYTES)
        if self._end == len(self._buffer) or self._start > len(self._buffer) // 2:
            self._make_room()
        return self._view[self._end :]

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
        if not 0 <= length <= self.frame_bytes_max:
            raise FrameError(
                f"frame length {length} is outside 0..{self.frame_bytes_max} "
                "(socket.request.max.bytes)"
            )
        if available < _LENGTH.size + length:
            return None
        begin = self._start + _LENGTH.size
        self._start = begin + length
        return self._view[begin : self._start]

    def shrink(self) -> None:
        """Frees a large buffer if it is empty."""
        if self._start == self._end and len(self._buffer) > INITIAL_BYTES:
            self._reallocate(INITIAL_BYTES)

    def _make_room(self) -> None:
        """Moves the rest to the front, and grows if the next frame does not fit."""
        pending = self._end - self._start
        wanted = len(self._buffer)
        if pending >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, self._start)
            frame_bytes = _LENGTH.size + max(0, min(length, self.frame_bytes_max))
            if frame_bytes > len(self._buffer) or pending == len(self._buffer):
                # Doubling what has arrived bounds the cost of an announced length; twice the frame
                # lets the next one follow without moving bytes.
                generous = min(2 * frame_bytes, max(frame_bytes, RETAINED_BYTES_MAX))
                wanted = max(len(self._buffer), min(generous, 4 * max(pending, INITIAL_BYTES)))
        if wanted > len(self._buffer):
            self._reallocate(wanted)
        elif self._start:
            self._view[:pending] = self._view[self._start : self._end]
            self._start, self._end = 0, pending

    def _reallocate(self, capacity_bytes: int) -> None:
        """Allocates a buffer with the pending bytes at its front; old views stay valid."""
        pending = self._view[self._start : self._end]
        buffer = bytearray(capacity_bytes)
        buffer[: len(pending)] = pending
        self._start, self._end = 0, len(pending)
        self._buffer = buffer
        self._view = memoryview(buffer)
