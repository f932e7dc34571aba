"""Fetches one chunk from the store into memory.

    disk cache ─► the store, twice if its bytes are corrupt

Ranged GETs carry no checksum, so a flipped bit on the way looks like one in the object: the second
download tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage.errors import CorruptRecords, ObjectCorrupt
from strandline.storage.model import Offset
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.reader.chunk_cache import Block, Chunk, MemoryChunk
from strandline.storage.remote.reader.corruption_log import corruption_log
from strandline.storage.remote.reader.disk_chunk_cache import DiskChunkCache
from strandline.storage.remote.segment.index import ChunkKey


@dataclass(frozen=True, slots=True)
class Fetched:
    """A checked chunk and its source; the disk cache may keep `view`."""

    chunk: Chunk
    corrupt_count: int = 0
    is_from_disk: bool = False
    view: memoryview | None = None


class MemoryFetch:
    """Fetches a chunk into a block of memory and checks it. Blocks."""

    def __init__(self, store: ObjectStore, disk: DiskChunkCache | None) -> None:
        self._store = store
        self._disk = disk

    def __call__(self, key: ChunkKey, base_offset: Offset, place: object) -> Fetched:
        """Returns the chunk, in the block `place`.

        Raises ObjectCorrupt if two downloads had wrong CRCs, and as `ObjectStore.get_into`.
        """
        assert isinstance(place, Block), place
        block = place.view
        corrupt_count = 0
        if self._disk is not None and self._disk.load(key, block):
            try:
                chunk = MemoryChunk.check(key, block, base_offset=base_offset)
                return Fetched(chunk, is_from_disk=True)
            except CorruptRecords as error:
                corrupt_count += 1
                corruption_log.tell(key, "disk cache", error)
                self._disk.remove(key)
        for _ in range(2):
            self._store.get_into(key.log_key, block, start=key.position)
            try:
                chunk = MemoryChunk.check(key, block, base_offset=base_offset)
            except CorruptRecords as error:
                corrupt_count += 1
                corruption_log.tell(key, "download", error)
                # Keeps the text only: the error holds this frame, and with it the place.
                last_error = str(error)
            else:
                return Fetched(chunk, corrupt_count=corrupt_count, view=block)
        detail = f"bytes [{key.position}, {key.end_position}) twice: {last_error}"
        raise ObjectCorrupt(key.log_key, "get", detail)
