"""Finds the first record of an archived segment at or after a time.

    index of the segment ─► ~1 MiB pieces with timestamps that reach it ─► one is read and searched

A piece is read from its chunk if that is in memory, and downloaded alone if not.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from strandline.storage.concurrency.tasks import result_of
from strandline.storage.errors import (
    CorruptRecords,
    ObjectCorrupt,
    UnsupportedCodec,
)
from strandline.storage.model import Offset, TimestampMs, TimestampOffset
from strandline.storage.records.batch.any_batch import iter_times, walk
from strandline.storage.records.batch.max_timestamp import newest_in
from strandline.storage.remote.reader.chunk_cache import Chunk
from strandline.storage.remote.reader.downloads import ChunkDownloads
from strandline.storage.remote.segment.index import ChunkKey, SegmentIndex


async def find_in_segment(
    index: SegmentIndex,
    downloads: ChunkDownloads,
    executor: Executor,
    timestamp_ms: TimestampMs,
    start_offset: Offset,
) -> TimestampOffset | None:
    """Returns the first record at or after both bounds; None if there is none. Raises TierError."""
    piece: int | None = index.piece_for(start_offset)
    while piece is not None and piece < index.piece_count:
        piece = index.find_piece_by_timestamp(timestamp_ms, first_piece=piece)
        if piece is None:
            return None
        chunk = await _chunk_with(index, piece, downloads)
        key = index.piece_key(piece)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                executor, _search, chunk, key, timestamp_ms, start_offset
            )
        except (CorruptRecords, UnsupportedCodec) as error:
            raise ObjectCorrupt(key.log_key, "get", str(error)) from error
        if found is not None:
            return found
        piece += 1
    return None


async def _chunk_with(index: SegmentIndex, piece: int, downloads: ChunkDownloads) -> Chunk:
    whole = downloads.find(index.chunk_key(index.chunk_of_piece(piece)))
    if whole is not None:
        return whole
    wanted = downloads.request(
        index.piece_key(piece),
        base_offset=index.piece_base_offset(piece),
        end_offset=index.piece_end_offset(piece),
    )
    return wanted if isinstance(wanted, Chunk) else await result_of(wanted)


def _search(
    chunk: Chunk, key: ChunkKey, timestamp_ms: TimestampMs, start_offset: Offset
) -> TimestampOffset | None:
    """Returns the first record at or after both bounds.

    The times of each batch are read: pieces and manifests have those of the records, and archives
    of earlier releases have batches whose headers say something else.
    """
    piece = chunk.piece(key.position, key.end_position)
    for found in walk(piece):
        header = found.header
        if header.next_offset <= start_offset:
            continue
        if newest_in(found.encoded(piece), header) < timestamp_ms:
            continue
        for offset, record_ms in iter_times(piece, header, found.position):
            if record_ms >= timestamp_ms and offset >= start_offset:
                return TimestampOffset(record_ms, offset, header.leader_epoch)
    return None
