"""Chunks of archived segments come once each, and those that will be asked for come early."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from strandline.storage.concurrency.tasks import eager_start
from strandline.storage.errors import (
    TierUnavailable,
)
from strandline.storage.model import Offset
from strandline.storage.records.compression import Codec
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.reader import prefetch_queue as guesses
from strandline.storage.remote.reader.cold_reader import ColdRead, ColdReader
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.storage.remote.cold_reading import (
    ALL_BYTES,
    archive,
    eventually,
    joined,
    make_reader,
    read_all,
    run,
)


def test_many_who_want_a_chunk_cause_one_request(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    reader = make_reader(store, executor)

    async def read_often() -> list[ColdRead]:
        reads = [reader.read(segment.entry, n % 8, bytes_max=500) for n in range(50)]
        return await asyncio.gather(*reads)

    assert all(found.size_bytes for found in run(read_often()))
    assert store.count_requests("get", r"\.meta$") == 1
    assert store.count_requests("get", r"\.log$") == 1


def test_a_reader_that_gives_up_leaves_the_download_to_the_next(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    reader = make_reader(store, executor)
    gate = threading.Event()
    hangs = store.add_fault(Fault(operation="get", key_pattern=r"\.log$", gate=gate))

    async def give_up_then_read() -> ColdRead:
        reading = asyncio.ensure_future(reader.read(segment.entry, 0, bytes_max=500))
        await eventually(lambda: hangs.hit_count == 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        gate.set()
        await eventually(lambda: reader.statistics().downloads == 1)
        return await reader.read(segment.entry, 0, bytes_max=500)

    assert run(give_up_then_read()).size_bytes > 0
    assert store.count_requests("get", r"\.log$") == 1


def test_whoever_reads_on_finds_the_next_chunks_there(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor)

    async def read_a_little() -> None:
        first = await reader.read(segment.entry, 0, bytes_max=500)
        assert store.count_requests("get", r"\.log$") == 1
        await reader.read(segment.entry, first.next_offset, bytes_max=500)
        await eventually(lambda: reader.statistics().downloads == 3)

    run(read_a_little())
    assert reader.statistics().prefetched_downloads == 2


def test_whoever_jumps_causes_no_read_ahead(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor)

    async def jump() -> None:
        for offset in (300, 0, 200, 100):
            await reader.read(segment.entry, offset, bytes_max=500)

    run(jump())
    assert reader.statistics().prefetched_downloads == 0
    assert store.count_requests("get", r"\.log$") == 4


def _at_once(
    reader: ColdReader, entry: SegmentEntry, offset: Offset, *, bytes_max: int, **more: Any
) -> ColdRead:
    """What is in memory: to read it takes no turn of the loop."""
    reading = eager_start(reader.read(entry, offset, bytes_max=bytes_max, **more))
    assert reading.done()
    return reading.result()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.sampled_from([1, 700, 1400, 3000, 9000]), min_size=1, max_size=60),
    end_offset=st.sampled_from([None, 30, 61, 62, 63, 64]),
)
@example(sizes=[1] * 60, end_offset=30)
@example(sizes=[3000] * 60, end_offset=61)
@example(sizes=[700] * 60, end_offset=None)
def test_where_a_consumer_is_known_to_be_it_gets_what_anybody_gets_there(
    executor: ThreadPoolExecutor, sizes: list[int], end_offset: int | None
) -> None:
    """To be in the middle of a chunk changes what a read costs, never what it brings."""
    store = MemoryStore()
    segment = archive(store)

    async def main() -> None:
        reader = make_reader(store, executor)
        read = partial(_at_once, reader, segment.entry, end_offset=end_offset)
        offset = 0
        # All chunks are there, so only what is remembered of the consumer differs.
        await read_all(reader, [segment])
        for size in sizes:
            kept = reader._streams.copy()
            reader._streams.clear()
            fresh = read(offset, bytes_max=size)
            reader._streams = kept
            found = read(offset, bytes_max=size)
            assert joined(found) == joined(fresh)
            assert (found.next_offset, found.size_bytes) == (fresh.next_offset, fresh.size_bytes)
            if not found.buffers or found.next_offset >= segment.entry.end_offset:
                break
            offset = found.next_offset

    run(main())


def test_whoever_takes_a_chunk_in_many_reads_is_known_in_all_of_them(
    store: MemoryStore, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = archive(store)
    reader = make_reader(store, executor)
    looks: list[object] = []
    ahead, soon = reader._ahead, reader._ahead.soon
    monkeypatch.setattr(ahead, "soon", lambda due: (looks.append(due), soon(due)))
    assert run(read_all(reader, [segment], bytes_max=1)) == segment.log
    # As the depth grows, and then once for each chunk; 40 reads were answered.
    assert 0 < len(looks) < 10
    counts = reader.statistics()
    assert counts.downloads == 4
    # The first chunk is wanted before anybody is known.
    assert counts.prefetched_downloads == counts.downloads - 1


def test_read_ahead_goes_on_into_the_next_segment(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    first = archive(store, batch_count=8)
    second = archive(store, base_offset=32, batch_count=8)
    reader = make_reader(store, executor)

    async def read_first() -> None:
        offset = 0
        for _ in range(2):
            found = await reader.read(
                first.entry, offset, bytes_max=500, next_entries=[second.entry]
            )
            offset = found.next_offset
        await eventually(lambda: reader.statistics().downloads == 2)
        whole = await reader.read(first.entry, 0, bytes_max=ALL_BYTES, next_entries=[second.entry])
        assert joined(whole) == first.log + second.log

    run(read_first())
    assert store.count_requests("get", second.entry.log_key) == 1


def test_read_ahead_ends_with_the_reader(store: MemoryStore) -> None:
    """An index that arrives while the broker stops asks for no further one: no thread is left."""
    executor = ThreadPoolExecutor(2)
    segments = [archive(store, base_offset=32 * n, batch_count=8) for n in range(4)]
    reader = make_reader(store, executor, read_ahead_chunks=8)
    complaints: list[str] = []

    async def stop_while_reading() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: complaints.append(str(context)))
        gate = threading.Event()
        key = segments[1].entry.meta_key
        fault = store.add_fault(Fault(operation="get", key_pattern=key, gate=gate))
        later = [segment.entry for segment in segments[1:]]
        offset = 0
        for _ in range(3):
            found = await reader.read(segments[0].entry, offset, bytes_max=500, next_entries=later)
            offset = found.next_offset
        await eventually(lambda: fault.hit_count > 0)
        reader.close()
        executor.shutdown(wait=False)
        gate.set()
        await asyncio.to_thread(executor.shutdown)
        for _ in range(3):
            await asyncio.sleep(0)

    run(stop_while_reading())
    assert complaints == []


def test_the_next_index_is_there_long_before_it_is_needed(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    first = archive(store, batch_count=200)
    second = archive(store, base_offset=800, batch_count=8)
    reader = make_reader(store, executor)

    async def begin() -> None:
        offset = 0
        for _ in range(2):
            found = await reader.read(
                first.entry, offset, bytes_max=500, next_entries=[second.entry]
            )
            offset = found.next_offset
        await eventually(lambda: store.count_requests("get", second.entry.meta_key) == 1)

    run(begin())
    assert store.count_requests("get", second.entry.log_key) == 0


def test_a_segment_that_replaced_the_one_being_read_is_read_on(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    """The reader remembers the chunk that a consumer is in, and yet asks the entry where it is."""
    before = archive(store, batch_count=40)
    after = archive(store, batch_count=40, codec=Codec.GZIP)
    assert before.log != after.log
    assert before.entry.end_offset == after.entry.end_offset
    reader = make_reader(store, executor)

    async def read_on() -> bytes:
        offset, received = 0, b""
        for _ in range(4):
            found = await reader.read(before.entry, offset, bytes_max=500)
            offset = found.next_offset
        while offset < after.entry.end_offset:
            found = await reader.read(after.entry, offset, bytes_max=500)
            received += joined(found)
            offset = found.next_offset
        return received

    received = run(read_on())
    assert received
    assert after.log.endswith(received)


@pytest.mark.parametrize("loss", ["failed", "dropped"])
def test_a_lost_guess_is_made_again_before_its_chunk_is_reached(
    store: MemoryStore,
    executor: ThreadPoolExecutor,
    loss: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor, read_ahead_chunks=2)

    async def read_in_the_first_chunk() -> None:
        first = await reader.read(segment.entry, 0, bytes_max=500)
        if loss == "failed":
            fault = Fault(operation="get", key_pattern=r"\.log$", error=TierUnavailable, times=2)
            store.add_fault(fault)
        else:
            monkeypatch.setattr(guesses, "PREFETCHES_MAX", 0)
        second = await reader.read(segment.entry, first.next_offset, bytes_max=500)
        if loss == "failed":
            await eventually(lambda: reader.statistics().failed_downloads == 2)
        monkeypatch.undo()
        assert reader.statistics().downloads == 1
        await reader.read(segment.entry, second.next_offset, bytes_max=500)
        await eventually(lambda: reader.statistics().downloads == 3)

    run(read_in_the_first_chunk())


def test_a_failed_guess_is_nobodys_error(store: MemoryStore, executor: ThreadPoolExecutor) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor)
    store.add_fault(
        Fault(operation="get", key_pattern=r"\.log$", error=TierUnavailable, skip=1, times=2)
    )

    async def read_on() -> bytes:
        first = await reader.read(segment.entry, 0, bytes_max=500)
        await reader.read(segment.entry, first.next_offset, bytes_max=500)
        await eventually(lambda: reader.statistics().failed_downloads == 2)
        return await read_all(reader, [segment])

    assert run(read_on()) == segment.log


def test_a_wanted_chunk_is_downloaded_before_guessed_ones(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store, batch_count=200)
    reader = make_reader(store, executor, parallel_downloads_max=2, memory_bytes_max=200_000)

    async def read_then_jump() -> None:
        first = await reader.read(segment.entry, 0, bytes_max=500)
        gate = threading.Event()
        hanging = store.add_fault(Fault(operation="get", key_pattern=r"\.log$", gate=gate))
        await reader.read(segment.entry, first.next_offset, bytes_max=500)
        # One guess hangs, another waits; the jump goes past both.
        await eventually(lambda: hanging.hit_count > 0)
        found = await reader.read(segment.entry, 700, bytes_max=500)
        assert found.next_offset == 704
        assert reader.statistics().downloads == 2
        gate.set()
        await eventually(lambda: reader.statistics().downloads == 4)

    run(read_then_jump())


def test_an_answer_from_memory_goes_out_before_anything_is_prefetched(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store, batch_count=200)
    reader = make_reader(store, executor, memory_bytes_max=200_000)

    async def read_on() -> None:
        first = await reader.read(segment.entry, 0, bytes_max=500)
        _at_once(reader, segment.entry, first.next_offset, bytes_max=500)
        assert reader.statistics().prefetched_downloads == 0
        await asyncio.sleep(0)
        assert reader.statistics().prefetched_downloads > 0

    run(read_on())


def test_what_a_read_would_guess_is_prefetched_before_the_next_read(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    """Or chunks would be guessed that have been read, and gone, since."""
    segment = archive(store, batch_count=200)
    reader = make_reader(store, executor, memory_bytes_max=200_000)

    async def read_twice_in_one_turn() -> None:
        first = await reader.read(segment.entry, 0, bytes_max=500)
        second = _at_once(reader, segment.entry, first.next_offset, bytes_max=500)
        _at_once(reader, segment.entry, second.next_offset, bytes_max=500)
        assert reader.statistics().prefetched_downloads == 2

    run(read_twice_in_one_turn())


def test_a_reader_that_is_closed_behind_an_answer_guesses_nothing(store: MemoryStore) -> None:
    segment = archive(store, batch_count=8)
    following = archive(store, batch_count=8, base_offset=segment.entry.end_offset)

    async def close_behind_answer(reader: ColdReader) -> int:
        first = await reader.read(segment.entry, 0, bytes_max=500)
        request_count = len(store.requests)
        _at_once(
            reader, segment.entry, first.next_offset, bytes_max=500, next_entries=[following.entry]
        )
        reader.close()
        await asyncio.sleep(0)
        return request_count

    with ThreadPoolExecutor(2) as own:
        request_count = run(close_behind_answer(make_reader(store, own)))
    # Whatever was asked for has been asked now.
    assert len(store.requests) == request_count
