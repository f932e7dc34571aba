"""Archived segments, a reader of them, and reading as a consumer does, from offset to offset."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.reader.cold_reader import ColdRead, ColdReader
from strandline.storage.remote.reader.config import ColdReaderConfig
from strandline.storage.remote.reader.downloads import DownloadPace
from tests.support.archived_segments import ArchivedSegment, archive_segment, make_log
from tests.support.memory_store import MemoryStore
from tests.unit.storage.remote.manifests import PARTITION

T = TypeVar("T")

ALL_BYTES = 10**9
WAIT_S_MAX = 60.0


def archive(
    store: MemoryStore, *, base_offset: int = 0, batch_count: int = 40, **more: Any
) -> ArchivedSegment:
    """A segment of `batch_count` batches of 4 records, in pieces of two batches."""
    log = make_log(base_offset=base_offset, batch_count=batch_count, **more)
    return archive_segment(store, PARTITION, log, piece_bytes=2 * len(log) // batch_count)


def make_reader(
    store: ObjectStore,
    executor: Executor,
    *,
    read_ahead_chunks: int = 4,
    pace: DownloadPace | None = None,
    **config: Any,
) -> ColdReader:
    """Chunks of about ten batches."""
    return ColdReader(
        store,
        executor,
        ColdReaderConfig(**{"chunk_bytes": 6000, "memory_bytes_max": 60_000, **config}),
        read_ahead_chunks=read_ahead_chunks,
        pace=pace,
    )


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
    return b"".join(found.buffers)
