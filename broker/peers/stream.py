"""Frames over one connection, as asyncio's protocol: without a task of its own.

frame = length i32 | content
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Final

_LENGTH: Final = struct.Struct(">i")
# A node that announces more is none of a Kafka cluster; pieces of snapshots are 8 MiB.
FRAME_BYTES_MAX: Final = 100 * 1024 * 1024


class FrameStream(asyncio.Protocol):
    """Cuts what comes into frames, and hands them over; ends once, with the reason."""

    def __init__(
        self,
        on_frame: Callable[[memoryview], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._on_frame = on_frame
        self._on_end = on_end
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._reason = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= _LENGTH.size:
            (size_bytes,) = _LENGTH.unpack_from(received, 0)
            if not 0 <= size_bytes <= FRAME_BYTES_MAX:
                self.close(f"a frame of {size_bytes} bytes is none of Kafka's protocol")
                return
            end = _LENGTH.size + size_bytes
            if len(received) < end:
                return
            content = bytes(received[_LENGTH.size : end])
            del received[:end]
            self._on_frame(memoryview(content))

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
