"""Manifest: what one commit, and opening, cost with few and with many archived segments."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.tiers.rig import SEGMENT_BYTES, TOPIC, Figure
from strandline.storage.model import EpochStart, TopicIdPartition
from strandline.storage.remote.keys import new_unique, segment_keys
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from tests.support.memory_store import MemoryStore


def run_manifest(counts_of_segments: Sequence[int] = (100, 100_000)) -> Iterator[Figure]:
    """Commits to, and loads from, a store in memory: what is left is our own work."""
    commits, opens = [], []
    for count in counts_of_segments:
        store = MemoryStore()
        partition = TopicIdPartition(TOPIC, uuid.uuid4(), 0)
        stored = manifest_store.commit(
            store, None, Manifest(topic=TOPIC, topic_id=partition.topic_id, partition=0)
        )
        # In large commits, which seal pages as they go.
        step = 400
        for first in range(0, count, step):
            manifest = stored.manifest
            for number in range(first, min(first + step, count)):
                manifest = manifest.with_segment(_entry(partition, number))
            stored = manifest_store.commit(store, stored, manifest, now_ms=0)
            stored = replace(stored, manifest=replace(stored.manifest, deleting=()))
        commit_ms, open_ms = [], []
        # As many as there are between two pages that are sealed.
        for number in range(count, count + manifest_store.PAGE_ENTRIES):
            started_s = time.perf_counter()
            new = replace(stored.manifest.with_segment(_entry(partition, number)), deleting=())
            stored = manifest_store.commit(store, stored, new, now_ms=0)
            commit_ms.append(1000 * (time.perf_counter() - started_s))
            started_s = time.perf_counter()
            assert manifest_store.load(store, partition) is not None
            open_ms.append(1000 * (time.perf_counter() - started_s))
        commits.append(statistics.median(commit_ms))
        opens.append(statistics.median(open_ms))
        name = f"{count:,} segments"
        yield Figure(part="manifest", name=f"commit, {name}", value=commits[-1], unit="ms")
        yield Figure(
            part="manifest", name=f"open, {name}", value=opens[-1], unit="ms", goal="< 200"
        )
    yield Figure(
        part="manifest",
        name="commit, many / few segments",
        value=commits[-1] / commits[0],
        unit="",
        goal="about 1",
    )


def _entry(partition: TopicIdPartition, number: int) -> SegmentEntry:
    base_offset = number * 1000
    names = segment_keys(partition, base_offset=base_offset, leader_epoch=0, unique=new_unique())
    return SegmentEntry(
        base_offset=base_offset,
        end_offset=base_offset + 1000,
        leader_epochs=(EpochStart(0, base_offset),),
        size_bytes=SEGMENT_BYTES,
        record_count=1000,
        min_timestamp_ms=base_offset,
        max_timestamp_ms=base_offset + 999,
        log_key=names.log_key,
        meta_key=names.meta_key,
        log_crc32c=1,
        meta_size_bytes=4096,
        meta_crc32c=2,
        has_transactions=False,
        uploaded_ms=base_offset,
    )
