"""Reading archived segments: the same bytes, each downloaded once, within bounds."""

from __future__ import annotations

import asyncio
import struct
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
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
WAIT_S_MAX = 10.0


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
    for number, segment in enumerate(segments):
        offset = segment.entry.base_offset
        following = [later.entry for later in segments[number + 1 :]]
        while offset < segment.entry.end_offset:
            found = await reader.read(
                segment.entry, offset, bytes_max=bytes_max, next_entries=following
            )
            assert found.next_offset > offset
            assert found.size_bytes == sum(map(len, found.buffers))
            received += b"".join(found.buffers)
            offset = found.next_offset
            if offset > segment.entry.end_offset:
                break
        # A read may go on into the following segments.
        while following and following[0].end_offset <= offset:
            following.pop(0)
        if offset > segment.entry.end_offset:
            rest = [later for later in segments if later.entry.end_offset > offset]
            if rest:
                position = _position_of(rest[0].log, offset)
                cut = ArchivedSegment(entry=rest[0].entry, log=rest[0].log[position:])
                received += await _read_rest(reader, rest[0], offset, bytes_max)
                received += await read_all(reader, rest[1:], bytes_max=bytes_max)
                del cut
            return bytes(received)
    return bytes(received)


async def _read_rest(
    reader: ColdReader, segment: ArchivedSegment, offset: int, bytes_max: int
) -> bytes:
    received = bytearray()
    while offset < segment.entry.end_offset:
        found = await reader.read(segment.entry, offset, bytes_max=bytes_max)
        received += b"".join(found.buffers)
        offset = found.next_offset
    return bytes(received)


def _position_of(log: bytes, offset: int) -> int:
    return next(b.position for b in iter_batches(log) if b.header.next_offset > offset)
