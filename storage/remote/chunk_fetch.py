"""One chunk from the store into memory: in a worker thread, from whoever has it at the least cost.

    disk cache ─► download process ─► the store itself, twice if its bytes are wrong

Ranged GETs carry no checksum, so a flipped bit on the way looks like one in the object: the second
download tells them apart.
"""

from __future__ import annotations

import logging

from strandline.storage.errors import CorruptRecords, ObjectCorrupt
from strandline.storage.model import Offset
from strandline.storage.remote.batch_index import BatchIndex
from strandline.storage.remote.chunk_cache import Block, Chunk, MemoryChunk
from strandline.storage.remote.disk_chunk_cache import DiskChunkCache
from strandline.storage.remote.download_messages import NotDone
from strandline.storage.remote.download_process import DownloadProcess
from strandline.storage.remote.object_store import ObjectStore
from strandline.storage.remote.segment_index import ChunkKey
from strandline.storage.values import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A checked chunk and how it came here. `view` is what the disk cache may keep of it."""

    chunk: Chunk
    corrupt_count: int = 0
    is_from_disk: bool = False
    view: memoryview | None = None


class MemoryFetch:
    """Fills a block of memory and checks it; see the top of this file. Blocks."""

    def __init__(
        self, store: ObjectStore, process: DownloadProcess | None, disk: DiskChunkCache | None
    ) -> None:
        self._store = store
        self._process = process
        self._disk = disk

    def __call__(self, key: ChunkKey, base_offset: Offset, place: object) -> Fetched:
        """The chunk, in the block `place`.

        Raises ObjectCorrupt, if two downloads had wrong CRCs, and what `ObjectStore.get_into`
        raises.
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
                log_corrupt(key, "disk cache", error)
                self._disk.remove(key)
        if self._process is not None:
            found = self._process.fetch(key, place.memory, base_offset=base_offset)
            if isinstance(found, BatchIndex):
                chunk = MemoryChunk(key, block, found)
                return Fetched(chunk, corrupt_count=corrupt_count, view=block)
            if isinstance(found, NotDone) and found.is_corrupt:
                corrupt_count += 1
                log_corrupt(key, "download", CorruptRecords(found.detail))
        for _ in range(2):
            self._store.get_into(key.log_key, block, start=key.position)
            try:
                chunk = MemoryChunk.check(key, block, base_offset=base_offset)
            except CorruptRecords as error:
                corrupt_count += 1
                log_corrupt(key, "download", error)
                last_error = error
            else:
                return Fetched(chunk, corrupt_count=corrupt_count, view=block)
        detail = f"bytes [{key.position}, {key.end_position}) twice: {last_error}"
        raise ObjectCorrupt(key.log_key, "get", detail)


def log_corrupt(key: ChunkKey, source: str, error: CorruptRecords) -> None:
    """Says which chunk was wrong, and where it was found so."""
    log.warning(
        "chunk has wrong checksum",
        extra={
            "fields": {
                "key": key.log_key,
                "position": key.position,
                "source": source,
                "error": str(error),
            }
        },
    )
