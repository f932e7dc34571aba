"""Downloads each chunk once for all readers that wait for it, wanted chunks before prefetches.

    request(key) ─► cached? ─yes─► chunk
                      └─no─► under way? ─yes─► the same future
                                └─no─► queue ──pump──► executor: disk cache, or the store,
                                        ▲              twice if the bytes are corrupt
              a download ended, ────────┘                                │
              memory became free                  future ◄───────────────┘

All state belongs to the event loop's thread; only fetching and checking run in the executor. A
cancelled waiter does not cancel its download: the client fetches again and then finds the chunk.
A `DownloadPace` may delay the next download, wanted or prefetched.
Prefetches start only while workers and memory are to spare. They never evict a chunk that is still
in use, and fail silently; a read that wants one promotes it. Queued prefetches are dropped when
their consumers stop reading (`prefetch_queue`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Protocol

from strandline.storage.errors import (
    CorruptRecords,
    ObjectCorrupt,
    OutOfResources,
    TierError,
    TierUnavailable,
)
from strandline.storage.model import Offset
from strandline.storage.quiet_log import QuietLog, place_of
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.reader.chunk_cache import BatchRun, Chunk, ChunkCache
from strandline.storage.remote.reader.corruption_log import log_corrupt_chunk
from strandline.storage.remote.reader.disk_chunk_cache import DiskChunkCache
from strandline.storage.remote.reader.prefetch_queue import Download, PrefetchQueue, Reader
from strandline.storage.remote.segment.index import ChunkKey

log = logging.getLogger(__name__)

# Wanted chunks that wait for a worker or for memory. Each stands for at least one fetch request, so
# the fetches at the end of a longer queue would have timed out.
WAITING_MAX = 100
# Chunks on their way to the disk cache keep their memory; more than these are not written at all.
DISK_WRITES_MAX = 4
# Raised if a job cannot start for lack of threads or memory.
REFUSALS = (OutOfResources, RuntimeError, MemoryError)


@dataclass(slots=True, kw_only=True)
class DownloadCounters:
    """Counts since the start; owned by the event loop."""

    memory_hits: int = 0
    joined_downloads: int = 0
    disk_hits: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    prefetched_downloads: int = 0
    corrupt_chunks: int = 0
    failed_downloads: int = 0


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A checked chunk and its source."""

    chunk: Chunk
    corrupt_count: int = 0
    is_from_disk: bool = False


class DownloadPace(Protocol):
    """Decides when the next download may start. Times are those of the monotonic clock."""

    def download_wait_s(self, now_s: float) -> float:
        """0 if a download may start now; else the seconds until the next check."""
        ...

    def download_began(self, size_bytes: int, now_s: float) -> None: ...

    def download_ended(self) -> None: ...


class ChunkDownloads:
    """Queues, starts and shares the chunk downloads of one cold reader."""

    def __init__(
        self,
        store: ObjectStore,
        executor: Executor,
        *,
        parallel_max: int,
        memory_bytes_max: int,
        disk: DiskChunkCache | None,
        pace: DownloadPace | None = None,
    ) -> None:
        self.counters = DownloadCounters()
        self._quiet_log = QuietLog(log)
        self.cache = ChunkCache(memory_bytes_max, on_free=self._memory_became_free)
        self._store = store
        self._executor = executor
        self._parallel_max = parallel_max
        self._disk = disk
        self._pace = pace
        # Runs while `_pace` holds downloads back.
        self._pace_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wanted: OrderedDict[ChunkKey, Download] = OrderedDict()
        self._prefetches = PrefetchQueue()
        self._running: dict[ChunkKey, Download] = {}
        self._disk_writes = 0
        self._is_pump_due = False
        # The loop's thread while it reserves memory, and whether memory was freed in it meanwhile.
        self._reserving_thread = 0
        self._is_freed_meanwhile = False
        self._is_closed = False

    def resize(self, parallel_max: int) -> None:
        """Changes the number of parallel downloads; those under way continue."""
        self._parallel_max = parallel_max
        self._pump()

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        return len(self._wanted)

    def request(
        self, key: ChunkKey, *, base_offset: Offset, end_offset: Offset = -1
    ) -> Chunk | asyncio.Future[Chunk]:
        """Returns the chunk if it is in memory, else the future of its download.

        The chunk's first batch must begin with `base_offset`, and the last one not end behind
        `end_offset`. Await the future shielded: others may wait for it too. Raises TierUnavailable
        if too many wait already; the future may raise ObjectCorrupt, if two downloads had wrong
        CRCs, and as `ObjectStore.get_into`.
        """
        chunk = self.find(key)
        if chunk is not None:
            self.counters.memory_hits += 1
            return chunk
        return self._want(key, base_offset, end_offset).future

    def take(self, chunk: Chunk, run: BatchRun) -> memoryview:
        """Returns the bytes of `run`; queued downloads may start once the view is released."""
        return chunk.take(run, on_release=self._memory_became_free)

    def find(self, key: ChunkKey) -> Chunk | None:
        """Returns the chunk if it is in memory."""
        return self.cache.find(key, now_s=asyncio.get_running_loop().time())

    def prefetch(
        self, key: ChunkKey, reader: Reader, *, base_offset: Offset, end_offset: Offset = -1
    ) -> None:
        """Prefetches the chunk if workers and memory are to spare; returns at once.

        If the prefetch is dropped or fails, `reader.lost_prefetches` grows.
        """
        if self._is_closed or self.cache.peek(key):
            return
        download = self._find_download(key)
        if download is not None:
            if reader not in download.readers:
                download.readers.append(reader)
            return
        self.counters.prefetched_downloads += 1
        download = Download(key, base_offset, end_offset, self._new_future(), is_wanted=False)
        download.readers.append(reader)
        self._prefetches.add(download)
        self._pump()

    def close(self) -> None:
        """Fails queued downloads; running ones end by themselves and are dropped."""
        self._is_closed = True
        for download in [*self._wanted.values(), *self._prefetches.close()]:
            error = TierUnavailable(download.key.log_key, "get", "cold reads are shut down")
            _fail(download.future, error)
        self._wanted.clear()
        self.cache.clear()
        if self._pace_timer is not None:
            self._pace_timer.cancel()

    # --- queue -------------------------------------------------------------------------------

    def _find_download(self, key: ChunkKey) -> Download | None:
        return self._running.get(key) or self._wanted.get(key) or self._prefetches.find(key)

    def _want(self, key: ChunkKey, base_offset: Offset, end_offset: Offset) -> Download:
        if self._is_closed:
            raise TierUnavailable(key.log_key, "get", "cold reads are shut down")
        download = self._find_download(key)
        if download is None and len(self._wanted) >= WAITING_MAX:
            raise TierUnavailable(key.log_key, "get", f"{WAITING_MAX} cold reads are waiting")
        if download is None:
            download = Download(key, base_offset, end_offset, self._new_future(), is_wanted=True)
            self._wanted[key] = download
        else:
            self.counters.joined_downloads += 1
            download.is_wanted = True
            if self._prefetches.remove(key) is not None:
                self._wanted[key] = download
        self._pump()
        return download

    def _new_future(self) -> asyncio.Future[Chunk]:
        self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    def _pump(self) -> None:
        """Starts as many downloads as possible: wanted chunks first, then prefetches."""
        while self._wanted and len(self._running) < self._parallel_max:
            download = next(iter(self._wanted.values()))
            if not self._start(download, is_prefetch=False):
                return
            del self._wanted[download.key]
        # One worker stays free of prefetches, so a wanted chunk never waits for a whole prefetch.
        while not self._wanted and self._prefetches and len(self._running) < self._parallel_max - 1:
            download = self._prefetches.first()
            if not self._start(download, is_prefetch=True):
                return
            self._prefetches.remove(download.key)

    def _start(self, download: Download, *, is_prefetch: bool) -> bool:
        assert self._loop is not None
        if self._is_held_back(self._loop):
            return False
        key = download.key
        try:
            block = self._reserve(key.size_bytes, is_prefetch, self._loop.time())
        except (OSError, MemoryError, OverflowError) as error:
            # Fails the waiters, or they and all queued behind them would wait for ever.
            self._fail_unstarted(download, f"no memory for {key.size_bytes} bytes: {error}")
            return True
        if block is None:
            return False
        self._running[key] = download
        if self._pace is not None:
            self._pace.download_began(key.size_bytes, self._loop.time())
        self._fetch_in_worker(download, block)
        return True

    def _fail_unstarted(self, download: Download, reason: str) -> None:
        """Fails a download before its start, wanted or prefetched."""
        self.counters.failed_downloads += 1
        download.lose()
        _fail(download.future, TierUnavailable(download.key.log_key, "get", reason))

    def _reserve(self, size_bytes: int, is_prefetch: bool, now_s: float) -> memoryview | None:
        """Reserves `size_bytes`. Its evictions schedule no other pump if it succeeds."""
        self._reserving_thread = get_ident()
        try:
            block = self.cache.reserve(size_bytes, is_prefetch=is_prefetch, now_s=now_s)
        finally:
            self._reserving_thread = 0
            is_freed, self._is_freed_meanwhile = self._is_freed_meanwhile, False
        if block is None and is_freed:
            self._memory_became_free()
        return block

    def _is_held_back(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Returns whether the pace delays all downloads; if so, the pump is scheduled for later."""
        if self._pace is None:
            return False
        if self._pace_timer is None:
            wait_s = self._pace.download_wait_s(loop.time())
            if wait_s <= 0:
                return False
            self._pace_timer = loop.call_later(wait_s, self._end_pace_wait)
        return True

    def _end_pace_wait(self) -> None:
        self._pace_timer = None
        self._pump()

    def _fetch_in_worker(self, download: Download, block: memoryview) -> None:
        def done(fetching: asyncio.Future[_Fetched]) -> None:
            error = None if fetching.cancelled() else fetching.exception()
            if fetching.cancelled():
                error = TierUnavailable(download.key.log_key, "get", "the download was cancelled")
            self._finish(download, error or fetching.result())

        assert self._loop is not None
        fetch = partial(_fetch, self._store, self._disk, download.key, download.base_offset, block)
        try:
            fetching = self._loop.run_in_executor(self._executor, fetch)
        except REFUSALS as error:
            # Deferred: the caller relies on the download being under way.
            refused = TierUnavailable(download.key.log_key, "get", f"no thread for it: {error}")
            self._loop.call_soon(self._finish, download, refused)
        else:
            fetching.add_done_callback(done)

    def _finish(self, download: Download, result: _Fetched | BaseException) -> None:
        del self._running[download.key]
        if self._pace is not None:
            self._pace.download_ended()
        if isinstance(result, _Fetched):
            self._accept(download, result)
        else:
            self.counters.failed_downloads += 1
            # Corrupt twice. What the second download fixed is counted when it is accepted.
            self.counters.corrupt_chunks += isinstance(result, ObjectCorrupt)
            download.lose()
            if isinstance(result, TierError):
                _forget_frames(result)
            _fail(download.future, result)
        self._pump()

    def _accept(self, download: Download, fetched: _Fetched) -> None:
        self.counters.corrupt_chunks += fetched.corrupt_count
        if fetched.is_from_disk:
            self.counters.disk_hits += 1
        else:
            self.counters.downloads += 1
            self.counters.downloaded_bytes += fetched.chunk.size_bytes
        if self._is_closed:
            _fail(download.future, TierUnavailable(download.key.log_key, "get", "shut down"))
            return
        if 0 <= download.end_offset < fetched.chunk.end_offset:
            # Offsets lie outside the checksums; the segment's index and manifest entry are trusted.
            self.counters.corrupt_chunks += 1
            detail = f"ends at offset {fetched.chunk.end_offset}, not by {download.end_offset}"
            _fail(download.future, ObjectCorrupt(download.key.log_key, "get", detail))
            return
        assert self._loop is not None
        self.cache.add(fetched.chunk, now_s=self._loop.time())
        if not download.future.done():
            download.future.set_result(fetched.chunk)
        if not fetched.is_from_disk:
            self._keep_on_disk(fetched.chunk)

    def _memory_became_free(self) -> None:
        """Called in any thread that releases a view, or the last reference to a block."""
        loop = self._loop
        if loop is None or self._is_pump_due or not (self._wanted or self._prefetches):
            return
        if self._reserving_thread == get_ident():
            self._is_freed_meanwhile = True
            return
        self._is_pump_due = True
        try:
            loop.call_soon_threadsafe(self._pump_again)
        except RuntimeError:  # the loop is closed: no read is waiting
            return

    def _pump_again(self) -> None:
        # First, so that memory freed from here on schedules another turn.
        self._is_pump_due = False
        self._pump()

    # --- disk --------------------------------------------------------------------------------

    def _keep_on_disk(self, chunk: Chunk) -> None:
        if self._disk is None or self._disk_writes >= DISK_WRITES_MAX:
            return
        assert self._loop is not None
        try:
            writing = self._loop.run_in_executor(
                self._executor, self._disk.store, chunk.key, chunk.content
            )
        except REFUSALS:
            return
        self._disk_writes += 1
        writing.add_done_callback(self._disk_write_ended)

    def _disk_write_ended(self, done: asyncio.Future[None]) -> None:
        self._disk_writes -= 1
        if not done.cancelled() and (error := done.exception()) is not None:
            self._quiet_log.say(
                logging.ERROR,
                "chunk was not kept on disk",
                place_of(error),
                {"error": repr(error)},
            )


def _fetch(
    store: ObjectStore,
    disk: DiskChunkCache | None,
    key: ChunkKey,
    base_offset: Offset,
    block: memoryview,
) -> _Fetched:
    """Fetches a chunk into `block` and checks it. Blocks.

    Ranged GETs carry no checksum, so a flipped bit on the way looks like one in the object: a
    second download tells them apart. Raises ObjectCorrupt if two downloads had wrong CRCs, and as
    `ObjectStore.get_into`.
    """
    corrupt_count = 0
    if disk is not None and disk.load(key, block):
        try:
            chunk = Chunk(key, block, base_offset=base_offset)
            return _Fetched(chunk, is_from_disk=True)
        except CorruptRecords as error:
            corrupt_count += 1
            log_corrupt_chunk(key, "disk cache", error)
            disk.remove(key)
    for _ in range(2):
        store.get_into(key.log_key, block, start=key.position)
        try:
            chunk = Chunk(key, block, base_offset=base_offset)
        except CorruptRecords as error:
            corrupt_count += 1
            log_corrupt_chunk(key, "download", error)
            # Keeps the text only: the error holds this frame, and with it the block.
            last_error = str(error)
        else:
            return _Fetched(chunk, corrupt_count=corrupt_count)
    detail = f"bytes [{key.position}, {key.end_position}) twice: {last_error}"
    raise ObjectCorrupt(key.log_key, "get", detail)


def _fail(future: asyncio.Future[Chunk], error: BaseException) -> None:
    if future.done():
        return
    future.set_exception(error)
    # A prefetch's future may have no waiter; the loop would log its exception as unretrieved.
    future.exception()


def _forget_frames(error: BaseException) -> None:
    """Clears the error's traceback: its frames hold the chunk's block, and a waiter's frame is in a
    cycle with the error, so the memory would stay reserved until the next collection.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
