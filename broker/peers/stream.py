"""Frames over one connection, as asyncio's protocol: without a task of its own.

frame = length i32 | content

A frame of which only the beginning has come gets memory of its own, and the rest is received there:
of the records that a follower fetches, only the first BUFFER_BYTES are copied.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Final

_LENGTH: Final = struct.Struct(">i")
# A node that announces more is none of a Kafka cluster; pieces of snapshots are 8 MiB.
FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
# Holds the small frames that come together.
BUFFER_BYTES: Final = 16 * 1024


class FrameStream(asyncio.BufferedProtocol):
    """Cuts what comes into frames, and hands them over; ends once, with the reason."""

    def __init__(
        self,
        on_frame: Callable[[memoryview], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._on_frame = on_frame
        self._on_end = on_end
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._buffered_bytes = 0
        # The frame that is received, and how much of it has come.
        self._frame: memoryview | None = None
        self._frame_end = 0
        self._transport: asyncio.Transport | None = None
        self._reason = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_end :]
        return self._buffer[self._buffered_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        frame = self._frame
        if frame is None:
            self._buffered_bytes += nbytes
            self._cut()
            return
        self._frame_end += nbytes
        if self._frame_end == len(frame):
            self._frame = None
            self._on_frame(frame)

    def _cut(self) -> None:
        """Hands over the frames in the buffer; what has begun behind them gets its own memory."""
        start, end = 0, self._buffered_bytes
        self._buffered_bytes = 0
        while end - start >= _LENGTH.size:
            (size_bytes,) = _LENGTH.unpack_from(self._buffer, start)
            if not 0 <= size_bytes <= FRAME_BYTES_MAX:
                self.close(f"a frame of {size_bytes} bytes is none of Kafka's protocol")
                return
            start += _LENGTH.size
            frame = memoryview(bytearray(size_bytes))
            come = self._buffer[start : min(start + size_bytes, end)]
            frame[: len(come)] = come
            if len(come) < size_bytes:
                self._frame, self._frame_end = frame, len(come)
                return
            start += size_bytes
            self._on_frame(frame)
        rest = self._buffer[start:end]
        self._buffer[: len(rest)] = rest
        self._buffered_bytes = len(rest)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_end(self._reason or (str(error) if error else "it closed the connection"))

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, parts: Sequence[bytes]) -> None:
        """Sends a frame; what does not fit into the socket waits in memory."""
        assert self._transport is not None, "the stream has ended"
        size_bytes = sum(len(part) for part in parts)
        self._transport.write(b"".join((_LENGTH.pack(size_bytes), *parts)))

    def close(self, reason: str) -> None:
        """Ends the connection at once."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()
