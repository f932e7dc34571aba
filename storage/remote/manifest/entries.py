"""The parts of a manifest, with their JSON: segments, sealed pages, objects marked for deletion.

`manifest.py` has the manifest's invariants and transitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.storage.model import NO_EPOCH, Epoch, EpochStart, Offset, TimestampMs
from strandline.storage.remote.keys import (
    LOG_SUFFIX,
    MANIFEST_PAGES_FOLDER,
    META_SUFFIX,
    PAGE_SUFFIX,
    TAIL_SUFFIX,
)
from strandline.storage.remote.manifest.json_document import Fields, Json


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

    def epoch_for(self, offset: Offset) -> Epoch:
        """The leader epoch that `offset` was written under; -1 if the entry does not record it."""
        found = NO_EPOCH
        for epoch, start_offset in self.leader_epochs:
            if start_offset > offset:
                break
            found = epoch
        return found


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
    dropped_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedEntry:
    """Unreferenced objects that are deleted after the grace time.

    A deleted page is one object: its key stands in both fields.
    """

    log_key: str
    meta_key: str
    marked_ms: TimestampMs
    # Bytes of the batches in them; 0 for a page, and if the writer did not record it.
    size_bytes: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The distinct object keys."""
        if self.log_key == self.meta_key:
            return (self.log_key,)
        return (self.log_key, self.meta_key)


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


def entry_fields(entry: SegmentEntry) -> dict[str, Json]:
    """The JSON fields of a segment in a manifest or a page."""
    fields: dict[str, Json] = {
        "base_offset": entry.base_offset,
        "end_offset": entry.end_offset,
        "leader_epochs": [[start.epoch, start.start_offset] for start in entry.leader_epochs],
        "size_bytes": entry.size_bytes,
        "record_count": entry.record_count,
        "min_timestamp_ms": entry.min_timestamp_ms,
        "max_timestamp_ms": entry.max_timestamp_ms,
        "log_key": entry.log_key,
        "meta_key": entry.meta_key,
        "log_crc32c": f"{entry.log_crc32c:08x}",
        "meta_size_bytes": entry.meta_size_bytes,
        "meta_crc32c": f"{entry.meta_crc32c:08x}",
        "has_transactions": entry.has_transactions,
        "uploaded_ms": entry.uploaded_ms,
    }
    if entry.recompressed_from_bytes is not None:
        fields["recompressed_from_bytes"] = entry.recompressed_from_bytes
    return fields


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


def page_fields(page: PageRef) -> dict[str, Json]:
    """The JSON fields of a page in a manifest."""
    return {
        "key": page.key,
        "base_offset": page.base_offset,
        "end_offset": page.end_offset,
        "min_timestamp_ms": page.min_timestamp_ms,
        "max_timestamp_ms": page.max_timestamp_ms,
        "segment_count": page.segment_count,
        "size_bytes": page.size_bytes,
        "crc32c": f"{page.crc32c:08x}",
        "dropped_count": page.dropped_count,
    }


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


def deleted_fields(mark: DeletedEntry) -> dict[str, Json]:
    """The JSON fields of objects marked for deletion."""
    fields: dict[str, Json] = {
        "log_key": mark.log_key,
        "meta_key": mark.meta_key,
        "marked_ms": mark.marked_ms,
    }
    return {**fields, "size_bytes": mark.size_bytes} if mark.size_bytes else fields


def deleted_from(fields: Fields, folder: str) -> DeletedEntry:
    """Raises CorruptFile, as `entry_from`. A page's key stands in both fields."""
    is_page = fields.text("log_key").endswith(PAGE_SUFFIX)
    below = folder + MANIFEST_PAGES_FOLDER if is_page else folder
    suffixes = (PAGE_SUFFIX,) if is_page else (LOG_SUFFIX, META_SUFFIX, TAIL_SUFFIX)
    return DeletedEntry(
        log_key=fields.object_key("log_key", below, *suffixes),
        meta_key=fields.object_key("meta_key", below, *suffixes),
        marked_ms=fields.integer("marked_ms"),
        size_bytes=fields.optional_integer("size_bytes") or 0,
    )
