"""Manifests by the sizes of their segments, for tests of what is decided on them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from uuid import UUID

from strandline.storage.model import EpochStart
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart

TOPIC_ID = UUID("7f8c9a52-6d0c-4a4e-9f5b-0d6a3f1b2c3d")
FOLDER = f"topics/t-{TOPIC_ID}/0/"
RECORDS = 10


def entry_of(base_offset: int, end_offset: int, *, size_bytes: int) -> SegmentEntry:
    """A segment nobody has uploaded."""
    return SegmentEntry(
        base_offset=base_offset,
        end_offset=end_offset,
        leader_epochs=(EpochStart(0, 0),),
        size_bytes=size_bytes,
        record_count=end_offset - base_offset,
        min_timestamp_ms=base_offset,
        max_timestamp_ms=end_offset,
        log_key=f"{FOLDER}{base_offset}.log",
        meta_key=f"{FOLDER}{base_offset}.meta",
        log_crc32c=0,
        meta_size_bytes=1,
        meta_crc32c=0,
        has_transactions=False,
        uploaded_ms=0,
    )


def manifest_of(sizes: Sequence[int]) -> Manifest:
    """Adjacent segments of ten offsets each."""
    manifest = Manifest(topic="t", topic_id=TOPIC_ID, partition=0)
    for number, size_bytes in enumerate(sizes):
        base_offset = number * RECORDS
        entry = entry_of(base_offset, base_offset + RECORDS, size_bytes=size_bytes)
        manifest = manifest.with_segment(entry)
    return manifest


TOPIC_ID = uuid.UUID("00000000-0000-4000-8000-00000000002a")
EMPTY = Manifest(topic="orders", topic_id=TOPIC_ID, partition=0)
FOLDER = f"topics/orders-{TOPIC_ID}/0/"
PAGE = f"{FOLDER}manifest/page.json"


def entry(base_offset: int, end_offset: int, *, time_ms: int = 0) -> SegmentEntry:
    return SegmentEntry(
        base_offset=base_offset,
        end_offset=end_offset,
        leader_epochs=(EpochStart(1, 0), EpochStart(4, base_offset)),
        size_bytes=100,
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
