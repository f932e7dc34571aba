"""Reading archived segments: the same bytes, offsets, times and transactions."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.storage.errors import (
    AccessDenied,
    ObjectCorrupt,
    ObjectNotFound,
    TierUnavailable,
)
from strandline.storage.model import AbortedTransaction, TimestampOffset
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.compression import Codec
from strandline.storage.remote.reader import chunk_cache
from strandline.storage.remote.reader.cold_reader import ColdRead
from strandline.storage.remote.segment.meta import Section
from tests.support.archived_segments import (
    BASE_TIMESTAMP_MS,
    archive_segment,
    make_log,
)
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.storage.remote.cold_reading import (
    ALL_BYTES,
    PARTITION,
    archive,
    joined,
    make_reader,
    read_all,
    run,
)

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
    (only,) = walk(joined(found))
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


@pytest.mark.parametrize("number", [5, -1])
def test_an_offset_behind_what_its_chunk_may_hold_is_not_believed(
    store: MemoryStore, executor: ThreadPoolExecutor, number: int
) -> None:
    """It lies outside the checksum: a consumer would pass over all that is in between."""
    segment = archive(store)
    batches = list(walk(segment.log))
    reader = make_reader(store, executor, chunk_bytes=1 if number > 0 else 1 << 20)
    damaged = batches[number].position + 5

    def add_2_16(log: bytes) -> bytes:
        return log[:damaged] + bytes([log[damaged] + 1]) + log[damaged + 1 :]

    store.damage(segment.entry.log_key, add_2_16)
    with pytest.raises(ObjectCorrupt):
        run(read_all(reader, [segment], bytes_max=100_000))


def test_a_read_that_finds_no_memory_is_told_and_holds_up_nobody(
    store: MemoryStore, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = archive(store)
    reader = make_reader(store, executor)

    async def reads() -> None:
        async with asyncio.timeout(60):
            with monkeypatch.context() as patch:
                patch.setattr(chunk_cache, "map_memory", no_memory)
                for _ in range(2):
                    with pytest.raises(TierUnavailable, match="no memory"):
                        await reader.read(segment.entry, segment.entry.base_offset, bytes_max=100)
            assert await read_all(reader, [segment], bytes_max=1000) == segment.log

    def no_memory(_size_bytes: int) -> object:
        raise OSError(12, "Cannot allocate memory")

    run(reads())


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


def test_a_segment_that_was_replaced_is_not_told_as_a_damaged_one(
    store: MemoryStore, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower that knew an earlier manifest reads it, and asks for the newest."""
    segment = archive(store)
    store.delete([segment.entry.meta_key, segment.entry.log_key])
    with pytest.raises(ObjectNotFound):
        run(make_reader(store, executor).read(segment.entry, 0, bytes_max=500))
    assert caplog.messages == []


def test_a_denied_meta_is_denied_and_not_worked_around(
    store: MemoryStore, executor: ThreadPoolExecutor
) -> None:
    segment = archive(store)
    store.add_fault(Fault(operation="get", key_pattern=r"\.meta$", error=AccessDenied))
    with pytest.raises(AccessDenied):
        run(make_reader(store, executor).read(segment.entry, 0, bytes_max=500))


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
