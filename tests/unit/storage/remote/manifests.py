"""Builders of manifests and their entries."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.storage.model import EpochStart, TopicIdPartition
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart

TOPIC_ID = uuid.UUID("00000000-0000-4000-8000-00000000002a")
PARTITION = TopicIdPartition("orders", TOPIC_ID, 0)
EMPTY = Manifest(topic="orders", topic_id=TOPIC_ID, partition=0)
FOLDER = f"topics/orders-{TOPIC_ID}/0/"
PAGE = f"{FOLDER}manifest/page.json"
RECORDS = 10


def entry(
    base_offset: int, end_offset: int, *, time_ms: int = 0, size_bytes: int = 100
) -> SegmentEntry:
    """A segment whose objects do not exist; its records are from `time_ms` to 9 ms later."""
    return SegmentEntry(
        base_offset=base_offset,
        end_offset=end_offset,
        leader_epochs=(EpochStart(1, 0), EpochStart(4, base_offset)),
        size_bytes=size_bytes,
        record_count=end_offset - base_offset,
        min_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms + 9,
        log_key=f"{FOLDER}{base_offset}.log",
        meta_key=f"{FOLDER}{base_offset}.meta",
        log_crc32c=0xDEADBEEF,
        meta_size_bytes=10,
        meta_crc32c=1,
        has_transactions=False,
        uploaded_ms=7,
    )


def manifest_of(sizes: Sequence[int]) -> Manifest:
    """Adjacent segments of these sizes, with ten offsets each."""
    manifest = EMPTY
    for base_offset, size_bytes in zip(range(0, RECORDS * len(sizes), RECORDS), sizes, strict=True):
        manifest = manifest.with_segment(
            entry(base_offset, base_offset + RECORDS, size_bytes=size_bytes)
        )
    return manifest


def keys_of(base_offset: int) -> tuple[str, str]:
    return f"{FOLDER}{base_offset}.log", f"{FOLDER}{base_offset}.meta"


def with_segments(*ranges: tuple[int, int], log_start: int = 0) -> Manifest:
    manifest = EMPTY.with_log_start(log_start)
    for base_offset, end_offset in ranges:
        manifest = manifest.with_segment(entry(base_offset, end_offset, time_ms=base_offset))
    return manifest


def part(base_offset: int, end_offset: int) -> TailPart:
    return TailPart(
        base_offset=base_offset,
        end_offset=end_offset,
        position=0,
        size_bytes=5,
        key=f"{FOLDER}t.tail",
        crc32c=1,
        uploaded_ms=1,
    )
