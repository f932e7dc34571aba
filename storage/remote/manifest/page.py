"""Sealed pages of a manifest: objects with the oldest entries, written once and never changed.

    page object    entries, without a gap between them          entry entry entry entry
    PageRef        in the root: range, times, counts, checksum  `dropped_count` of them deleted

Readers of the entries load the page object, which is checked against its PageRef.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strandline.storage.errors import CorruptFile
from strandline.storage.model import Buffer, TopicIdPartition
from strandline.storage.remote.keys import MANIFEST_PAGES_FOLDER
from strandline.storage.remote.manifest.entries import (
    PageRef,
    SegmentEntry,
    entry_from,
)
from strandline.storage.remote.manifest.json_document import (
    Json,
    decode_document,
    encode_document,
    fields_of,
)

PAGE_FORMAT_NAME = "strandline-manifest-page"
PAGE_FORMAT_VERSION = 1
PAGE_FORMAT_VERSIONS = range(1, 2)


def encode_page(partition: TopicIdPartition, entries: Sequence[SegmentEntry]) -> bytes:
    """Returns the page object of `entries`."""
    fields: dict[str, Json] = {
        "topic": partition.topic,
        "topic_id": str(partition.topic_id),
        "partition": partition.partition,
        "segments": [fields_of(entry) for entry in entries],
    }
    return encode_document(PAGE_FORMAT_NAME, PAGE_FORMAT_VERSION, fields)


def page_ref(key: str, entries: Sequence[SegmentEntry], *, crc32c: int) -> PageRef:
    """Returns the root's reference to a page of `entries`; `crc32c` is of the page object.

    The entries leave no gap between them (`contiguous_count`), so a PageRef can count its deleted
    entries and knows the first remaining offset without reading the page.
    """
    assert contiguous_count(entries, len(entries)) == len(entries), key
    return PageRef(
        key=key,
        base_offset=entries[0].base_offset,
        end_offset=entries[-1].end_offset,
        min_timestamp_ms=min(entry.min_timestamp_ms for entry in entries),
        max_timestamp_ms=max(entry.max_timestamp_ms for entry in entries),
        segment_count=len(entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
        crc32c=crc32c,
        dropped_count=0,
    )


def contiguous_count(entries: Sequence[SegmentEntry], count_max: int) -> int:
    """Number of the first `count_max` entries that follow each other without a gap."""
    for index in range(1, min(count_max, len(entries))):
        if entries[index].base_offset != entries[index - 1].end_offset:
            return index
    return min(count_max, len(entries))


def decode_page(content: Buffer, page: PageRef) -> tuple[SegmentEntry, ...]:
    """Returns the entries of `page` that are not deleted. Raises CorruptFile if it is another page.

    `page` comes from a decoded manifest, which checked that its key lies in the partition's folder.
    """
    folder = page.key.rpartition(MANIFEST_PAGES_FOLDER)[0]
    fields = decode_document(content, PAGE_FORMAT_NAME, PAGE_FORMAT_VERSIONS, page.key)
    entries = tuple(entry_from(f, folder) for f in fields.objects("segments"))[page.dropped_count :]
    if not entries or len(entries) != page.segment_count:
        raise CorruptFile(f"{page.key}: {len(entries)} entries, {page.segment_count} expected")
    if (entries[0].base_offset, entries[-1].end_offset) != (page.base_offset, page.end_offset):
        raise CorruptFile(
            f"{page.key}: holds [{entries[0].base_offset}, {entries[-1].end_offset}), "
            f"expected [{page.base_offset}, {page.end_offset})"
        )
    if contiguous_count(entries, len(entries)) < len(entries) or not all(
        entry.size_bytes and entry.base_offset < entry.end_offset for entry in entries
    ):
        raise CorruptFile(f"{page.key}: its entries leave gaps, or one of them is empty")
    return entries


def page_without_first(page: PageRef, entry: SegmentEntry) -> PageRef:
    """Returns the page once its first entry is deleted; the page object stays as it is."""
    return replace(
        page,
        base_offset=entry.end_offset,
        segment_count=page.segment_count - 1,
        size_bytes=page.size_bytes - entry.size_bytes,
        dropped_count=page.dropped_count + 1,
    )
