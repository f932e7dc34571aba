"""The queue of downloads, and the memory that they wait for."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.storage.concurrency.resizable_pool import ResizablePool
from strandline.storage.errors import ObjectCorrupt, TierUnavailable
from strandline.storage.remote.reader.chunk_cache import Chunk
from strandline.storage.remote.reader.disk_chunk_cache import DiskChunkCache
from strandline.storage.remote.reader.downloads import ChunkDownloads
from strandline.storage.remote.reader.prefetch_queue import Reader
from strandline.storage.remote.segment.index import ChunkKey
from tests.support.archived_segments import make_log
from tests.support.memory_store import MemoryStore

LOG = make_log(batch_count=1, records_per_batch=8, value_bytes=100)
WAIT_S_MAX = 60.0
WORKERS = 2


def _key(number: int) -> ChunkKey:
    return ChunkKey(f"{number}.log", 0, len(LOG))


async def _wanted(downloads: ChunkDownloads, number: int) -> Chunk:
    found = downloads.request(_key(number), base_offset=0)
    if isinstance(found, Chunk):
        return found
    async with asyncio.timeout(WAIT_S_MAX):
        return await asyncio.shield(found)


async def _workers_let_go(downloads: ChunkDownloads) -> None:
    """A worker has what it brought a moment longer than whoever asked for it: until its next job.

    This one needs all of them at the same time.
    """
    all_of_them = threading.Barrier(WORKERS)
    loop = asyncio.get_running_loop()
    jobs = [
        loop.run_in_executor(downloads._executor, all_of_them.wait, WAIT_S_MAX)
        for _ in range(WORKERS)
    ]
    await asyncio.gather(*jobs)


def _run(
    use: Callable[[ChunkDownloads], object], *, chunks_max: int, parallel_max: int = 4
) -> None:
    """`use` with downloads whose memory has room for so many chunks."""
    store = MemoryStore()
    for number in range(8):
        store.put(_key(number).log_key, LOG)

    async def main() -> None:
        with ThreadPoolExecutor(WORKERS) as pool:
            downloads = ChunkDownloads(
                store,
                pool,
                parallel_max=parallel_max,
                memory_bytes_max=chunks_max * len(LOG),
                disk=None,
            )
            try:
                await use(downloads)  # type: ignore[misc]
            finally:
                downloads.close()

    asyncio.run(main())


def test_memory_that_becomes_free_while_a_chunk_is_refused_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def use(downloads: ChunkDownloads) -> None:
        reserve = downloads.cache.reserve
        refused: list[int] = []

        def refuse_once(size_bytes: int, *, is_prefetch: bool, now_s: float) -> object:
            if refused:
                return reserve(size_bytes, is_prefetch=is_prefetch, now_s=now_s)
            refused.append(size_bytes)
            # What the collector may do at any time, in this thread too.
            downloads._memory_became_free()
            return None

        monkeypatch.setattr(downloads.cache, "reserve", refuse_once)
        await _wanted(downloads, 0)
        assert refused == [len(LOG)]

    _run(use, chunks_max=2)


def test_what_is_evicted_for_a_chunk_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(downloads: ChunkDownloads) -> None:
        await _wanted(downloads, 0)
        await _workers_let_go(downloads)
        gc.collect()
        freed: list[bool] = []
        became_free = downloads.cache._on_free

        def on_free() -> None:
            became_free()
            freed.append(downloads._is_pump_due)

        monkeypatch.setattr(downloads.cache, "_on_free", on_free)
        await _wanted(downloads, 1)
        assert downloads.cache.evicted_count == 1
        assert freed == [False]

    _run(use, chunks_max=1)


def test_a_chunk_waits_for_memory_that_a_reader_has() -> None:
    async def use(downloads: ChunkDownloads) -> None:
        chunk = await _wanted(downloads, 0)
        run = chunk.find_run(0, bytes_max=1, end_offset=None, at_least_one=True)
        assert run is not None
        view = downloads.take(chunk, run)
        waiting = asyncio.ensure_future(_wanted(downloads, 1))
        await asyncio.sleep(0)
        assert downloads.waiting_count == 1
        del chunk, view
        assert (await waiting).size_bytes == len(LOG)

    _run(use, chunks_max=1)


def test_one_worker_stays_free_of_guesses_for_what_is_wanted() -> None:
    async def use(downloads: ChunkDownloads) -> None:
        for number in range(6):
            downloads.prefetch(_key(number), Reader(), base_offset=0)
        assert downloads.running_count == 3
        # One that nobody guessed, and one that waits among the guesses.
        downloads.request(_key(6), base_offset=0)
        assert downloads.running_count == 4
        downloads.request(_key(5), base_offset=0)
        assert downloads.running_count == 4
        for number in range(7):
            await _wanted(downloads, number)
        assert downloads.counters.downloads == 7

    _run(use, chunks_max=8, parallel_max=4)


def test_who_was_refused_threads_is_told_and_downloads_again_when_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ulimit -u` reached for a while: more often than there may be downloads at a time."""
    store = MemoryStore()
    for number in range(4):
        store.put(_key(number).log_key, LOG)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        pool = ResizablePool(2, "tried")
        downloads = ChunkDownloads(
            store,
            pool,
            parallel_max=2,
            memory_bytes_max=4 * len(LOG),
            disk=DiskChunkCache(tmp_path, 4 * len(LOG)),
        )
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(2):
                refused = [_wanted(downloads, number) for number in range(3)]
                for outcome in await asyncio.gather(*refused, return_exceptions=True):
                    assert isinstance(outcome, TierUnavailable)
        assert (downloads.running_count, downloads.waiting_count) == (0, 0)
        for number in range(4):
            await _wanted(downloads, number)
        downloads.close()
        pool.shutdown()

    asyncio.run(main())


def test_memory_of_a_failed_download_is_free_without_a_garbage_collection() -> None:
    """Or readers wait behind a damaged object for memory that nobody has."""
    store = MemoryStore()
    store.put(_key(0).log_key, LOG[:-1])
    store.put(_key(1).log_key, LOG)

    async def main() -> None:
        pool = ResizablePool(WORKERS, "tried")
        downloads = ChunkDownloads(
            store, pool, parallel_max=WORKERS, memory_bytes_max=len(LOG), disk=None
        )
        failed = downloads.request(_key(0), base_offset=0)
        assert isinstance(failed, asyncio.Future)
        await asyncio.wait((failed,))
        assert isinstance(failed.exception(), ObjectCorrupt)
        await _wanted(downloads, 1)
        downloads.close()
        pool.shutdown()

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
