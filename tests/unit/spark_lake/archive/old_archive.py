"""An archive with segments of message formats 0 and 1, made as the copier does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from strandline.storage.model import EpochStart
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.remote import keys
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.object_store.interface import checksum
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.tiering.copy.inspection import inspect_segment
from strandline.storage.tiering.copy.segment_sections import sections_of
from strandline.storage.tiering.copy.segment_walk import Walk
from tests.support.old_formats import message_set
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder

RECORDS = 40
# So that the segment is large enough for its filter to be asked.
VALUE_BYTES = 20_000


def records(base_offset: int) -> list[Record]:
    source = random.Random(base_offset)
    return [
        Record(
            offset=offset,
            timestamp_ms=START_MS + offset,
            key=None if offset % 5 == 0 else b"key-%d" % offset,
            value=None if offset % 7 == 0 else source.randbytes(VALUE_BYTES),
        )
        for offset in range(base_offset, base_offset + RECORDS)
    ]


def old_and_new(magic: int, codec: int) -> Iterator[bytes]:
    """Old messages, and a batch of today behind them."""
    yield message_set(records(0), magic=magic, codec=codec)
    yield encode_batch(records(RECORDS), base_offset=RECORDS)


def archive_as_the_copier_does(archive: ArchiveBuilder, path: Path, walk: Walk) -> SegmentEntry:
    manifest = archive.manifest("t")
    facts = inspect_segment(path, base_offset=0, end_offset=2 * RECORDS, walk=walk)
    meta = segment_meta.encode(
        sections_of(facts, leader_epochs=(EpochStart(0, 0),), aborted=(), producer_snapshot=None)
    )
    names = keys.segment_keys(
        manifest.topic_id_partition, base_offset=0, leader_epoch=0, unique=keys.new_unique()
    )
    archive.store.put(names.log_key, path.read_bytes())
    archive.store.put(names.meta_key, meta)
    entry = SegmentEntry(
        base_offset=0,
        end_offset=facts.end_offset,
        leader_epochs=facts.leader_epochs,
        size_bytes=facts.size_bytes,
        record_count=facts.record_count,
        min_timestamp_ms=facts.bounds.min_ms,
        max_timestamp_ms=facts.bounds.max_ms,
        log_key=names.log_key,
        meta_key=names.meta_key,
        log_crc32c=facts.crc32c,
        meta_size_bytes=len(meta),
        meta_crc32c=checksum(meta),
        has_transactions=False,
        uploaded_ms=START_MS,
    )
    archive.save(manifest.with_segment(entry))
    return entry
