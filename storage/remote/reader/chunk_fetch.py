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
from strandline.storage.remote.reader.chunk_cache import Chunk
from strandline.storage.remote.reader.corruption_log import log_corrupt_chunk
from strandline.storage.remote.reader.disk_chunk_cache import DiskChunkCache
from strandline.storage.remote.segment.index import ChunkKey


@dataclass(frozen=True, slots=True)
class Fetched:
    """A checked chunk and its source; the disk cache may keep `view`."""

    chunk: Chunk
    corrupt_count: int = 0
    is_from_disk: bool = False
    view: memoryview | None = None


def fetch_chunk(
    store: ObjectStore,
    disk: DiskChunkCache | None,
    key: ChunkKey,
    base_offset: Offset,
    block: memoryview,
) -> Fetched:
    """Fetches a chunk into `block` and checks it. Blocks.

    Raises ObjectCorrupt if two downloads had wrong CRCs, and as `ObjectStore.get_into`.
    """
    corrupt_count = 0
    if disk is not None and disk.load(key, block):
        try:
            chunk = Chunk(key, block, base_offset=base_offset)
            return Fetched(chunk, is_from_disk=True)
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
            return Fetched(chunk, corrupt_count=corrupt_count, view=block)
    detail = f"bytes [{key.position}, {key.end_position}) twice: {last_error}"
    raise ObjectCorrupt(key.log_key, "get", detail)
