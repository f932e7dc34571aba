"""Cold reads of a store in a local folder: sent from the object's file, and never unchecked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from strandline.storage.clock import ManualClock
from strandline.storage.errors import AccessDenied, ObjectCorrupt, ObjectNotFound
from strandline.storage.files import FileRange
from strandline.storage.model import Offset, TimestampOffset
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.remote.object_store.memory import MemoryStore
from strandline.storage.remote.object_store.read_only import ReadOnlyStore
from strandline.storage.remote.reader import file_chunks
from strandline.storage.remote.reader.chunk_cache import Chunk
from strandline.storage.remote.reader.chunk_fetch import Fetched
from strandline.storage.remote.reader.cold_reader import ColdRead, ColdReader
from strandline.storage.remote.reader.file_chunks import (
    CHECKED_S,
    IDLE_S,
    FileChunks,
    fetch_in_file,
)
from strandline.storage.remote.segment.batch_index import index_batches
from strandline.storage.remote.segment.index import ChunkKey
from tests.support.archived_segments import (
    BASE_TIMESTAMP_MS,
    ArchivedSegment,
    archive_segment,
    make_log,
)
from tests.unit.storage.remote.cold_reading import (
    ALL_BYTES,
    PARTITION,
    eventually,
    joined,
    make_reader,
    read_all,
    run,
)

Fetch: TypeAlias = Callable[[ChunkKey, Offset, object], Fetched]

# Chunks of about ten batches, as in cold_reading.
CHUNK_BYTES = 6000


class Folder:
    """A store in a folder, and what lies in it."""

    def __init__(self, path: Path) -> None:
        self.store = LocalDirectoryStore(path, clock=ManualClock())
        self.path = path
        self.executor = ThreadPoolExecutor(4)

    def archive(self, *, base_offset: int = 0, batch_count: int = 40) -> ArchivedSegment:
        log = make_log(base_offset=base_offset, batch_count=batch_count)
        return archive_segment(self.store, PARTITION, log, piece_bytes=2 * len(log) // batch_count)

    def reader(self, store: Any = None, **more: Any) -> ColdReader:
        return make_reader(store or self.store, self.executor, **more)

    def file_of(self, segment: ArchivedSegment) -> Path:
        return self.path / segment.entry.log_key

    def open_count(self) -> int:
        """Descriptors of this process that name something in the folder."""
        count = 0
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # another thread has closed it
                count += str(link.readlink()).startswith(f"{self.path}/")
        return count


def checked(folder: Folder) -> tuple[FileChunks, Fetch]:
    """Without a loop."""
    chunks = FileChunks(10**6, on_free=lambda: None)
    return chunks, partial(fetch_in_file, folder.store, chunks)


def fetched(chunks: FileChunks, fetch: Fetch, key: ChunkKey, *, base_offset: int = 0) -> Chunk:
    room = chunks.reserve(key.size_bytes, is_prefetch=False, now_s=0)
    return fetch(key, base_offset, room).chunk


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "bucket")
    yield made
    made.executor.shutdown()


def on_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(work())


async def read(reader: ColdReader, segment: ArchivedSegment, offset: int = 0) -> ColdRead:
    return await reader.read(segment.entry, offset, bytes_max=1)


# --- the same bytes --------------------------------------------------------------------------


def test_a_consumer_receives_the_file_itself(folder: Folder) -> None:
    segments = [folder.archive(), folder.archive(base_offset=160, batch_count=7)]
    reader = folder.reader()

    async def consume() -> None:
        assert await read_all(reader, segments) == b"".join(s.log for s in segments)
        assert await read_all(reader, segments, bytes_max=1) == b"".join(s.log for s in segments)
        found = await reader.read(segments[0].entry, 0, bytes_max=ALL_BYTES)
        assert all(isinstance(part, FileRange) for part in found.buffers)
        (first,) = {part.file for part in found.buffers if isinstance(part, FileRange)}
        assert first.path.samefile(folder.file_of(segments[0]))
        await eventually(lambda: not reader.statistics().running_downloads_now)

    on_loop(consume)
    # A worker has its last chunk, and the file with it, a moment longer than whoever asked for it.
    folder.executor.shutdown()
    assert reader.statistics().corrupt_chunks == 0
    assert folder.open_count() == len(segments), "one descriptor for each file, however many chunks"
    reader.close()
    assert folder.open_count() == 0


def test_a_replica_that_writes_nothing_receives_the_file_too(folder: Folder) -> None:
    segment = folder.archive()
    reader = folder.reader(ReadOnlyStore(folder.store))

    async def consume() -> None:
        found = await read(reader, segment)
        assert isinstance(found.buffers[0], FileRange)

    on_loop(consume)
    assert not ReadOnlyStore(MemoryStore()).opens_files


def test_whoever_asks_for_a_disk_cache_reads_through_it(folder: Folder, tmp_path: Path) -> None:
    segment = folder.archive()
    reader = folder.reader(disk_bytes_max=10**6, disk_directory=tmp_path / "cache")

    async def consume() -> None:
        assert isinstance((await read(reader, segment)).buffers[0], memoryview)

    on_loop(consume)


def test_a_time_is_found_in_the_file(folder: Folder) -> None:
    segment = folder.archive()
    reader = folder.reader()

    async def look() -> None:
        for _ in range(2):  # of a piece, then of a chunk
            found = await reader.find_timestamp(segment.entry, BASE_TIMESTAMP_MS)
            assert found == TimestampOffset(BASE_TIMESTAMP_MS, 0, found.leader_epoch)
            await read(reader, segment)

    on_loop(look)


# --- files that are not what they were -------------------------------------------------------


def test_a_file_that_is_not_there_is_missing(folder: Folder) -> None:
    segment = folder.archive()
    folder.file_of(segment).unlink()
    reader = folder.reader()

    async def look() -> None:
        with pytest.raises(ObjectNotFound):
            await read(reader, segment)

    on_loop(look)


def test_a_file_that_may_not_be_read_is_denied(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = folder.archive()
    reader = folder.reader()

    def denied(key: str) -> None:
        raise AccessDenied(key, "get", "not yours")

    async def look() -> None:
        monkeypatch.setattr(folder.store, "open_file", denied)
        with pytest.raises(AccessDenied):
            await read(reader, segment)

    on_loop(look)


def test_a_deleted_file_is_readable_as_long_as_it_is_open(folder: Folder) -> None:
    segment = folder.archive()
    reader = folder.reader()

    async def consume() -> None:
        first = await read(reader, segment)
        folder.file_of(segment).unlink()
        assert await read_all(reader, [segment]) == segment.log
        assert joined(first) == segment.log[: first.size_bytes]

    on_loop(consume)


def test_a_replaced_file_is_the_old_one_until_it_is_closed_and_then_checked_anew(
    folder: Folder,
) -> None:
    segment = folder.archive()
    reader = folder.reader()
    other = folder.path / "other"
    other.write_bytes(bytes(len(segment.log)))

    async def consume() -> None:
        await read(reader, segment)
        other.rename(folder.file_of(segment))
        assert await read_all(reader, [segment]) == segment.log
        reader.close()
        with pytest.raises(ObjectCorrupt):
            await read(folder.reader(), segment)

    on_loop(consume)


@pytest.mark.parametrize("change", ["cut off", "written to"])
def test_a_file_changed_where_it_lies_is_an_error_and_good_again_when_mended(
    folder: Folder, change: str
) -> None:
    segment = folder.archive()
    path = folder.file_of(segment)
    reader = folder.reader()

    async def consume() -> None:
        await read(reader, segment)
        if change == "cut off":
            os.truncate(path, 500)
        else:
            with open(path, "r+b") as file:
                file.seek(300)
                file.write(b"x")
            status = path.stat()
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10_000_000))
        with pytest.raises(ObjectCorrupt, match="500" if change == "cut off" else "CRC"):
            await read(reader, segment)
        with pytest.raises(ObjectCorrupt):
            await read(reader, segment)
        mended = path.with_name("mended")
        mended.write_bytes(segment.log)
        mended.rename(path)
        assert await read_all(reader, [segment]) == segment.log

    on_loop(consume)
    assert reader.statistics().failed_downloads == 2


def test_only_the_damaged_chunk_is_refused(folder: Folder) -> None:
    segment = folder.archive()
    with open(folder.file_of(segment), "r+b") as file:
        file.seek(len(segment.log) - 10)
        file.write(b"\xff\xff")
    reader = folder.reader()

    async def consume() -> None:
        assert (await read(reader, segment)).buffers
        with pytest.raises(ObjectCorrupt):
            await read(reader, segment, segment.entry.end_offset - 1)

    on_loop(consume)


def test_a_check_does_not_hold_for_ever(folder: Folder) -> None:
    """A disk that returns other bytes tells nobody; the times of the file stay as they were."""
    segment = folder.archive()
    path = folder.file_of(segment)
    status = path.stat()
    chunks, fetch = checked(folder)
    key = ChunkKey(segment.entry.log_key, 0, len(segment.log))
    chunks.add(fetched(chunks, fetch, key), now_s=0)
    with open(path, "r+b") as file:
        file.seek(300)
        file.write(b"x")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert chunks.find(key, now_s=CHECKED_S) is not None
    assert chunks.find(key, now_s=CHECKED_S + 1) is None
    with pytest.raises(ObjectCorrupt):
        fetched(chunks, fetch, key)


# --- bounds ----------------------------------------------------------------------------------


def test_open_files_are_bounded_and_the_least_used_is_closed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_chunks, "FILES_MAX", 3)
    segments = [folder.archive(base_offset=1000 * n) for n in range(8)]
    reader = folder.reader()

    async def consume() -> None:
        for segment in segments:
            found = await read(reader, segment, segment.entry.base_offset)
            assert found.size_bytes
            del found
            await eventually(lambda: folder.open_count() <= 3)
        for segment in segments[:2]:
            found = await reader.read(segment.entry, segment.entry.base_offset, bytes_max=1)
            assert joined(found) == segment.log[: found.size_bytes]

    on_loop(consume)


def test_chunks_that_are_checked_at_once_share_a_descriptor(folder: Folder) -> None:
    segment = folder.archive()
    chunks, fetch = checked(folder)
    index = index_batches(memoryview(segment.log), 0)
    middle = index.positions[20]
    keys = [
        ChunkKey(segment.entry.log_key, 0, middle),
        ChunkKey(segment.entry.log_key, middle, len(segment.log)),
    ]
    found = [fetched(chunks, fetch, keys[0])]
    found.append(fetched(chunks, fetch, keys[1], base_offset=index.base_offsets[20]))
    assert folder.open_count() == 2
    for chunk in found:
        chunks.add(chunk, now_s=0)
    del found, chunk
    assert folder.open_count() == 1
    assert all(chunks.find(key, now_s=0) for key in keys)


def test_what_nobody_reads_is_closed_so_that_deleted_files_give_their_space_back(
    folder: Folder,
) -> None:
    segment = folder.archive()
    chunks, fetch = checked(folder)
    key = ChunkKey(segment.entry.log_key, 0, len(segment.log))
    chunks.add(fetched(chunks, fetch, key), now_s=0)
    assert chunks.find(key, now_s=1) is not None
    assert chunks.close_idle(1 + IDLE_S - 0.1)
    assert folder.open_count() == 1
    assert not chunks.close_idle(1 + IDLE_S)
    assert folder.open_count() == 0
    assert chunks.find(key, now_s=2) is None
    assert chunks.live_bytes == 0


def test_checked_chunks_stay_within_the_bound(folder: Folder) -> None:
    segment = folder.archive(batch_count=200)
    reader = folder.reader(memory_bytes_max=3 * CHUNK_BYTES)

    async def consume() -> None:
        for _ in range(2):
            assert await read_all(reader, [segment], bytes_max=1500) == segment.log
            assert reader.statistics().live_bytes_now <= 3 * CHUNK_BYTES

    on_loop(consume)
    assert reader.statistics().evicted_chunks > 0
