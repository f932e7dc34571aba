"""Reads the index of an archived segment, or rebuilds it from the log object. Blocking.

A `.meta` only caches values computed from the log. So if it is corrupt or missing, the index is
rebuilt, by one walk over the batch headers of the whole object. That is slow and is logged, but an
archive with intact batches stays readable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    ObjectCorrupt,
    ObjectNotFound,
    UnsupportedFormat,
)
from strandline.storage.model import AbortedTransaction
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.any_batch import walk_file
from strandline.storage.records.batch.batch import Batch
from strandline.storage.records.txn_index import decode_entries
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.object_store.interface import GetsRanges
from strandline.storage.remote.segment.index import SegmentIndex
from strandline.storage.remote.segment.meta import (
    STATISTICS_CHUNK_BYTES,
    ChunkStatistics,
    Section,
    SegmentStatistics,
    read_section,
)

log = logging.getLogger(__name__)

# Readers drop indexes that are not in use, and load them again.
_quiet_log = QuietLog(log)

# Headers are walked in blocks of this size.
WALK_BYTES = 8 * 1024 * 1024


def load_index(store: GetsRanges, entry: SegmentEntry, *, chunk_bytes: int) -> SegmentIndex:
    """Returns the index of `entry`'s log object, cut into chunks of `chunk_bytes`.

    Raises ObjectCorrupt if not even the log object can be walked, and as `ObjectStore.get`.
    """
    build = partial(
        SegmentIndex.build,
        entry.log_key,
        entry.size_bytes,
        chunk_bytes=chunk_bytes,
        end_offset=entry.end_offset,
    )
    try:
        encoded = read_section(store, entry.meta_key, entry.meta_size_bytes, Section.STATISTICS)
        if encoded is None:
            raise CorruptFile(f"{entry.meta_key}: has no statistics")
        return build(pieces=SegmentStatistics.decode(encoded, source=entry.meta_key).chunks)
    except (CorruptFile, UnsupportedFormat, ObjectCorrupt, ObjectNotFound) as error:
        reason = str(error)
    try:
        index = build(pieces=tuple(_walk(store, entry)))
    except CorruptFile as error:
        raise ObjectCorrupt(entry.log_key, "get", str(error)) from error
    # Not before: if the log object is gone too, both were replaced.
    _quiet_log.say(
        logging.WARNING,
        "segment index unusable, walking the log object",
        entry.meta_key,
        {"key": entry.meta_key, "error": reason},
    )
    return index


def load_txn_index(store: GetsRanges, entry: SegmentEntry) -> tuple[AbortedTransaction, ...]:
    """Aborted transactions with records or a marker in it. Raises ObjectCorrupt, or as `get`."""
    encoded = read_section(store, entry.meta_key, entry.meta_size_bytes, Section.TXN_INDEX)
    if encoded is None:
        return ()
    try:
        return decode_entries(encoded, source=entry.meta_key)
    except CorruptFile as error:
        raise ObjectCorrupt(entry.meta_key, "get", str(error)) from error


def _walk(store: GetsRanges, entry: SegmentEntry) -> Iterator[ChunkStatistics]:
    """Yields pieces of about 1 MiB, as the copier cuts them; times are from batch headers."""
    piece: list[Batch] = []
    for batch in _walk_batches(store, entry):
        if piece and batch.position - piece[0].position >= STATISTICS_CHUNK_BYTES:
            yield _piece_of(piece)
            piece = []
        piece.append(batch)
    if piece:
        yield _piece_of(piece)


def _piece_of(batches: Sequence[Batch]) -> ChunkStatistics:
    headers = [batch.header for batch in batches]
    return ChunkStatistics(
        position=batches[0].position,
        base_offset=headers[0].base_offset,
        record_count=sum(header.record_count for header in headers),
        min_timestamp_ms=min(header.base_timestamp_ms for header in headers),
        max_timestamp_ms=max(header.max_timestamp_ms for header in headers),
    )


def _walk_batches(store: GetsRanges, entry: SegmentEntry) -> Iterator[Batch]:
    position = 0
    try:
        for batch in walk_file(
            lambda start, length: store.get(entry.log_key, start=start, end=start + length),
            0,
            entry.size_bytes,
            window_bytes=WALK_BYTES,
        ):
            yield batch
            position = batch.end_position
    except CorruptRecords as error:
        raise ObjectCorrupt(entry.log_key, "get", f"at {position}: {error}") from error
