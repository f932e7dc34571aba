"""Frames come out whole and in order, however the bytes come."""

from __future__ import annotations

import random
import struct

import pytest

from strandline.broker.peers.stream import BUFFER_BYTES, FrameStream

SIZES = (0, 1, 3, 4, 5, 100, BUFFER_BYTES - 4, BUFFER_BYTES, 3 * BUFFER_BYTES, 7, 0, 2)


def _receive(stream: FrameStream, content: bytes, piece_bytes: int) -> None:
    """As a transport does: at most as much as there is space for."""
    while content:
        space = stream.get_buffer(-1)
        assert len(space), "a transport takes no bytes for the end"
        piece = content[: min(piece_bytes, len(space))]
        space[: len(piece)] = piece
        stream.buffer_updated(len(piece))
        content = content[len(piece) :]


@pytest.mark.parametrize("piece_bytes", [1, 2, 5, 4096, 10**6])
def test_frames_are_whole_and_in_order_however_their_bytes_come(piece_bytes: int) -> None:
    rng = random.Random(3)
    sent = [rng.randbytes(size) for size in SIZES]
    received: list[memoryview] = []
    stream = FrameStream(received.append, lambda _: None)
    _receive(stream, b"".join(struct.pack(">i", len(one)) + one for one in sent), piece_bytes)
    # Each has memory of its own: later ones leave it as it is.
    assert [bytes(one) for one in received] == sent
