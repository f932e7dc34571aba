"""Chunks of a store whose objects are local files: checked, then sent from the file itself.

    fetch(key) ─► descriptor of the object's file ─► every batch read and checked ─► index
    take(run)  ─► FileRange of that descriptor, which goes out by `sendfile`

An object is written once, so a checked range needs no copy in memory: the page cache has it. The
check applies to the descriptor's file. The file may be deleted or replaced, and readers keep the
old one until its descriptor is closed; a file that was changed or truncated in place is checked
again before more of it is sent. Each response tests for that. A check is valid for CHECKED_S: after
longer, the pages may have been evicted, and would be read from the disk again instead of being
those that were checked.

A file found corrupt is reopened first: an operator may have restored a good copy in its place.

The bound is the one of chunks in memory, though only indexes lie there: checked bytes that are not
sent yet should still be in the page cache.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable

from strandline.storage.errors import CorruptRecords, ObjectCorrupt, TierUnavailable
from strandline.storage.files import FileRange, OpenFile
from strandline.storage.model import Offset, Position
from strandline.storage.remote.object_store.object_files import KeepsFiles
from strandline.storage.remote.reader.chunk_cache import BatchRun, Chunk, ChunkCache
from strandline.storage.remote.reader.chunk_fetch import Fetched
from strandline.storage.remote.reader.corruption_log import log_corrupt_chunk
from strandline.storage.remote.reader.file_check import check_file
from strandline.storage.remote.segment.batch_index import BatchIndex
from strandline.storage.remote.segment.index import ChunkKey

# Open descriptors. Twice the number of partitions in a sizeable rewind.
FILES_MAX = 256
# A deleted file takes its space as long as it is open.
IDLE_S = 60.0
CHECKED_S = 60.0


class ObjectFile:
    """An open object file with its identity and state at the time of opening."""

    __slots__ = ("_identity", "file", "last_used_s")

    def __init__(self, file: OpenFile) -> None:
        """Raises OSError."""
        self.file = file
        self.last_used_s = 0.0
        self._identity = _identity(file)

    @property
    def is_unchanged(self) -> bool:
        """Whether the file was not written to since. It may have been deleted."""
        try:
            return _identity(self.file) == self._identity
        except OSError:
            return False

    def is_same(self, other: ObjectFile) -> bool:
        """Whether both are one file in the same state at the time of opening."""
        return self._identity == other._identity


def _identity(file: OpenFile) -> tuple[int, int, int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class ChunkReservation:
    """Reserves bytes of the bound; they are free once it is collected."""

    __slots__ = ("__weakref__", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class FileChunk(Chunk):
    """A chunk whose bytes lie in a file."""

    __slots__ = ("_room", "checked_s", "opened")

    def __init__(
        self, key: ChunkKey, index: BatchIndex, opened: ObjectFile, room: ChunkReservation
    ) -> None:
        super().__init__(key, index)
        self.opened = opened
        self.checked_s = 0.0
        self._room = room

    def take(self, run: BatchRun, *, on_release: Callable[[], None] | None = None) -> FileRange:
        """Pins nothing: the range keeps the descriptor, and the bytes are not in our memory."""
        del on_release
        self.is_used_up |= run.end_position == self.size_bytes
        return FileRange(self.opened.file, self.key.position + run.position, run.size_bytes)

    def piece(self, position: Position, end_position: Position) -> memoryview:
        return memoryview(self.opened.file.read_at(position, end_position - position))


class FileChunks(ChunkCache):
    """Cache of checked chunks and open files. Owned by one thread, except `opened`."""

    def __init__(self, bytes_max: int, *, on_free: Callable[[], None]) -> None:
        super().__init__(bytes_max, on_free=on_free)
        self._freed_bytes: deque[int] = deque()
        self._files: OrderedDict[str, ObjectFile] = OrderedDict()

    def opened(self, log_key: str) -> ObjectFile | None:
        """The object's file if it is open. Thread-safe."""
        return self._files.get(log_key)

    def reserve(
        self, size_bytes: int, *, is_prefetch: bool, now_s: float
    ) -> ChunkReservation | None:
        """Reserves space for a chunk; None if there is none now."""
        if not self._make_room(size_bytes, is_prefetch=is_prefetch, now_s=now_s):
            return None
        room = ChunkReservation(size_bytes)
        self._live_bytes += size_bytes
        weakref.finalize(room, self._release, size_bytes).atexit = False
        return room

    def find(self, key: ChunkKey, *, now_s: float) -> Chunk | None:
        """The chunk if its file is unchanged since a recent check."""
        chunk = super().find(key, now_s=now_s)
        if chunk is None:
            return None
        assert isinstance(chunk, FileChunk), chunk
        if not chunk.opened.is_unchanged:
            self._close(key.log_key)
            return None
        if now_s - chunk.checked_s > CHECKED_S:
            del self._chunks[key]
            return None
        chunk.opened.last_used_s = now_s
        return chunk

    def add(self, chunk: Chunk, *, now_s: float) -> None:
        assert isinstance(chunk, FileChunk), chunk
        log_key = chunk.key.log_key
        known = self._files.get(log_key)
        if known is not None and known.is_same(chunk.opened):
            # Two of its chunks were checked at once: one descriptor is enough.
            chunk.opened = known
        elif known is not None:
            self._close(log_key)
        chunk.checked_s = chunk.opened.last_used_s = now_s
        self._files[log_key] = chunk.opened
        self._files.move_to_end(log_key)
        super().add(chunk, now_s=now_s)
        while len(self._files) > FILES_MAX:
            self._close(next(iter(self._files)))

    def close_idle(self, now_s: float) -> bool:
        """Closes files without a recent read; returns whether any stay open."""
        for log_key in [
            log_key
            for log_key, opened in self._files.items()
            if now_s - opened.last_used_s >= IDLE_S
        ]:
            self._close(log_key)
        return bool(self._files)

    def clear(self) -> None:
        super().clear()
        self._files.clear()

    def _close(self, log_key: str) -> None:
        """Drops the file and its checked chunks. Responses under way keep the descriptor."""
        self._files.pop(log_key, None)
        for key in [key for key in self._chunks if key.log_key == log_key]:
            del self._chunks[key]

    def _release(self, size_bytes: int) -> None:
        self._freed_bytes.append(size_bytes)
        self._on_free()

    def _collect(self) -> None:
        while self._freed_bytes:
            self._live_bytes -= self._freed_bytes.popleft()


def fetch_in_file(
    store: KeepsFiles, chunks: FileChunks, key: ChunkKey, base_offset: Offset, place: object
) -> Fetched:
    """Opens the object's file and checks a chunk of it, in a worker thread.

    Raises ObjectNotFound, AccessDenied, TierUnavailable or ObjectCorrupt.
    """
    assert isinstance(place, ChunkReservation), place
    opened = chunks.opened(key.log_key)
    if opened is None or not opened.is_unchanged:
        opened = _open(store, key)
    corrupt_count = 0
    for _ in range(2):
        try:
            index = check_file(
                opened.file.fileno(), key.position, key.size_bytes, base_offset=base_offset
            )
        except CorruptRecords as error:
            corrupt_count += 1
            log_corrupt_chunk(key, "file", error)
            # Keeps the text only: the error holds this frame, and with it the place.
            last_error = str(error)
            opened = _open(store, key)
        except OSError as error:
            kind = ObjectCorrupt if error.errno == errno.EIO else TierUnavailable
            raise kind(key.log_key, "get", str(error)) from error
        else:
            return Fetched(FileChunk(key, index, opened, place), corrupt_count=corrupt_count)
    detail = f"bytes [{key.position}, {key.end_position}) twice: {last_error}"
    raise ObjectCorrupt(key.log_key, "get", detail)


def _open(store: KeepsFiles, key: ChunkKey) -> ObjectFile:
    opened = store.open_file(key.log_key)
    try:
        return ObjectFile(opened)
    except OSError as error:
        raise TierUnavailable(key.log_key, "get", str(error)) from error
