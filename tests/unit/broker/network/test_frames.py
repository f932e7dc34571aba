"""Framing: whole frames out of any cut of the stream, and bounded memory for hostile lengths."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.broker.network.buffer_pool import BufferPool
from strandline.broker.network.frames import (
    BUSY_BYTES_MAX,
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
        assert space is not None
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
    frames = FrameBuffer(1 << 20, BufferPool())
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
    frames = FrameBuffer(1 << 20, BufferPool())
    with pytest.raises(FrameError, match=r"socket\.request\.max\.bytes"):
        receive(frames, struct.pack(">i", length))


def test_an_announced_length_costs_no_memory_until_its_bytes_arrive() -> None:
    frames = FrameBuffer(100 << 20, BufferPool())
    assert receive(frames, struct.pack(">i", 100 << 20) + b"x" * 10) == []
    frames.free_space()
    assert frames.capacity_bytes <= 8 * INITIAL_BYTES


def test_a_buffer_above_the_retained_size_is_given_back_after_its_frame() -> None:
    frames = FrameBuffer(100 << 20, BufferPool())
    size = RETAINED_BYTES_MAX + 1
    assert receive(frames, struct.pack(">i", size) + bytes(size)) == [bytes(size)]
    frames.free_space()
    assert frames.capacity_bytes == INITIAL_BYTES


def test_an_idle_connection_shrinks_to_the_smallest_buffer() -> None:
    frames = FrameBuffer(100 << 20, BufferPool())
    receive(frames, struct.pack(">i", 1 << 20) + bytes(1 << 20))
    assert frames.capacity_bytes > INITIAL_BYTES
    frames.shrink()
    assert frames.capacity_bytes == INITIAL_BYTES


def test_a_zero_length_frame_is_an_empty_frame() -> None:
    assert receive(FrameBuffer(100, BufferPool()), struct.pack(">i", 0)) == [b""]


@pytest.mark.parametrize("limit_bytes", [1024, 512 * 1024])
def test_no_buffer_is_larger_than_the_largest_frame_and_its_length(limit_bytes: int) -> None:
    frames = FrameBuffer(limit_bytes, BufferPool())
    largest = struct.pack(">i", limit_bytes) + bytes(limit_bytes)
    small = struct.pack(">i", 10) + bytes(10)
    for stream in (largest * 2, small * 100_000, small + largest):
        for start in range(0, len(stream), limit_bytes):
            receive(frames, stream[start : start + limit_bytes])
            assert frames.capacity_bytes <= limit_bytes + 4


def grown(pool: BufferPool, size_bytes: int) -> FrameBuffer:
    """A buffer in which all but the last byte of a frame of this size has arrived."""
    frames = FrameBuffer(100 << 20, pool)
    receive(frames, struct.pack(">i", size_bytes - 4) + bytes(size_bytes - 5))
    return frames


def test_a_buffer_takes_its_whole_frame_from_the_pool_and_gives_it_back_when_it_is_closed() -> None:
    pool = BufferPool(1 << 20)
    frames = FrameBuffer(100 << 20, pool)
    receive(frames, struct.pack(">i", (300 << 10) - 4) + bytes(INITIAL_BYTES - 4))
    assert pool.taken_bytes == 0
    assert receive(frames, b"x") == []
    assert pool.taken_bytes == (300 << 10) - INITIAL_BYTES
    frames.close()
    assert pool.taken_bytes == 0


def test_buffers_that_take_turns_never_block_each_other() -> None:
    """Who waits for the memory of its frame has no other that somebody may wait for."""
    pool = BufferPool(1 << 20)
    for _ in range(3):
        many = [FrameBuffer(100 << 20, pool) for _ in range(40)]
        for size in (100_000, 700_000, 50_000, 1_500_000):
            stream = struct.pack(">i", size) + bytes(size)
            unsent = {frames: memoryview(stream) for frames in many}
            while unsent:
                waiting = 0
                for frames, left in tuple(unsent.items()):
                    space = frames.free_space()
                    if space is None:
                        waiting += 1
                        continue
                    taken = min(len(space), len(left))
                    space[:taken] = left[:taken]
                    frames.received(taken)
                    unsent[frames] = left[taken:]
                    if frames.next_frame() is not None:
                        del unsent[frames]
                        frames.release()
                assert waiting < len(many)
        assert pool.taken_bytes == 0


def test_a_frame_larger_than_the_pool_passes_while_the_pool_is_not_empty() -> None:
    pool = BufferPool(100_000)
    first = grown(pool, 90_000)
    assert receive(grown(pool, 5_000_000), b"x") == [bytes(4_999_995) + b"x"]
    assert receive(first, b"x") == [bytes(89_995) + b"x"]


def test_a_buffer_that_finds_the_pool_empty_says_what_it_lacks() -> None:
    pool = BufferPool(100_000)
    first = grown(pool, 200_000)
    second = FrameBuffer(100 << 20, pool)
    head = struct.pack(">i", 50_000 - 4) + bytes(INITIAL_BYTES - 4)
    receive(second, head)
    assert second.free_space() is None
    assert second.missing_bytes == 50_000 - INITIAL_BYTES
    granted: list[None] = []
    pool.wait(second.missing_bytes, lambda: granted.append(second.granted()))
    receive(first, b"x")
    first.release()
    assert len(granted) == 1
    rest = bytes(50_000 - len(head))
    assert receive(second, rest) == [head[4:] + rest]


def test_small_frames_need_nothing_of_an_empty_pool() -> None:
    pool = BufferPool(1)
    grown(pool, 200_000)
    frames = FrameBuffer(100 << 20, pool)
    small = struct.pack(">i", 10) + bytes(10)
    assert receive(frames, small * 100_000) == [bytes(10)] * 100_000
    assert frames.capacity_bytes == INITIAL_BYTES < BUSY_BYTES_MAX


def test_a_buffer_with_another_pool_takes_along_what_it_has() -> None:
    before, after = BufferPool(1 << 20), BufferPool(1 << 20)
    frames = grown(before, 90_000)
    frames.allow(100 << 20, after)
    assert (before.taken_bytes, after.taken_bytes) == (0, 90_000 - INITIAL_BYTES)
    frames.close()
    assert after.taken_bytes == 0
