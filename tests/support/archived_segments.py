"""Segments as the copier leaves them in an object store, without a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import crc32c

from strandline.storage.model import EpochStart, TopicIdPartition
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.records.compression import Codec
from strandline.storage.remote.keys import new_unique, segment_keys
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import ChunkStatistics, Section, SegmentStatistics

BASE_TIMESTAMP_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedSegment:
    """A segment that lies in a store: its entry and the bytes of its log object."""

    entry: SegmentEntry
    log: bytes


def make_log(
    *,
    base_offset: int = 0,
    batch_count: int,
    records_per_batch: int = 4,
    value_bytes: int = 100,
    codec: Codec = Codec.NONE,
    leader_epoch: int = 0,
) -> bytes:
    """Batches with one record per offset and millisecond: offset n has timestamp BASE + n."""
    batches = bytearray()
    for number in range(batch_count):
        first = base_offset + number * records_per_batch
        batches += encode_batch(
            [
                Record(
                    offset=offset,
                    timestamp_ms=BASE_TIMESTAMP_MS + offset,
                    key=str(offset).encode(),
                    value=bytes([offset % 251]) * value_bytes,
                )
                for offset in range(first, first + records_per_batch)
            ],
            leader_epoch=leader_epoch,
            codec=codec,
        )
    return bytes(batches)


def make_statistics(log: bytes, *, piece_bytes: int) -> SegmentStatistics:
    """What inspection would find, with pieces of `piece_bytes`."""
    pieces: list[ChunkStatistics] = []
    times: list[int] = []
    record_count = batch_count = control_batch_count = 0
    piece_start, piece_base, piece_records, piece_times = 0, -1, 0, list[int]()

    def close_piece() -> None:
        pieces.append(
            ChunkStatistics(
                position=piece_start,
                base_offset=piece_base,
                record_count=piece_records,
                min_timestamp_ms=min(piece_times),
                max_timestamp_ms=max(piece_times),
            )
        )

    for found in walk(log):
        if found.position - piece_start >= piece_bytes:
            close_piece()
            piece_start, piece_base, piece_records, piece_times = found.position, -1, 0, []
        if piece_base < 0:
            piece_base = found.header.base_offset
        batch_times = [r.timestamp_ms for r in iter_records(log, found.header, found.position)]
        piece_times += batch_times
        times += batch_times
        piece_records += found.header.record_count
        record_count += found.header.record_count
        batch_count += 1
        control_batch_count += found.header.is_control
    close_piece()
    return SegmentStatistics(
        record_count=record_count,
        batch_count=batch_count,
        control_batch_count=control_batch_count,
        min_timestamp_ms=min(times),
        max_timestamp_ms=max(times),
        chunks=tuple(pieces),
    )


def archive_segment(
    store: ObjectStore,
    partition: TopicIdPartition,
    log: bytes,
    *,
    piece_bytes: int = segment_meta.STATISTICS_CHUNK_BYTES,
    sections: Mapping[Section, bytes] | None = None,
    leader_epochs: Sequence[EpochStart] = (EpochStart(0, 0),),
) -> ArchivedSegment:
    """Uploads `log` with its meta; nothing is committed to a manifest."""
    batches = list(walk(log))
    base_offset = batches[0].header.base_offset
    end_offset = batches[-1].header.next_offset
    statistics = make_statistics(log, piece_bytes=piece_bytes)
    meta = segment_meta.encode({Section.STATISTICS: statistics.encode(), **(sections or {})})
    keys = segment_keys(partition, base_offset=base_offset, leader_epoch=0, unique=new_unique())
    store.put(keys.log_key, log)
    store.put(keys.meta_key, meta)
    entry = SegmentEntry(
        base_offset=base_offset,
        end_offset=end_offset,
        leader_epochs=tuple(leader_epochs),
        size_bytes=len(log),
        record_count=statistics.record_count,
        min_timestamp_ms=statistics.min_timestamp_ms,
        max_timestamp_ms=statistics.max_timestamp_ms,
        log_key=keys.log_key,
        meta_key=keys.meta_key,
        log_crc32c=crc32c.crc32c(log),
        meta_size_bytes=len(meta),
        meta_crc32c=crc32c.crc32c(meta),
        has_transactions=Section.TXN_INDEX in (sections or {}),
        uploaded_ms=BASE_TIMESTAMP_MS,
    )
    return ArchivedSegment(entry=entry, log=log)
