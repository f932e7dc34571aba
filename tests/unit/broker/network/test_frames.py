"""Framing: whole frames out of any cut of the stream, and bounded memory for hostile lengths."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.broker.network.frames import (
    INITIAL_BYTES,
    RETAINED_BYTES_MAX,
    FrameBuffer,
    FrameError,
)


def receive(frames: FrameBuffer, data: bytes) -> list[bytes]:
    """Feeds `data` as a socket would and returns the frames that came out."""
    out = []
    while data:
        space = frames.free_space()
        taken = min(len(space), len(data))
        assert taken > 0
        space[:taken] = data[:taken]
        frames.received(taken)
        data = data[taken:]
        while (frame := frames.next_frame()) is not None:
            out.append(bytes(frame))
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 70_000), max_size=8),
    st.lists(st.integers(1, 30_000), min_size=1, max_size=6),
)
def test_any_cut_of_the_stream_yields_the_same_frames(sizes: list[int], cuts: list[int]) -> None:
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    stream = b"".join(struct.pack(">i", len(p)) + p for p in payloads)
    frames = FrameBuffer(1 << 20)
    out = []
    position = turn = 0
    while position < len(stream):
        cut = cuts[turn % len(cuts)]
        out += receive(frames, stream[position : position + cut])
        position += cut
        turn += 1
    assert out == payloads
    assert frames.pending_bytes == 0


@pytest.mark.parametrize("length", [-1, -(2**31), (1 << 20) + 1, 2**31 - 1])
def test_a_length_outside_the_limit_is_refused(length: int) -> None:
    frames = FrameBuffer(1 << 20)
    with pytest.raises(FrameError, match=r"socket\.request\.max\.bytes"):
        receive(frames, struct.pack(">i", length))


def test_an_announced_length_costs_no_memory_until_its_bytes_arrive() -> None:
    frames = FrameBuffer(100 << 20)
    assert receive(frames, struct.pack(">i", 100 << 20) + b"x" * 10) == []
    frames.free_space()
    assert frames.capacity_bytes <= 8 * INITIAL_BYTES


def test_a_buffer_above_the_retained_size_is_given_back_after_its_frame() -> None:
    frames = FrameBuffer(100 << 20)
    size = RETAINED_BYTES_MAX + 1
    assert receive(frames, struct.pack(">i", size) + bytes(size)) == [bytes(size)]
    frames.free_space()
    assert frames.capacity_bytes == INITIAL_BYTES


def test_an_idle_connection_shrinks_to_the_smallest_buffer() -> None:
    frames = FrameBuffer(100 << 20)
    receive(frames, struct.pack(">i", 1 << 20) + bytes(1 << 20))
    assert frames.capacity_bytes > INITIAL_BYTES
    frames.shrink()
    assert frames.capacity_bytes == INITIAL_BYTES


def test_a_zero_length_frame_is_an_empty_frame() -> None:
    assert receive(FrameBuffer(100), struct.pack(">i", 0)) == [b""]
