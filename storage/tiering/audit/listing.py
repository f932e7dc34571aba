"""Lists the partitions and segments of an archive from the bucket alone: no broker, no data LIST.

    list_partitions   topics/ folders -> topic.json -> manifest.json      one row per partition
    list_segments     ... and the sealed pages                            one row per segment

A manifest or a `topic.json` that cannot be read is a row with a `problem`, not an exception, so
that the other partitions are listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from strandline.storage.concurrency.maps import map_ahead
from strandline.storage.errors import AccessDenied, StorageError, TierUnavailable
from strandline.storage.model import Epoch, Offset, TimestampMs, TopicIdPartition
from strandline.storage.remote.keys import topic_folder
from strandline.storage.remote.manifest.entries import PageRef, SegmentEntry
from strandline.storage.remote.manifest.store import (
    ManifestPages,
    StoredManifest,
    load,
    load_or_refuse,
)
from strandline.storage.remote.manifest.topic_info import DamagedTopic, TopicInfo, list_topics
from strandline.storage.remote.object_store.interface import ObjectStore

# Concurrent requests; a manifest is one of some 30 ms.
PARALLEL_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """One partition. Readable offsets are [log_start_offset, end_offset); bounds may be wide."""

    partition: TopicIdPartition
    topic_deleted_ms: TimestampMs | None
    segment_count: int = 0
    size_bytes: int = 0
    log_start_offset: Offset = 0
    first_offset: Offset = 0
    end_offset: Offset = 0
    min_timestamp_ms: TimestampMs | None = None
    max_timestamp_ms: TimestampMs | None = None
    # Marked for deletion, and not in the sizes above: segments and objects that they replaced.
    deleting_count: int = 0
    deleting_bytes: int = 0
    revision: int = 0
    leader_epoch: Epoch = 0
    problem: str = ""


def list_partitions(store: ObjectStore, *, topic: str | None = None) -> list[ArchivedPartition]:
    """Returns every archived partition, by topic and number; blocks.

    Raises AccessDenied or TierUnavailable if the bucket cannot be read at all.
    """
    damaged: list[DamagedTopic] = []
    with ThreadPoolExecutor(PARALLEL_MAX, "archive") as executor:
        infos = list_topics(store, topic=topic, executor=executor, damaged=damaged)
        wanted = [(info, number) for info in infos for number in range(info.partition_count)]
        try:
            rows = list(executor.map(lambda pair: _describe(store, *pair), wanted))
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    rows += [row for one in damaged for row in _undescribed(store, one)]
    return sorted(
        rows,
        key=lambda row: (row.partition.topic, row.partition.topic_id, row.partition.partition),
    )


def list_segments(
    store: ObjectStore, *, topic: str | None = None, partition: int | None = None
) -> Iterator[tuple[TopicIdPartition, SegmentEntry]]:
    """Yields every archived segment, by topic and partition, oldest first; blocks, lazily.

    Requests each topic and each manifest once, some manifests ahead. Raises StorageError if a
    manifest or page cannot be read.
    """
    pages = ManifestPages(store, pages_max=1)
    with ThreadPoolExecutor(PARALLEL_MAX, "archive") as executor:
        infos = list_topics(store, topic=topic, executor=executor)
        wanted = (
            (info, number)
            for info in sorted(infos, key=lambda info: info.topic)
            for number in range(info.partition_count)
            if partition in (None, number)
        )
        for stored in map_ahead(
            executor, lambda pair: _load(store, *pair), wanted, ahead_max=PARALLEL_MAX
        ):
            if stored is not None:
                key = stored.manifest.topic_id_partition
                for entry in pages.iter_segments(stored.manifest):
                    yield key, entry


def _undescribed(store: ObjectStore, damaged: DamagedTopic) -> Iterator[ArchivedPartition]:
    """Rows of a topic whose `topic.json` is damaged, by the folders of its partitions."""
    folder = damaged.folder
    names = store.list_folders(topic_folder(folder.topic, folder.topic_id))
    for number in sorted(int(name) for name in names if name.isdecimal()) or (0,):
        yield ArchivedPartition(
            partition=TopicIdPartition(folder.topic, folder.topic_id, number),
            topic_deleted_ms=None,
            problem=damaged.reason,
        )


def _load(store: ObjectStore, info: TopicInfo, number: int) -> StoredManifest | None:
    """Loads the manifest, which may be gone if the topic is being deleted."""
    partition = TopicIdPartition(info.topic, info.topic_id, number)
    return (load if info.is_deleted else load_or_refuse)(store, partition)


def _describe(store: ObjectStore, info: TopicInfo, number: int) -> ArchivedPartition:
    partition = TopicIdPartition(info.topic, info.topic_id, number)
    try:
        stored = _load(store, info, number)
    except (AccessDenied, TierUnavailable):
        raise
    except StorageError as error:
        return ArchivedPartition(
            partition=partition, topic_deleted_ms=info.deleted_ms, problem=str(error)
        )
    if stored is None:
        return ArchivedPartition(partition=partition, topic_deleted_ms=info.deleted_ms)
    manifest = stored.manifest
    parts: list[PageRef | SegmentEntry] = [*manifest.pages, *manifest.segments]
    return ArchivedPartition(
        partition=partition,
        topic_deleted_ms=info.deleted_ms,
        segment_count=manifest.segment_count,
        size_bytes=manifest.size_bytes,
        log_start_offset=manifest.log_start_offset,
        first_offset=manifest.first_offset,
        end_offset=manifest.end_offset,
        min_timestamp_ms=min((part.min_timestamp_ms for part in parts), default=None),
        max_timestamp_ms=max((part.max_timestamp_ms for part in parts), default=None),
        deleting_count=len(manifest.deleting),
        deleting_bytes=sum(mark.size_bytes for mark in manifest.deleting),
        revision=manifest.revision,
        leader_epoch=manifest.leader_epoch,
    )
