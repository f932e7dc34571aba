"""The bound on indexes of remote segments in memory."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.storage.remote.reader.cold_reader import ColdReader
from strandline.storage.remote.reader.config import ColdReaderConfig
from strandline.storage.remote.segment.index_cache import IndexCache
from tests.support.archived_segments import ArchivedSegment, archive_segment, make_log
from tests.support.memory_store import MemoryStore
from tests.unit.storage.remote.manifests import PARTITION

BATCHES = 40


@pytest.fixture
def segments() -> list[ArchivedSegment]:
    made = []
    for number in range(12):
        log = make_log(base_offset=number * BATCHES * 4, batch_count=BATCHES)
        made.append(archive_segment(STORE, PARTITION, log, piece_bytes=2 * len(log) // BATCHES))
    return made


STORE = MemoryStore()


async def read_each(reader: ColdReader, segments: list[ArchivedSegment]) -> None:
    for segment in segments:
        found = await reader.read(segment.entry, segment.entry.base_offset, bytes_max=1)
        assert found.size_bytes > 0
        await reader.aborted_transactions(
            segment.entry, segment.entry.base_offset, segment.entry.end_offset
        )


def test_the_least_used_indexes_go_when_the_bound_is_reached(
    segments: list[ArchivedSegment], executor: ThreadPoolExecutor
) -> None:
    bytes_max = 6_000
    reader = ColdReader(
        STORE, executor, ColdReaderConfig(index_bytes_max=bytes_max), read_ahead_chunks=0
    )
    asyncio.run(read_each(reader, segments))
    found = reader.statistics()
    assert 0 < found.index_bytes_now <= bytes_max
    assert found.evicted_indexes > 0
    assert found.indexes_now + found.evicted_indexes == len(segments)


def test_a_lower_bound_holds_at_once_and_a_higher_one_keeps_what_it_can(
    segments: list[ArchivedSegment], executor: ThreadPoolExecutor
) -> None:
    reader = ColdReader(STORE, executor, read_ahead_chunks=0)

    async def use() -> None:
        await read_each(reader, segments)
        assert reader.statistics().evicted_indexes == 0
        reader.resize(ColdReaderConfig(index_bytes_max=3_000))
        assert 0 < reader.statistics().index_bytes_now <= 3_000
        reader.resize(ColdReaderConfig(index_bytes_max=1_000_000))
        await read_each(reader, segments)
        assert reader.statistics().indexes_now == len(segments)

    asyncio.run(use())


def test_what_was_used_last_stays() -> None:
    cache = IndexCache(bytes_max=30)
    for name in "abc":
        cache.keep(("batches", name), name, 10)
    assert cache.find(("batches", "a"), used=True) == "a"
    assert cache.find(("batches", "b"), used=False) == "b"
    cache.keep(("batches", "d"), "d", 10)
    assert [cache.find(("batches", name), used=False) for name in "abcd"] == ["a", None, "c", "d"]
    cache.keep(("batches", "e"), "e", 31)
    assert cache.find(("batches", "e"), used=False) is None, "larger than the bound"
    assert len(cache) == 3


def test_their_number_is_bounded_too() -> None:
    cache = IndexCache(bytes_max=1000, count_max=2)
    for name in "abc":
        cache.keep(("batches", name), name, 1)
    assert len(cache) == 2
    assert cache.evicted_count == 1
