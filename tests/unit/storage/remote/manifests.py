"""Manifests by the sizes of their segments, for tests of what is decided on them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from strandline.storage.model import EpochStart
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest

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
