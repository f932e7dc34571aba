"""One chunk from the store into memory, from whoever has it at the least cost.

    disk cache ─► download process, or this thread in its place ─► the store itself, twice if its
                                                                   bytes are wrong

Where the download process is all that is needed, no thread is: `begin` asks it on the event loop,
and what is left to do after another answer than an index is `go_on`, in a worker again.

Ranged GETs carry no checksum, so a flipped bit on the way looks like one in the object: the second
download tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from strandline.storage.errors import CorruptRecords, ObjectCorrupt
from strandline.storage.model import Offset
from strandline.storage.remote.download.messages import NotDone
from strandline.storage.remote.download.process import DownloadProcess, Lost, OnAnswer
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.reader.chunk_cache import Block, Chunk, MemoryChunk
from strandline.storage.remote.reader.corruption_log import corruption_log
from strandline.storage.remote.reader.disk_chunk_cache import DiskChunkCache
from strandline.storage.remote.segment.batch_index import BatchIndex
from strandline.storage.remote.segment.index import ChunkKey

ProcessAnswer: TypeAlias = BatchIndex | NotDone | Lost


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
                corruption_log.tell(key, "disk cache", error)
                self._disk.remove(key)
        answer: ProcessAnswer | None = None
        if self._process is not None:
            answer = self._process.fetch(key, place.memory, base_offset=base_offset)
        fetched = self.accept(key, place, answer)
        if fetched is None:
            fetched = self.go_on(key, base_offset, place, answer)
        return replace(fetched, corrupt_count=fetched.corrupt_count + corrupt_count)

    def begin(self, key: ChunkKey, base_offset: Offset, place: object, on_answer: OnAnswer) -> bool:
        """Asks the process alone, on the event loop. False if that cannot be done now."""
        assert isinstance(place, Block), place
        return (
            self._process is not None
            and self._disk is None
            and self._process.begin_fetch(
                key, place.memory, base_offset=base_offset, on_answer=on_answer
            )
        )

    def accept(self, key: ChunkKey, place: object, answer: ProcessAnswer | None) -> Fetched | None:
        """The chunk that the process brought; None if it brought none. Does not block."""
        assert isinstance(place, Block), place
        if not isinstance(answer, BatchIndex):
            return None
        return Fetched(MemoryChunk(key, place.view, answer), view=place.view)

    def go_on(
        self, key: ChunkKey, base_offset: Offset, place: object, answer: ProcessAnswer | None
    ) -> Fetched:
        """The chunk from the store itself, after the process had `answer`. Raises as a call."""
        assert isinstance(place, Block), place
        block = place.view
        corrupt_count = count_and_log(key, "download", answer)
        for _ in range(2):
            self._store.get_into(key.log_key, block, start=key.position)
            try:
                chunk = MemoryChunk.check(key, block, base_offset=base_offset)
            except CorruptRecords as error:
                corrupt_count += 1
                corruption_log.tell(key, "download", error)
                # Not the error itself, which has this frame, and with it the place.
                last_error = str(error)
            else:
                return Fetched(chunk, corrupt_count=corrupt_count, view=block)
        detail = f"bytes [{key.position}, {key.end_position}) twice: {last_error}"
        raise ObjectCorrupt(key.log_key, "get", detail)


def count_and_log(key: ChunkKey, source: str, answer: ProcessAnswer | None) -> int:
    """1 if the process found wrong bytes. Sees a lost one to its end first; blocks for that."""
    if isinstance(answer, Lost):
        answer.bury()
    if not isinstance(answer, NotDone) or not answer.is_corrupt:
        return 0
    corruption_log.tell(key, source, CorruptRecords(answer.detail))
    return 1
