"""Chunks, the memory they live in, and their cache on disk."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.storage.errors import CorruptRecords
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.remote.reader.chunk_cache import (
    CHUNKS_MAX,
    IDLE_S,
    Chunk,
    ChunkCache,
)
from strandline.storage.remote.segment.index import ChunkKey
from tests.support.archived_segments import make_log


def chunk_of(log: bytes, base_offset: int = 0) -> Chunk:
    return Chunk(ChunkKey("k", 0, len(log)), memoryview(log), base_offset=base_offset)


# --- chunks ----------------------------------------------------------------------------------

LOG = make_log(base_offset=100, batch_count=5, records_per_batch=4)
BATCH_BYTES = len(LOG) // 5


def test_a_run_begins_with_the_batch_that_holds_the_offset() -> None:
    chunk = chunk_of(LOG, 100)
    for offset in (108, 109, 111):
        run = chunk.find_run(offset, bytes_max=10**6, end_offset=None, at_least_one=True)
        assert run is not None
        assert (run.position, run.end_position) == (2 * BATCH_BYTES, len(LOG))
        assert run.next_offset == 120
        assert bytes(chunk.take(run)) == LOG[2 * BATCH_BYTES :]


@settings(max_examples=60)
@given(st.integers(100, 119), st.integers(0, 1500), st.none() | st.integers(95, 125), st.booleans())
def test_a_run_is_whole_batches_within_its_bounds(
    offset: int, bytes_max: int, end_offset: int | None, at_least_one: bool
) -> None:
    run = chunk_of(LOG, 100).find_run(
        offset, bytes_max=bytes_max, end_offset=end_offset, at_least_one=at_least_one
    )
    wanted, size_bytes = [], 0
    for found in walk(LOG):
        header = found.header
        if header.next_offset <= offset:
            continue
        if end_offset is not None and header.base_offset >= end_offset:
            break
        if size_bytes + header.size_bytes > bytes_max and (wanted or not at_least_one):
            break
        wanted.append(found)
        size_bytes += header.size_bytes
    if not wanted:
        assert run is None
        return
    assert run is not None
    assert (run.position, run.end_position) == (wanted[0].position, wanted[-1].end_position)
    assert run.next_offset == wanted[-1].header.next_offset


def test_a_run_behind_the_chunk_is_none() -> None:
    chunk = chunk_of(LOG, 100)
    assert chunk.find_run(120, bytes_max=10, end_offset=None, at_least_one=True) is None
    assert chunk.end_offset == 120


@settings(max_examples=60)
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_no_flipped_bit_passes_for_another_record(place: float, bit: int) -> None:
    """The leader epoch is the one field that neither CRC nor order protects."""
    damaged = bytearray(LOG)
    position = int(place * len(LOG))
    damaged[position] ^= 1 << bit
    in_batch = position % BATCH_BYTES
    if 12 <= in_batch < 16:
        return
    if in_batch < 8:
        # A base offset that grew still fits before the next batch only if there is none.
        try:
            chunk = chunk_of(bytes(damaged), 100)
        except CorruptRecords:
            return
        assert position >= 4 * BATCH_BYTES, position
        assert chunk.end_offset > 120
        return
    with pytest.raises(CorruptRecords):
        chunk_of(bytes(damaged), 100)


def test_bytes_of_another_place_are_corrupt() -> None:
    with pytest.raises(CorruptRecords, match="not 104"):
        chunk_of(LOG, 104)
    swapped = LOG[BATCH_BYTES : 2 * BATCH_BYTES] + LOG[:BATCH_BYTES]
    with pytest.raises(CorruptRecords, match="follows"):
        chunk_of(swapped, 104)
    for cut in (1, BATCH_BYTES - 1, BATCH_BYTES + 20):
        with pytest.raises(CorruptRecords):
            chunk_of(LOG[:-cut], 100)
    with pytest.raises(CorruptRecords):
        chunk_of(LOG[3:], 100)


@given(st.binary(min_size=1, max_size=200))
def test_foreign_bytes_are_corrupt(content: bytes) -> None:
    with pytest.raises(CorruptRecords):
        chunk_of(content)


def test_a_chunk_is_pinned_as_long_as_a_view_of_it_exists() -> None:
    chunk = chunk_of(LOG, 100)
    run = chunk.find_run(100, bytes_max=10**6, end_offset=None, at_least_one=True)
    assert run is not None
    first, second = chunk.take(run), chunk.take(run)
    assert first.readonly
    assert chunk.is_pinned
    del first
    assert chunk.is_pinned
    del second
    assert not chunk.is_pinned


def test_the_last_view_of_a_chunk_tells_that_it_is_gone() -> None:
    chunk, told = chunk_of(LOG, 100), []
    run = chunk.find_run(100, bytes_max=10**6, end_offset=None, at_least_one=True)
    assert run is not None
    first, second = (chunk.take(run, on_release=lambda: told.append(chunk.key)) for _ in range(2))
    del second
    gc.collect()
    assert not told
    del first
    assert told == [chunk.key]


def test_a_view_may_outlive_its_chunk() -> None:
    chunk = chunk_of(LOG, 100)
    run = chunk.find_run(100, bytes_max=10**6, end_offset=None, at_least_one=True)
    assert run is not None
    view = chunk.take(run)
    del chunk
    gc.collect()
    assert bytes(view) == LOG
    del view
    gc.collect()


# --- memory ----------------------------------------------------------------------------------


class FilledMemory:
    """A memory of 5,000 bytes and chunks of one batch to put in it."""

    def __init__(self) -> None:
        self.free_count = 0
        self.memory = ChunkCache(5000, on_free=self.on_free)
        self.log = make_log(batch_count=1, records_per_batch=8, value_bytes=100)

    def on_free(self) -> None:
        self.free_count += 1

    def add(
        self, number: int, *, is_used_up: bool = True, is_prefetch: bool = True, now_s: float = 0
    ) -> Chunk | None:
        block = self.memory.reserve(len(self.log), is_prefetch=is_prefetch, now_s=now_s)
        if block is None:
            return None
        block[:] = self.log
        chunk = Chunk(ChunkKey("k", number, number + len(self.log)), block, base_offset=0)
        chunk.is_used_up = is_used_up
        self.memory.add(chunk, now_s=now_s)
        return chunk


def test_memory_is_what_exists_not_what_is_cached() -> None:
    filled = FilledMemory()
    size_bytes = len(filled.log)
    chunk = filled.add(1)
    assert chunk is not None
    run = chunk.find_run(0, bytes_max=10**6, end_offset=None, at_least_one=True)
    assert run is not None
    view = chunk.take(run)
    del chunk
    filled.memory.clear()
    gc.collect()
    assert (filled.memory.chunk_count, filled.memory.live_bytes) == (0, size_bytes)
    del view
    assert filled.memory.live_bytes == 0
    assert filled.free_count == 1


def test_the_least_recently_used_chunk_goes_first() -> None:
    filled = FilledMemory()
    fit = 5000 // len(filled.log)
    for number in range(fit):
        filled.add(number)
    filled.memory.find(ChunkKey("k", 0, len(filled.log)), now_s=0)
    filled.add(fit)
    left = {n for n in range(fit + 1) if filled.memory.peek(ChunkKey("k", n, n + len(filled.log)))}
    assert left == set(range(fit + 1)) - {1}
    assert filled.memory.live_bytes <= 5000
    assert filled.memory.evicted_count == 1


def test_chunks_in_use_stay_and_no_memory_is_promised_that_is_not_free() -> None:
    filled = FilledMemory()
    views = []
    while (chunk := filled.add(len(views))) is not None:
        assert filled.memory.live_bytes <= 5000
        run = chunk.find_run(0, bytes_max=10**6, end_offset=None, at_least_one=True)
        assert run is not None
        views.append(chunk.take(run))
    assert filled.memory.reserve(len(filled.log), is_prefetch=False, now_s=0) is None
    assert filled.memory.chunk_count == len(views)
    views.pop()
    del chunk
    assert filled.add(99) is not None


def test_guesses_do_not_push_out_what_somebody_still_needs() -> None:
    filled = FilledMemory()
    count = 0
    while filled.add(count, is_used_up=False) is not None:
        count += 1
    assert filled.memory.chunk_count == count
    assert filled.add(99, is_prefetch=False) is not None


def test_guesses_push_out_what_nobody_came_back_for() -> None:
    filled = FilledMemory()
    count = 0
    while filled.add(count, is_used_up=False) is not None:
        count += 1
    filled.memory.find(ChunkKey("k", 0, len(filled.log)), now_s=IDLE_S)
    assert filled.add(99, is_used_up=False, now_s=IDLE_S) is None
    assert filled.add(99, is_used_up=False, now_s=IDLE_S + 1) is not None
    assert filled.memory.peek(ChunkKey("k", 0, len(filled.log))) is not None


def test_chunks_read_to_their_end_go_before_older_ones_that_were_not() -> None:
    filled = FilledMemory()
    fit = 5000 // len(filled.log)
    for number in range(fit):
        filled.add(number, is_used_up=number == 2)
    filled.add(99, is_prefetch=False)
    assert filled.memory.peek(ChunkKey("k", 0, len(filled.log))) is not None
    assert filled.memory.peek(ChunkKey("k", 2, 2 + len(filled.log))) is None


def test_a_chunk_larger_than_all_memory_is_given_when_nothing_else_exists() -> None:
    filled = FilledMemory()
    filled.add(0)
    block = filled.memory.reserve(50_000, is_prefetch=False, now_s=0)
    assert block is not None
    assert filled.memory.chunk_count == 0
    assert filled.memory.reserve(10, is_prefetch=False, now_s=0) is None
    del block
    assert filled.memory.reserve(10, is_prefetch=False, now_s=0) is not None


def test_chunks_of_small_segments_have_a_bound_and_take_no_descriptors() -> None:
    log = make_log(batch_count=1, records_per_batch=1, value_bytes=1)
    memory = ChunkCache(10**9, on_free=lambda: None)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(CHUNKS_MAX + 50):
        block = memory.reserve(len(log), is_prefetch=False, now_s=0)
        assert block is not None
        block[:] = log
        chunk = Chunk(ChunkKey("k", number, number + len(log)), block, base_offset=0)
        memory.add(chunk, now_s=0)
    del block, chunk
    assert memory.chunk_count == CHUNKS_MAX
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    memory.clear()


def test_blocks_may_die_in_any_thread() -> None:
    memory = ChunkCache(10**9, on_free=lambda: None)
    blocks = [memory.reserve(4096, is_prefetch=False, now_s=0) for _ in range(200)]
    threads = [
        threading.Thread(target=lambda part=blocks[n::4]: part.clear())  # type: ignore[misc]
        for n in range(4)
    ]
    blocks.clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    del threads, thread
    gc.collect()
    assert memory.live_bytes == 0
