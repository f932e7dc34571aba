"""What a cold read says when the store fails, when objects are damaged, when the reader closes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.storage.errors import (
    AccessDenied,
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.reader import downloads
from strandline.storage.remote.reader.cold_reader import ColdRead
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.storage.remote.cold_reading import (
    archive,
    make_reader,
    read_all,
    run,
)


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
    assert reader.statistics().corrupt_chunks >= 1


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
