"""The parts of a manifest: segments, sealed pages, and objects marked for deletion.

The names of their fields are those of the JSON in the bucket (`json_document.fields_of`).
`manifest.py` has the manifest's invariants and transitions.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from strandline.storage.model import EpochStart, Offset, TimestampMs
from strandline.storage.remote.keys import (
    LOG_SUFFIX,
    MANIFEST_PAGES_FOLDER,
    META_SUFFIX,
    PAGE_SUFFIX,
    TAIL_SUFFIX,
)
from strandline.storage.remote.manifest.json_document import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry:
    """One archived segment. Times are exact over its records, not taken from batch headers."""

    base_offset: Offset
    end_offset: Offset
    leader_epochs: tuple[EpochStart, ...]
    size_bytes: int
    record_count: int
    min_timestamp_ms: TimestampMs
    max_timestamp_ms: TimestampMs
    log_key: str
    meta_key: str
    log_crc32c: int
    meta_size_bytes: int
    meta_crc32c: int
    has_transactions: bool
    uploaded_ms: TimestampMs
    # Size of the batches on the broker's disk if they were rewritten before the upload: the records
    # are the same then, the bytes are not.
    recompressed_from_bytes: int | None = None

    @property
    def has_times(self) -> bool:
        """Whether some record has a timestamp; without one they are as old as their upload."""
        return self.max_timestamp_ms >= 0

    @property
    def oldest_ms(self) -> TimestampMs:
        """The time of the oldest record."""
        return self.min_timestamp_ms if self.has_times else self.uploaded_ms

    @property
    def newest_ms(self) -> TimestampMs:
        """The time of the newest record, by which retention deletes the segment."""
        return self.max_timestamp_ms if self.has_times else self.uploaded_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """A sealed page: an object with the entries of [base_offset, end_offset).

    The first `dropped_count` entries of the object are deleted already; `base_offset`,
    `segment_count` and `size_bytes` (of the segments, not the page) cover the remaining ones. The
    time bounds may be wider than the remaining entries.
    """

    key: str
    base_offset: Offset
    end_offset: Offset
    min_timestamp_ms: TimestampMs
    max_timestamp_ms: TimestampMs
    segment_count: int
    size_bytes: int
    crc32c: int
    dropped_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedEntry:
    """Unreferenced objects that are deleted after the grace time; a single one is in both keys."""

    log_key: str
    meta_key: str
    marked_ms: TimestampMs
    # Bytes of the batches in them; 0 for a page, and if the writer did not record it.
    size_bytes: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The distinct object keys."""
        return tuple(dict.fromkeys((self.log_key, self.meta_key)))


def object_mark(key: str, *, marked_ms: TimestampMs, size_bytes: int = 0) -> DeletedEntry:
    """Returns the deletion mark of a single object: a page, or a part of an open segment."""
    return DeletedEntry(log_key=key, meta_key=key, marked_ms=marked_ms, size_bytes=size_bytes)


RangeT = TypeVar("RangeT", SegmentEntry, PageRef)


def find_range(ranges: Sequence[RangeT], offset: Offset) -> RangeT | None:
    """Returns the one of the sorted entries or pages that holds `offset`, or None."""
    index = bisect.bisect_right(ranges, offset, key=lambda found: found.base_offset) - 1
    return ranges[index] if index >= 0 and offset < ranges[index].end_offset else None


def with_replaced_run(
    entries: Sequence[SegmentEntry], old: Sequence[SegmentEntry], new: SegmentEntry
) -> tuple[SegmentEntry, ...]:
    """`entries` with `new` instead of the adjacent entries `old`.

    Raises ValueError unless `old` are among them and `new` covers their range: the former may have
    been deleted or replaced meanwhile.
    """
    base_offset, count = old[0].base_offset, len(old)
    first = bisect.bisect_left(entries, base_offset, key=lambda entry: entry.base_offset)
    if tuple(entries[first : first + count]) != tuple(old):
        raise ValueError(f"entries from {base_offset} on are not what they were")
    if (new.base_offset, new.end_offset) != (base_offset, old[-1].end_offset):
        raise ValueError(f"[{new.base_offset}, {new.end_offset}) is another range")
    return (*entries[:first], new, *entries[first + count :])


def replaced_marks(
    old: Sequence[SegmentEntry], new: Sequence[SegmentEntry], *, marked_ms: TimestampMs
) -> tuple[DeletedEntry, ...]:
    """Marks for the objects of `old` that no entry of `new` names."""
    kept = {key for entry in new for key in (entry.log_key, entry.meta_key)}
    marks: list[DeletedEntry] = []
    for entry in old:
        gone = [key for key in (entry.log_key, entry.meta_key) if key not in kept]
        if gone:
            size_bytes = entry.size_bytes if entry.log_key in gone else 0
            marks.append(
                DeletedEntry(
                    log_key=gone[0],
                    meta_key=gone[-1],
                    marked_ms=marked_ms,
                    size_bytes=size_bytes,
                )
            )
    return tuple(marks)


def entry_from(fields: Fields, folder: str) -> SegmentEntry:
    """Raises CorruptFile for fields that are missing, of another type, or keys elsewhere.

    `folder` is the partition's: a manifest can make a reader read or delete only objects in it.
    """
    return SegmentEntry(
        base_offset=fields.integer("base_offset"),
        end_offset=fields.integer("end_offset"),
        leader_epochs=tuple(EpochStart(*pair) for pair in fields.integer_pairs("leader_epochs")),
        size_bytes=fields.count("size_bytes"),
        record_count=fields.count("record_count"),
        min_timestamp_ms=fields.integer("min_timestamp_ms"),
        max_timestamp_ms=fields.integer("max_timestamp_ms"),
        log_key=fields.object_key("log_key", folder, LOG_SUFFIX),
        meta_key=fields.object_key("meta_key", folder, META_SUFFIX),
        log_crc32c=fields.crc("log_crc32c"),
        meta_size_bytes=fields.count("meta_size_bytes"),
        meta_crc32c=fields.crc("meta_crc32c"),
        has_transactions=fields.boolean("has_transactions"),
        uploaded_ms=fields.integer("uploaded_ms"),
        recompressed_from_bytes=fields.optional_integer("recompressed_from_bytes"),
    )


def page_from(fields: Fields, folder: str) -> PageRef:
    """Raises CorruptFile, as `entry_from`."""
    return PageRef(
        key=fields.object_key("key", folder + MANIFEST_PAGES_FOLDER, PAGE_SUFFIX),
        base_offset=fields.integer("base_offset"),
        end_offset=fields.integer("end_offset"),
        min_timestamp_ms=fields.integer("min_timestamp_ms"),
        max_timestamp_ms=fields.integer("max_timestamp_ms"),
        segment_count=fields.count("segment_count"),
        size_bytes=fields.count("size_bytes"),
        crc32c=fields.crc("crc32c"),
        dropped_count=fields.count("dropped_count"),
    )


def deleted_from(fields: Fields, folder: str) -> DeletedEntry:
    """Raises CorruptFile, as `entry_from`."""
    is_page = fields.text("log_key").endswith(PAGE_SUFFIX)
    below = folder + MANIFEST_PAGES_FOLDER if is_page else folder
    suffixes = (PAGE_SUFFIX,) if is_page else (LOG_SUFFIX, META_SUFFIX, TAIL_SUFFIX)
    return DeletedEntry(
        log_key=fields.object_key("log_key", below, *suffixes),
        meta_key=fields.object_key("meta_key", below, *suffixes),
        marked_ms=fields.integer("marked_ms"),
        size_bytes=fields.optional_integer("size_bytes") or 0,
    )
