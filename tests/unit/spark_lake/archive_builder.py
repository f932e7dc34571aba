"""Small archives in a local folder, written with the modules that the broker writes them with."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import crc32c

from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.query.query import Query
from strandline.storage.model import AbortedTransaction, EpochStart, TopicIdPartition
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import Batch
from strandline.storage.records.batch.record import Header, Record, encode_batch, iter_records
from strandline.storage.records.columns.key_filter import KeyFilterBuilder
from strandline.storage.records.compression import Codec
from strandline.storage.remote import keys
from strandline.storage.remote.manifest.cluster_info import ClusterInfo
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.remote.manifest.page import encode_page, page_ref
from strandline.storage.remote.manifest.topic_info import TopicInfo
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.open_store import open_store
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import ChunkStatistics, Section, SegmentStatistics

START_MS = 1_700_000_000_000


@dataclass
class ArchivedTopic:
    """A topic under construction; `archive` writes its manifests at once."""

    info: TopicInfo
    manifests: dict[int, Manifest] = field(default_factory=dict)


class ArchiveBuilder:
    """`path` is the folder, `url` what a query is given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"file://{path}"
        self.store: ObjectStore = open_store(self.url)
        self.topics: dict[str, ArchivedTopic] = {}
        self.store.put(keys.CLUSTER_KEY, ClusterInfo(cluster_id="a" * 22).encode())

    def add_topic(
        self, topic: str, *, partitions: int = 1, deleted_ms: int | None = None
    ) -> TopicInfo:
        info = TopicInfo(
            topic=topic, topic_id=uuid.uuid4(), partition_count=partitions, deleted_ms=deleted_ms
        )
        self.store.put(info.key, info.encode())
        if deleted_ms is None:
            self.topics[topic] = ArchivedTopic(info)
        return info

    def manifest(self, topic: str, partition: int = 0) -> Manifest:
        known = self.topics[topic]
        return known.manifests.get(partition) or Manifest(
            topic=topic, topic_id=known.info.topic_id, partition=partition
        )

    def save(self, manifest: Manifest) -> None:
        self.topics[manifest.topic].manifests[manifest.partition] = manifest
        self.store.put(keys.manifest_key(manifest.topic_id_partition), manifest.encode())

    def add_segment(
        self,
        topic: str,
        batches: Sequence[bytes],
        *,
        partition: int = 0,
        chunk_bytes: int = 1 << 20,
        aborted: Sequence[AbortedTransaction] = (),
        key_filter: bool = True,
        leader_epoch: int = 0,
    ) -> SegmentEntry:
        """Appends one segment of these encoded batches to the partition's archive."""
        manifest = self.manifest(topic, partition)
        log = b"".join(batches)
        statistics = segment_statistics(log, chunk_bytes)
        headers = [batch.header for batch in walk(log)]
        names = keys.segment_keys(
            manifest.topic_id_partition,
            base_offset=headers[0].base_offset,
            leader_epoch=leader_epoch,
            unique=keys.new_unique(),
        )
        sections = {Section.STATISTICS: statistics.encode()}
        if key_filter:
            builder = KeyFilterBuilder()
            for batch in walk(log):
                for record in _records(log, batch):
                    if record.key is not None:
                        builder.add(bytes(record.key))
            made = builder.finish()
            assert made is not None
            sections[Section.KEY_FILTER] = made.encode()
        if aborted:
            sections[Section.TXN_INDEX] = b"".join(
                struct.pack(">hqqqq", 0, *transaction) for transaction in aborted
            )
        meta = segment_meta.encode(sections)
        self.store.put(names.log_key, log)
        self.store.put(names.meta_key, meta)
        entry = SegmentEntry(
            base_offset=headers[0].base_offset,
            end_offset=headers[-1].next_offset,
            leader_epochs=(EpochStart(leader_epoch, headers[0].base_offset),),
            size_bytes=len(log),
            record_count=statistics.record_count,
            min_timestamp_ms=statistics.min_timestamp_ms,
            max_timestamp_ms=statistics.max_timestamp_ms,
            log_key=names.log_key,
            meta_key=names.meta_key,
            log_crc32c=crc32c.crc32c(log),
            meta_size_bytes=len(meta),
            meta_crc32c=crc32c.crc32c(meta),
            has_transactions=any(header.is_transactional for header in headers),
            uploaded_ms=START_MS,
        )
        self.save(replace(manifest, revision=manifest.revision + 1).with_segment(entry))
        return entry

    def add_piece(
        self, topic: str, batches: Sequence[bytes], *, partition: int = 0, is_told: bool = True
    ) -> TailPart:
        """Appends a piece of the open segment; not `is_told`: as of an old message format."""
        manifest = self.manifest(topic, partition)
        content = b"".join(batches)
        headers = [batch.header for batch in walk(content)]
        names = manifest.topic_id_partition, headers[0].base_offset, keys.new_unique()
        part = TailPart(
            base_offset=headers[0].base_offset,
            end_offset=headers[-1].next_offset,
            position=manifest.tail[-1].end_position if manifest.tail else 0,
            size_bytes=len(content),
            key=keys.tail_key(names[0], base_offset=names[1], leader_epoch=0, unique=names[2]),
            crc32c=crc32c.crc32c(content),
            uploaded_ms=START_MS,
            record_count=sum(header.record_count for header in headers) if is_told else None,
            has_transactions=any(h.is_transactional for h in headers) if is_told else None,
        )
        self.store.put(part.key, content)
        self.save(
            replace(manifest, revision=manifest.revision + 1).with_tail(
                (*manifest.tail, part), marked_ms=START_MS
            )
        )
        return part

    def seal_page(self, topic: str, count: int, *, partition: int = 0) -> None:
        """Moves the oldest `count` entries of the root into a page."""
        manifest = self.manifest(topic, partition)
        entries = manifest.segments[:count]
        content = encode_page(manifest.topic_id_partition, entries)
        key = keys.manifest_page_key(
            manifest.topic_id_partition,
            base_offset=entries[0].base_offset,
            end_offset=entries[-1].end_offset,
            unique=keys.new_unique(),
        )
        self.store.put(key, content)
        self.save(manifest.with_sealed_page(page_ref(key, entries, crc32c=crc32c.crc32c(content))))

    def move_log_start(self, topic: str, offset: int, *, partition: int = 0) -> None:
        self.save(replace(self.manifest(topic, partition), log_start_offset=offset))

    def archived_so(
        self, topic: str, entry: SegmentEntry, log: bytes, *, partition: int = 0
    ) -> None:
        """As if the log of a segment had been these bytes, as long, when it was archived."""
        assert len(log) == entry.size_bytes
        manifest = self.manifest(topic, partition)
        sections = segment_meta.decode(self.object_path(entry.meta_key).read_bytes())
        statistics = SegmentStatistics.decode(sections[Section.STATISTICS])
        changed_statistics = replace(statistics, chunks=_with_checksums(statistics.chunks, log))
        meta = segment_meta.encode({**sections, Section.STATISTICS: changed_statistics.encode()})
        changed = replace(
            entry,
            log_crc32c=crc32c.crc32c(log),
            meta_size_bytes=len(meta),
            meta_crc32c=crc32c.crc32c(meta),
        )
        segments = tuple(changed if one == entry else one for one in manifest.segments)
        self.save(replace(manifest, segments=segments))
        self.object_path(entry.log_key).write_bytes(log)
        self.object_path(entry.meta_key).write_bytes(meta)

    def object_path(self, key: str) -> Path:
        return self.path / key

    def partition_id(self, topic: str, partition: int = 0) -> TopicIdPartition:
        return self.manifest(topic, partition).topic_id_partition


def _records(log: bytes, batch: Batch) -> Iterator[Record]:
    """Of what compaction emptied not even the codec is asked."""
    if batch.header.record_count:
        yield from iter_records(log, batch.header, batch.position)


def segment_statistics(log: bytes, chunk_bytes: int) -> SegmentStatistics:
    """Statistics found the slow way."""
    chunks: list[ChunkStatistics] = []
    batch_count = control_batch_count = 0
    for batch in walk(log):
        times = [record.timestamp_ms for record in _records(log, batch)]
        batch_count += 1
        control_batch_count += batch.header.is_control
        if not chunks or batch.position - chunks[-1].position >= chunk_bytes:
            chunks.append(
                ChunkStatistics(
                    position=batch.position,
                    base_offset=batch.header.base_offset,
                    record_count=len(times),
                    min_timestamp_ms=min(times),
                    max_timestamp_ms=max(times),
                )
            )
        else:
            chunks[-1] = replace(
                chunks[-1],
                record_count=chunks[-1].record_count + len(times),
                min_timestamp_ms=min([chunks[-1].min_timestamp_ms, *times]),
                max_timestamp_ms=max([chunks[-1].max_timestamp_ms, *times]),
            )
    return SegmentStatistics(
        record_count=sum(chunk.record_count for chunk in chunks),
        batch_count=batch_count,
        control_batch_count=control_batch_count,
        min_timestamp_ms=min(chunk.min_timestamp_ms for chunk in chunks),
        max_timestamp_ms=max(chunk.max_timestamp_ms for chunk in chunks),
        chunks=_with_checksums(chunks, log),
    )


def _with_checksums(chunks: Sequence[ChunkStatistics], log: bytes) -> tuple[ChunkStatistics, ...]:
    ends = [*(chunk.position for chunk in chunks[1:]), len(log)]
    return tuple(
        replace(chunk, crc32c=crc32c.crc32c(log[chunk.position : end]))
        for chunk, end in zip(chunks, ends, strict=True)
    )


def make_records(
    count: int,
    *,
    base_offset: int = 0,
    value_bytes: int = 20,
    seed: int = 7,
    step_ms: int = 1000,
    headers: bool = False,
) -> list[Record]:
    """Records with nulls, empty values and (every third) headers; a second apart."""
    source = random.Random(seed * 1_000_003 + base_offset)
    return [
        Record(
            offset=offset,
            timestamp_ms=START_MS + offset * step_ms,
            key=None if offset % 5 == 0 else f"key-{offset}".encode(),
            value=None if offset % 7 == 3 else source.randbytes(value_bytes if offset % 11 else 0),
            headers=(Header("trace", source.randbytes(4)), Header("empty", None))
            if headers and offset % 3 == 0
            else (),
        )
        for offset in range(base_offset, base_offset + count)
    ]


def make_batches(
    records: Sequence[Record], *, per_batch: int = 10, codec: Codec = Codec.NONE
) -> list[bytes]:
    return [
        encode_batch(records[start : start + per_batch], codec=codec)
        for start in range(0, len(records), per_batch)
    ]


def read_offsets(query: Query, plan: ScanPlan) -> list[int]:
    """The offsets that the tasks of a query with the column `offset` read."""
    return [
        offset
        for split in plan.splits
        for batch in query.read(split, query.open())
        for offset in batch.column("offset").to_pylist()
    ]
