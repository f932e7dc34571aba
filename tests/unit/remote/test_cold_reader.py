"""Reading archived segments: the same bytes, each downloaded once, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.storage.errors import (
    AccessDenied,
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    TierError,
    TierUnavailable,
)
from strandline.storage.files import FileRange
from strandline.storage.model import AbortedTransaction, TimestampOffset, TopicIdPartition
from strandline.storage.records.batch import iter_batches
from strandline.storage.records.compression import Codec
from strandline.storage.remote import downloads
from strandline.storage.remote.memory import Fault, MemoryStore
from strandline.storage.remote.reader import ColdRead, ColdReader
from strandline.storage.remote.segment_meta import Section
from tests.support.archived_segments import (
    BASE_TIMESTAMP_MS,
    ArchivedSegment,
    archive_segment,
    make_log,
)

T = TypeVar("T")

PARTITION = TopicIdPartition("orders", uuid.UUID("00000000-0000-4000-8000-00000000002a"), 0)
ALL_BYTES = 10**9
WAIT_S_MAX = 60.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def archive(
    store: MemoryStore, *, base_offset: int = 0, batch_count: int = 40, **more: Any
) -> ArchivedSegment:
    """A segment of `batch_count` batches of 4 records, in pieces of two batches."""
    log = make_log(base_offset=base_offset, batch_count=batch_count, **more)
    return archive_segment(store, PARTITION, log, piece_bytes=2 * len(log) // batch_count)


def make_reader(store: MemoryStore, executor: ThreadPoolExecutor, **more: Any) -> ColdReader:
    """Chunks of about ten batches."""
    settings_ = {"chunk_bytes": 6000, "memory_bytes_max": 60_000, "read_ahead_chunks": 4, **more}
    return ColdReader(store, executor, **settings_)


def run(work: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(work, WAIT_S_MAX)

    return asyncio.run(bounded())


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():
            await asyncio.sleep(0.002)


async def read_all(
    reader: ColdReader, segments: list[ArchivedSegment], *, bytes_max: int = ALL_BYTES
) -> bytes:
    """Reads as a consumer does, from the first offset to the last."""
    received = bytearray()
    offset = segments[0].entry.base_offset
    while offset < segments[-1].entry.end_offset:
        number = next(n for n, s in enumerate(segments) if offset < s.entry.end_offset)
        found = await reader.read(
            segments[number].entry,
            offset,
            bytes_max=bytes_max,
            next_entries=[later.entry for later in segments[number + 1 :]],
        )
        assert found.next_offset > offset
        content = joined(found)
        assert found.size_bytes == len(content)
        received += content
        offset = found.next_offset
        del found  # who keeps an answer keeps its memory
    return bytes(received)


def joined(found: ColdRead) -> bytes:
    """As a connection would send it."""
    return b"".join(part.read() if isinstance(part, FileRange) else part for part in found.buffers)


# --- the same bytes --------------------------------------------------------------------------


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch_counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    records_per_batch=st.integers(1, 6),
    bytes_max=st.integers(1, 40_000),
    chunk_bytes=st.integers(500, 20_000),
    read_ahead_chunks=st.integers(0, 5),
)
def test_a_consumer_receives_the_segments_byte_for_byte(
    executor: ThreadPoolExecutor,
    batch_counts: list[int],
    records_per_batch: int,
    bytes_max: int,
    chunk_bytes: int,
    read_ahead_chunks: int,
) -> None:
    store = MemoryStore()
    segments, base_offset = [], 7
    for count in batch_counts:
        segment = archive(
            store,
            base_offset=base_offset,
            batch_count=count,
            records_per_batch=records_per_batch,
        )
        segments.append(segment)
        base_offset = segment.entry.end_offset
    reader = make_reader(
        store, executor, chunk_bytes=chunk_bytes, read_ahead_chunks=read_ahead_chunks
    )
    received = run(read_all(reader, segments, bytes_max=bytes_max))
    assert received == b"".join(segment.log for segment in segments)
    assert reader.statistics().live_bytes_now <= 60_000


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_are_passed_on_as_they_are(
    store: MemoryStore, executor: ThreadPoolExecutor, codec: Codec
) -> None:
    segment = archive(store, codec=codec)
    assert run(read_all(make_reader(store, executor), [segment])) == segment.log


@pytest.mark.parametrize("offset", [0, 1, 3, 4, 77, 159])
def test_a_read_begins_with_the_batch_that_holds_the_offset(
    store: MemoryStore, executor: ThreadPoolExecutor, offset: int
) -> None:
    segment = archive(store)
    found = run(make_reader(store, executor).read(segment.entry, offset, bytes_max=1))
    (only,) = iter_batches(joined(found))
    assert only.header.base_offset <= offset < only.header.next_offset == found.next_offset


def test_a_read_ends_below_the_end_offset(store: MemoryStore, executor: ThreadPoolExecutor) -> None:
    segment = archive(store)
    reader = make_reader(store, executor)

    async def read(offset: int, end_offset: int) -> ColdRead:
        return await reader.read(segment.entry, offset, bytes_max=ALL_BYTES, end_offset=end_offset)

    assert run(read(4, 12)).next_offset == 12
    assert run(read(4, 13)).next_offset == 16
    nothing = run(read(12, 12))
    assert (nothing.buffers, nothing.next_offset, nothing.size_bytes) == ([], 12, 0)


def test_offsets_that_compaction_removed_are_passed_over(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    """Batches at 0, 8, 80 and 88; the segment ends at 200."""
    parts = [make_log(base_offset=base, batch_count=1) for base in (0, 8, 80, 88)]
    made = archive_segment(store, PARTITION, b"".join(parts), piece_bytes=1)
    fields = {name: getattr(made.entry, name) for name in made.entry.__slots__}
    entry = type(made.entry)(**{**fields, "end_offset": 200})
    reader = make_reader(store, executor, chunk_bytes=2 * len(parts[0]))

    async def read(offsets: Sequence[int]) -> list[ColdRead]:
        return [await reader.read(entry, offset, bytes_max=1) for offset in offsets]

    found = run(read((0, 4, 12, 79, 88)))
    assert [one.next_offset for one in found] == [4, 12, 84, 84, 92]


def test_behind_the_last_batch_of_a_compacted_segment_there_is_nothing(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    made = archive_segment(store, PARTITION, make_log(batch_count=1), piece_bytes=1)
    fields = {name: getattr(made.entry, name) for name in made.entry.__slots__}
    entry = type(made.entry)(**{**fields, "end_offset": 200})
    found = run(make_reader(store, executor).read(entry, 92, bytes_max=1))
    assert (found.buffers, found.next_offset) == ([], 200)


def test_one_batch_comes_however_large(store: MemoryStore, executor: ThreadPoolExecutor) -> None:
    log = make_log(batch_count=3, records_per_batch=1, value_bytes=200_000)
    segment = archive_segment(store, PARTITION, log, piece_bytes=1000)
    reader = make_reader(store, executor, memory_bytes_max=60_000)
    assert run(read_all(reader, [segment], bytes_max=1)) == log


# --- each once -------------------------------------------------------------------------------


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
    assert reader.statistics().guessed_downloads == 2


def test_whoever_jumps_causes_no_read_ahead(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor)

    async def jump() -> None:
        for offset in (300, 0, 200, 100):
            await reader.read(segment.entry, offset, bytes_max=500)

    run(jump())
    assert reader.statistics().guessed_downloads == 0
    assert store.count_requests("get", r"\.log$") == 4


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
            monkeypatch.setattr(downloads, "GUESSES_MAX", 0)
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
        store.add_fault(Fault(operation="get", key_pattern=r"\.log$", gate=gate))
        await reader.read(segment.entry, first.next_offset, bytes_max=500)
        # One guess hangs, another waits; the jump goes past both.
        found = await reader.read(segment.entry, 700, bytes_max=500)
        assert found.next_offset == 704
        assert reader.statistics().downloads == 2
        gate.set()
        await eventually(lambda: reader.statistics().downloads == 4)

    run(read_then_jump())


def test_an_answer_from_memory_goes_out_before_anything_is_guessed(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store, batch_count=200)
    reader = make_reader(store, executor, memory_bytes_max=200_000)

    async def read_on() -> None:
        first = await reader.read(segment.entry, 0, bytes_max=500)
        found = reader.read_from_memory(segment.entry, first.next_offset, bytes_max=500)
        assert found is not None
        assert reader.statistics().guessed_downloads == 0
        await asyncio.sleep(0)
        assert reader.statistics().guessed_downloads > 0

    run(read_on())


def test_what_a_read_would_guess_is_guessed_before_the_next_read(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    """Or chunks would be guessed that have been read, and gone, since."""
    segment = archive(store, batch_count=200)
    reader = make_reader(store, executor, memory_bytes_max=200_000)

    async def read_twice_in_one_turn() -> None:
        first = await reader.read(segment.entry, 0, bytes_max=500)
        second = reader.read_from_memory(segment.entry, first.next_offset, bytes_max=500)
        assert second is not None
        reader.read_from_memory(segment.entry, second.next_offset, bytes_max=500)
        assert reader.statistics().guessed_downloads == 2

    run(read_twice_in_one_turn())


def test_a_reader_that_is_closed_behind_an_answer_guesses_nothing(store: MemoryStore) -> None:
    segment = archive(store, batch_count=8)
    following = archive(store, batch_count=8, base_offset=segment.entry.end_offset)

    async def close_behind_answer(reader: ColdReader) -> int:
        first = await reader.read(segment.entry, 0, bytes_max=500)
        request_count = len(store.requests)
        found = reader.read_from_memory(
            segment.entry, first.next_offset, bytes_max=500, next_entries=[following.entry]
        )
        assert found is not None
        reader.close()
        await asyncio.sleep(0)
        return request_count

    with ThreadPoolExecutor(2) as own:
        request_count = run(close_behind_answer(make_reader(store, own)))
    # Whatever was asked for has been asked now.
    assert len(store.requests) == request_count


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ObjectNotFound, AccessDenied, ObjectArchived, TierUnavailable, ObjectCorrupt]
)
def test_each_failure_of_the_store_stays_itself_and_passes(
    store: MemoryStore, executor: ThreadPoolExecutor, error: type[TierError]
) -> None:
    segment = archive(store)
    reader = make_reader(store, executor)
    store.add_fault(Fault(operation="get", key_pattern=r"\.log$", error=error))
    with pytest.raises(error) as raised:
        run(reader.read(segment.entry, 0, bytes_max=500))
    assert type(raised.value) is error
    assert run(read_all(reader, [segment])) == segment.log


def test_a_chunk_damaged_on_the_way_is_fetched_again(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    reader = make_reader(store, executor)
    store.add_fault(Fault(operation="get", key_pattern=r"\.log$", flip_bit_at=1234))
    assert run(read_all(reader, [segment])) == segment.log
    assert reader.statistics().corrupt_chunks == 1


def test_a_chunk_damaged_in_the_store_is_corrupt_and_the_others_are_readable(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor)
    position = len(segment.log) // 2
    store.damage(
        segment.entry.log_key,
        lambda log: log[:position] + bytes([log[position] ^ 1]) + log[position + 1 :],
    )

    async def read_around() -> None:
        # On one loop: what is read ahead may still be under way when the error is there.
        with pytest.raises(ObjectCorrupt, match="wrong CRC"):
            await read_all(reader, [segment])
        for offset in (0, 399):
            found = await reader.read(segment.entry, offset, bytes_max=500)
            assert found.size_bytes > 0

    run(read_around())


def test_an_object_that_is_cut_off_is_corrupt(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    store.damage(segment.entry.log_key, lambda log: log[:-100])
    with pytest.raises(ObjectCorrupt):
        run(make_reader(store, executor).read(segment.entry, 159, bytes_max=500))


def test_too_many_waiting_readers_are_told_to_come_later(
    store: MemoryStore, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "WAITING_MAX", 3)
    segment = archive(store, batch_count=200)
    reader = make_reader(store, executor, parallel_downloads_max=1)
    gate = threading.Event()
    store.add_fault(Fault(operation="get", key_pattern=r"\.log$", gate=gate, times=-1))

    async def crowd() -> list[ColdRead | BaseException]:
        reads = [reader.read(segment.entry, 50 * n, bytes_max=500) for n in range(8)]
        asyncio.get_running_loop().call_later(0.1, gate.set)
        return await asyncio.gather(*reads, return_exceptions=True)

    outcomes = run(crowd())
    refused = [found for found in outcomes if isinstance(found, TierUnavailable)]
    assert len(refused) == 4, outcomes
    assert sum(isinstance(found, ColdRead) for found in outcomes) == 4


def test_closing_fails_those_who_wait(store: MemoryStore, executor: ThreadPoolExecutor) -> None:
    segment = archive(store, batch_count=200)
    reader = make_reader(store, executor, parallel_downloads_max=1)
    gate = threading.Event()
    store.add_fault(Fault(operation="get", key_pattern=r"\.log$", gate=gate))

    async def close_while_waiting() -> list[ColdRead | BaseException]:
        loop = asyncio.get_running_loop()
        reads = [reader.read(segment.entry, 100 * n, bytes_max=500) for n in range(3)]
        loop.call_later(0.05, reader.close)
        loop.call_later(0.1, gate.set)
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        with pytest.raises(TierUnavailable):
            await reader.read(segment.entry, 0, bytes_max=500)
        return outcomes

    assert [type(found) for found in run(close_while_waiting())] == [TierUnavailable] * 3


# --- bounded memory --------------------------------------------------------------------------


def test_memory_stays_bounded_while_slow_consumers_hold_their_answers(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store, batch_count=200)
    reader = make_reader(store, executor, memory_bytes_max=30_000)

    async def hold_too_much() -> None:
        held: list[ColdRead] = []
        with contextlib.suppress(TimeoutError):
            for offset in range(0, 700, 40):
                reading = reader.read(segment.entry, offset, bytes_max=500)
                held.append(await asyncio.wait_for(reading, 0.2))
                assert reader.statistics().live_bytes_now <= 30_000
        assert 3 <= len(held) <= 8, "the memory was full before the loop was"
        waiting = asyncio.ensure_future(reader.read(segment.entry, 799, bytes_max=500))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        held.clear()
        assert (await waiting).size_bytes > 0

    run(hold_too_much())
    assert reader.statistics().live_bytes_now <= 30_000


@pytest.mark.parametrize("memory_bytes_max", [13_000, 19_000, 60_000])
def test_reading_ahead_in_a_small_memory_downloads_nothing_twice(
    store: MemoryStore, executor: ThreadPoolExecutor, memory_bytes_max: int
) -> None:
    segments = [archive(store, base_offset=400 * n, batch_count=100) for n in range(3)]
    reader = make_reader(store, executor, memory_bytes_max=memory_bytes_max)
    received = run(read_all(reader, segments, bytes_max=1100))
    assert received == b"".join(segment.log for segment in segments)
    assert reader.statistics().downloaded_bytes == len(received)


# --- disk cache ------------------------------------------------------------------------------


def test_after_a_restart_chunks_come_from_disk(
    store: MemoryStore, executor: ThreadPoolExecutor, tmp_path: Path
) -> None:
    segment = archive(store)
    disk: dict[str, Any] = {"disk_directory": tmp_path, "disk_bytes_max": 10**6}

    async def read_and_keep() -> None:
        reader = make_reader(store, executor, read_ahead_chunks=0, **disk)
        assert await read_all(reader, [segment]) == segment.log
        await eventually(
            lambda: len(list(tmp_path.glob("*.chunk"))) == reader.statistics().downloads
        )

    run(read_and_keep())
    store.requests.clear()
    reader = make_reader(store, executor, **disk)
    assert run(read_all(reader, [segment])) == segment.log
    assert reader.statistics().disk_hits > 1
    assert store.count_requests("get", r"\.log$") == 0


def test_a_chunk_damaged_on_disk_is_downloaded_again(
    store: MemoryStore, executor: ThreadPoolExecutor, tmp_path: Path
) -> None:
    segment = archive(store, batch_count=8)
    disk: dict[str, Any] = {"disk_directory": tmp_path, "disk_bytes_max": 10**6}

    async def read(reader: ColdReader) -> bytes:
        received = await read_all(reader, [segment])
        await eventually(lambda: len(list(tmp_path.glob("*.chunk"))) == 1)
        return received

    run(read(make_reader(store, executor, **disk)))
    (path,) = tmp_path.glob("*.chunk")
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    reader = make_reader(store, executor, **disk)
    assert run(read(reader)) == segment.log
    statistics = reader.statistics()
    assert (statistics.corrupt_chunks, statistics.disk_hits, statistics.downloads) == (1, 0, 1)
    assert path.read_bytes() == segment.log


# --- the index -------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "no statistics"])
def test_a_damaged_meta_does_not_make_a_segment_unreadable(
    store: MemoryStore,
    executor: ThreadPoolExecutor,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    segment = archive(store)
    key = segment.entry.meta_key
    match damage:
        case "cut":
            store.damage(key, lambda meta: meta[:-3])
        case "flipped":
            store.damage(key, lambda meta: meta[:50] + b"#" + meta[51:])
        case "gone":
            store.delete([key])
        case _:
            segment = archive_segment(
                store, PARTITION, segment.log, sections={Section.STATISTICS: b""}
            )
    reader = make_reader(store, executor)
    assert run(read_all(reader, [segment])) == segment.log
    wanted = TimestampOffset(BASE_TIMESTAMP_MS + 77, 77, 0)
    assert run(reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS + 77)) == wanted
    assert "segment index unusable, walking the log object" in caplog.messages


def test_a_denied_meta_is_denied_and_not_worked_around(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    store.add_fault(Fault(operation="get", key_pattern=r"\.meta$", error=AccessDenied))
    with pytest.raises(AccessDenied):
        run(make_reader(store, executor).read(segment.entry, 0, bytes_max=500))


# --- times -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_time_is_found_to_the_record(
    store: MemoryStore, executor: ThreadPoolExecutor, codec: Codec
) -> None:
    segment = archive(store, base_offset=100, codec=codec, leader_epoch=3)
    reader = make_reader(store, executor)
    for offset in (100, 101, 178, 259):
        found = run(reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS + offset))
        assert found == TimestampOffset(BASE_TIMESTAMP_MS + offset, offset, 3)
    first = run(reader.find_timestamp(segment.entry, 0))
    assert first is not None
    assert first.offset == 100
    assert run(reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS + 260)) is None


def test_a_time_is_not_found_below_the_start_offset(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    found = run(
        make_reader(store, executor).find_timestamp(
            segment.entry, BASE_TIMESTAMP_MS, start_offset=42
        )
    )
    assert found is not None
    assert found.offset == 42


def test_a_time_costs_one_small_request(store: MemoryStore, executor: ThreadPoolExecutor) -> None:
    segment = archive(store, batch_count=100)
    reader = make_reader(store, executor)
    run(reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS + 300))
    (request,) = [r for r in store.requests if r.operation == "get" and r.key.endswith(".log")]
    assert request.end - request.start <= 3 * len(segment.log) // 100
    run(reader.read(segment.entry, 300, bytes_max=500))
    store.requests.clear()
    run(reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS + 301))
    assert store.requests == []


# --- transactions ----------------------------------------------------------------------------


def test_aborted_transactions_are_those_that_overlap(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    aborted = [AbortedTransaction(7, 0, 20, 10), AbortedTransaction(8, 30, 50, 51)]
    encoded = b"".join(struct.pack(">hqqqq", 0, *one) for one in aborted)
    log = make_log(batch_count=40)
    segment = archive_segment(store, PARTITION, log, sections={Section.TXN_INDEX: encoded})
    reader = make_reader(store, executor)

    def overlapping(start: int, end: int) -> list[AbortedTransaction]:
        return run(reader.aborted_transactions(segment.entry, start, end))

    assert overlapping(0, 160) == aborted
    assert overlapping(20, 30) == aborted[:1]
    assert overlapping(21, 31) == aborted[1:]
    assert overlapping(51, 160) == []
    assert store.count_requests("get", r"\.meta$") == 1


def test_a_segment_without_transactions_is_not_asked(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    store.requests.clear()
    assert run(make_reader(store, executor).aborted_transactions(segment.entry, 0, 99)) == []
    assert store.requests == []


# --- held back -------------------------------------------------------------------------------


class ScriptedPace:
    """Lets downloads begin while `is_open`; counts those under way."""

    def __init__(self) -> None:
        self.is_open = False
        self.asked = 0
        self.begun_bytes: list[int] = []
        self.under_way = 0

    def download_wait_s(self, now_s: float) -> float:
        self.asked += 1
        return 0.0 if self.is_open else 0.001

    def download_bytes_per_s(self, now_s: float) -> int:
        return 0

    def download_began(self, size_bytes: int, now_s: float) -> None:
        self.begun_bytes.append(size_bytes)
        self.under_way += 1

    def download_ended(self) -> None:
        self.under_way -= 1


def test_downloads_are_held_back_as_long_as_the_pace_says_and_then_come_whole(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    pace = ScriptedPace()
    reader = make_reader(store, executor, pace=pace)

    async def main() -> bytes:
        reading = asyncio.ensure_future(read_all(reader, [segment], bytes_max=6000))
        # It asks again and again, and nothing begins meanwhile: neither wanted nor guessed.
        await eventually(lambda: pace.asked >= 5)
        assert not pace.begun_bytes
        assert reader.statistics().waiting_reads_now == 1
        pace.is_open = True
        return await reading

    assert run(main()) == segment.log
    assert sum(pace.begun_bytes) == reader.statistics().downloaded_bytes > 0
    assert pace.under_way == 0


def test_a_failed_download_is_no_longer_under_way(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    pace = ScriptedPace()
    pace.is_open = True
    reader = make_reader(store, executor, pace=pace)
    store.delete([segment.entry.log_key])

    async def main() -> None:
        with pytest.raises(ObjectNotFound):
            await reader.read(segment.entry, 0, bytes_max=ALL_BYTES)

    run(main())
    assert pace.begun_bytes
    assert pace.under_way == 0


def test_closing_ends_the_wait_of_downloads_that_are_held_back(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    pace = ScriptedPace()
    reader = make_reader(store, executor, pace=pace)

    async def main() -> None:
        reading = asyncio.ensure_future(reader.read(segment.entry, 0, bytes_max=ALL_BYTES))
        await eventually(lambda: pace.asked >= 2)
        reader.close()
        with pytest.raises(TierUnavailable):
            await reading
        asked = pace.asked
        await asyncio.sleep(0.01)
        assert pace.asked == asked

    run(main())
