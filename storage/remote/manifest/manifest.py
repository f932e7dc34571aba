"""The manifest of one partition: the source of truth about its archive. Pure data, no I/O.

              pages (sealed, immutable)            segments (in the root)
    log start ┌─────────────┬─────────────┐┌────┬────┬────┬────┐ end_offset
        │     │ PageRef     │ PageRef     ││ SegmentEntry ...  │
        ▼     └─────────────┴─────────────┘└────┴────┴────┴────┘
              first_offset                                       offsets ──►

Invariants, held by every transition and checked again by `decode`:
* entries are in offset order and leave no gap, except below the log start, where data may have
  been deleted before they were ever copied;
* an entry is removed only once the log start lies at or beyond its end, oldest first, and its
  object keys move to `deleting` in the same step: no object is lost track of, except for pieces
  of an open segment while `deleting` is full;
* log start, leader epoch and revision never go back.

When tiering of a topic is turned off and on again, under the same id, a partition gets a manifest
unrelated to the previous one: another `generation`. Its name starts with the time, or just after
the previous one if the clock went back. So a manifest's content never repeats, nor does an etag
that is a hash of it; and any two manifests of a partition can be ordered (`order`). A restarted
broker does not know the previous generation, but has a higher epoch.

Its parts are defined in `entries.py`. The root holds the newest entries; when it grows,
`manifest_store` seals the oldest of them into a page (`manifest/page.py`), an object that never
changes. A page whose first entries were deleted stays as it is: its PageRef counts them in
`dropped_count` and starts later. So a commit costs the same, however long the archive is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strandline.storage.errors import CorruptFile
from strandline.storage.model import (
    Buffer,
    Epoch,
    Offset,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)
from strandline.storage.remote.keys import new_unique, partition_folder
from strandline.storage.remote.manifest.compaction_mark import CompactionMark, mark_from
from strandline.storage.remote.manifest.entries import (
    DeletedEntry,
    PageRef,
    SegmentEntry,
    deleted_from,
    entry_from,
    find_range,
    object_mark,
    page_from,
    replaced_marks,
    with_replaced_run,
)
from strandline.storage.remote.manifest.json_document import (
    Json,
    decode_document,
    encode_document,
    fields_of,
)
from strandline.storage.remote.manifest.open_segment import (
    TailPart,
    are_adjacent,
    parts_behind,
    tail_from,
)
from strandline.storage.remote.manifest.page import page_without_first

# A mark is some 300 bytes of the root, and every commit writes all of them: 0.6 MB.
MARKS_MAX = 2000

# Milliseconds since 1970, until the year 5138.
TIME_DIGITS = 14

FORMAT_NAME = "strandline-manifest"
FORMAT_VERSION = 1
FORMAT_VERSIONS = range(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One partition's archive; transitions return a new manifest, `commit` sets the revision."""

    topic: str
    topic_id: TopicId
    partition: int
    # Identifies this archive among the partition's archives; "" in manifests of older releases.
    generation: str = ""
    revision: int = 0
    leader_epoch: Epoch = 0
    log_start_offset: Offset = 0
    segments: tuple[SegmentEntry, ...] = ()
    pages: tuple[PageRef, ...] = ()
    deleting: tuple[DeletedEntry, ...] = ()
    # Uploaded parts of the log behind the segments; see manifest/open_segment.py.
    tail: tuple[TailPart, ...] = ()
    # Compaction state of a compacted log's archive.
    compaction: CompactionMark | None = None

    # --- queries -----------------------------------------------------------------------------

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic, self.topic_id, self.partition)

    @property
    def order(self) -> tuple[Epoch, str, int]:
        """Sort key: greater for every later manifest of the partition."""
        return self.leader_epoch, self.generation, self.revision

    @property
    def is_empty(self) -> bool:
        """Whether no segment is archived (or all are deleted)."""
        return not self.segments and not self.pages

    @property
    def first_offset(self) -> Offset:
        """First archived offset, at or below the log start; the log start if it is empty."""
        if self.pages:
            return self.pages[0].base_offset
        return self.segments[0].base_offset if self.segments else self.log_start_offset

    @property
    def end_offset(self) -> Offset:
        """Base offset of the next segment to archive; the log start if the archive is empty."""
        if self.segments:
            return self.segments[-1].end_offset
        return self.pages[-1].end_offset if self.pages else self.log_start_offset

    @property
    def tail_end_offset(self) -> Offset:
        """End of the uploaded parts behind the archive; `end_offset` if there are none."""
        return self.tail[-1].end_offset if self.tail else self.end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all archived segments, pages included."""
        in_pages = sum(page.size_bytes for page in self.pages)
        return in_pages + sum(entry.size_bytes for entry in self.segments)

    @property
    def segment_count(self) -> int:
        return sum(page.segment_count for page in self.pages) + len(self.segments)

    @property
    def marks_left(self) -> int:
        """Number of marks that can be added before older ones are deleted."""
        return max(0, MARKS_MAX - len(self.deleting))

    def find(self, offset: Offset) -> SegmentEntry | None:
        """The root's entry that holds `offset`; None if it lies in a page or is not archived."""
        return find_range(self.segments, offset)

    def names_page(self, key: str) -> bool:
        """Returns whether `key` is a page of this manifest."""
        return any(page.key == key for page in self.pages)

    def find_page(self, offset: Offset) -> PageRef | None:
        """Returns the page that holds `offset`; None if it is in the root or not archived."""
        return find_range(self.pages, offset)

    # --- transitions -------------------------------------------------------------------------

    def with_leader_epoch(self, epoch: Epoch) -> Manifest:
        """Raises ValueError if the epoch would decrease."""
        if epoch < self.leader_epoch:
            raise ValueError(f"leader epoch {epoch} is below {self.leader_epoch}")
        return replace(self, leader_epoch=epoch)

    def with_segment(
        self, entry: SegmentEntry, *, marked_ms: TimestampMs | None = None
    ) -> Manifest:
        """Adds the next segment; replaced objects are marked now, or with the time of the upload.

        Parts of the log behind the segment stay.
        Raises ValueError for a gap, an overlap or an empty segment.
        """
        if entry.end_offset <= entry.base_offset or entry.size_bytes <= 0:
            raise ValueError(f"segment [{entry.base_offset}, {entry.end_offset}) is empty")
        if not self.is_empty and entry.base_offset < self.end_offset:
            raise ValueError(
                f"segment [{entry.base_offset}, {entry.end_offset}) overlaps the archive, "
                f"which ends at {self.end_offset}"
            )
        is_next = not self.is_empty and entry.base_offset == self.end_offset
        # A gap is fine below the log start: the records in it were deleted before the copy.
        if not is_next and entry.base_offset > self.log_start_offset:
            raise ValueError(
                f"segment [{entry.base_offset}, {entry.end_offset}) leaves a gap after "
                f"{self.end_offset} above the log start {self.log_start_offset}"
            )
        added = replace(self, segments=(*self.segments, entry))
        return added.with_tail(
            parts_behind(self.tail, entry.end_offset),
            marked_ms=entry.uploaded_ms if marked_ms is None else marked_ms,
        )

    def with_tail(self, parts: Sequence[TailPart], *, marked_ms: TimestampMs) -> Manifest:
        """Replaces the parts behind the archive by `parts`; those no longer used are marked.

        Only as many as there is space for: uploads must progress even if deletes fail. The
        other parts become orphans, which a search finds. Raises ValueError unless the parts are one
        contiguous run that begins at or behind the archive's end.
        """
        if not are_adjacent(parts):
            raise ValueError(f"parts leave gaps: {parts}")
        if parts and not self.is_empty and parts[0].base_offset < self.end_offset:
            raise ValueError(
                f"a part begins at {parts[0].base_offset}, the archive ends at {self.end_offset}"
            )
        kept = {part.key for part in parts}
        marks = tuple(
            object_mark(part.key, marked_ms=marked_ms, size_bytes=part.size_bytes)
            for part in self.tail
            if part.key not in kept
        )
        marked = (*self.deleting, *marks[: self.marks_left])
        return replace(self, tail=tuple(parts), deleting=marked)

    def with_log_start(self, offset: Offset) -> Manifest:
        """Moves the log start; entries stay until `with_deleting`. ValueError if it goes back."""
        if offset < self.log_start_offset:
            raise ValueError(f"log start {offset} is below {self.log_start_offset}")
        return replace(self, log_start_offset=offset)

    def with_deleting(self, entries: Sequence[SegmentEntry], *, marked_ms: TimestampMs) -> Manifest:
        """Removes the oldest entries and marks their objects.

        `entries` are the first ones of the archive, in order, those of the first pages included
        (`manifest_store` reads them), each wholly below the log start; else ValueError.
        """
        pages, segments = list(self.pages), list(self.segments)
        marks: list[DeletedEntry] = []
        for entry in entries:
            if entry.end_offset > self.log_start_offset:
                raise ValueError(
                    f"segment [{entry.base_offset}, {entry.end_offset}) is not below the log "
                    f"start {self.log_start_offset}"
                )
            first_offset = (
                pages[0].base_offset if pages else segments[0].base_offset if segments else None
            )
            if entry.base_offset != first_offset:
                raise ValueError(f"segment at {entry.base_offset} is not first: {first_offset}")
            marks.append(
                DeletedEntry(
                    log_key=entry.log_key,
                    meta_key=entry.meta_key,
                    marked_ms=marked_ms,
                    size_bytes=entry.size_bytes,
                )
            )
            if not pages:
                segments.pop(0)
            elif pages[0].segment_count == 1:
                marks.append(object_mark(pages.pop(0).key, marked_ms=marked_ms))
            else:
                pages[0] = page_without_first(pages[0], entry)
        deleting = (*self.deleting, *marks)
        return replace(self, pages=tuple(pages), segments=tuple(segments), deleting=deleting)

    def without_first_page(self, page: PageRef, *, marked_ms: TimestampMs) -> Manifest:
        """Removes the first page, whose entries cannot be read any more, and marks its object.

        ValueError unless `page` is the first one and lies wholly below the log start.
        """
        if self.pages[:1] != (page,) or page.end_offset > self.log_start_offset:
            raise ValueError(f"page {page.key} is not the first, or not below the log start")
        mark = object_mark(page.key, marked_ms=marked_ms)
        return replace(self, pages=self.pages[1:], deleting=(*self.deleting, mark))

    def without_deleting(self, marks: Sequence[DeletedEntry]) -> Manifest:
        """Drops marks whose objects are deleted; unknown marks are ignored."""
        gone = set(marks)
        return replace(self, deleting=tuple(m for m in self.deleting if m not in gone))

    def with_sealed_page(self, page: PageRef) -> Manifest:
        """Drops the first `page.segment_count` entries of the root, which `page` now holds."""
        sealed = self.segments[: page.segment_count]
        assert sealed, page
        assert sealed[0].base_offset == page.base_offset, (page, sealed[0])
        assert sealed[-1].end_offset == page.end_offset, (page, sealed[-1])
        kept = self.segments[page.segment_count :]
        return replace(self, pages=(*self.pages, page), segments=kept)

    def with_merged_pages(self, page: PageRef, marks: Sequence[DeletedEntry]) -> Manifest:
        """Replaces the last pages by `page`, as many as there are marks."""
        old = self.pages[-len(marks) :]
        assert [mark.log_key for mark in marks] == [ref.key for ref in old], (marks, old)
        assert (page.base_offset, page.end_offset) == (old[0].base_offset, old[-1].end_offset)
        assert page.segment_count == sum(ref.segment_count for ref in old), (old, page)
        pages = (*self.pages[: -len(marks)], page)
        return replace(self, pages=pages, deleting=(*self.deleting, *marks))

    def with_replacement(
        self, old: Sequence[SegmentEntry], new: SegmentEntry, *, marked_ms: TimestampMs
    ) -> Manifest:
        """Replaces adjacent entries of the root by `new`; objects it does not name are marked.

        Raises ValueError as `with_replaced_run`.
        """
        kept = with_replaced_run(self.segments, old, new)
        marks = replaced_marks(old, (new,), marked_ms=marked_ms)
        return replace(self, segments=kept, deleting=(*self.deleting, *marks))

    def with_compaction(self, mark: CompactionMark) -> Manifest:
        """Notes how far the archive is compacted."""
        return replace(self, compaction=mark)

    def with_replaced_page(
        self, old: PageRef, new: PageRef, marks: Sequence[DeletedEntry]
    ) -> Manifest:
        """Replaces `old` by `new`, a page of the same range. Raises ValueError as above."""
        if old not in self.pages:
            raise ValueError(f"page {old.key} is not what it was")
        if (new.base_offset, new.end_offset) != (old.base_offset, old.end_offset):
            raise ValueError(f"page {new.key} is of another range")
        pages = tuple(new if page == old else page for page in self.pages)
        return replace(self, pages=pages, deleting=(*self.deleting, *marks))

    # --- bytes -------------------------------------------------------------------------------

    def encode(self) -> bytes:
        fields: dict[str, Json] = {
            "topic": self.topic,
            "topic_id": str(self.topic_id),
            "partition": self.partition,
            "revision": self.revision,
            "leader_epoch": self.leader_epoch,
            "log_start_offset": self.log_start_offset,
            "segments": [fields_of(entry) for entry in self.segments],
            "pages": [fields_of(page) for page in self.pages],
            "deleting": [fields_of(mark) for mark in self.deleting],
        }
        if self.generation:
            fields["generation"] = self.generation
        if self.tail:
            fields["tail"] = [fields_of(part) for part in self.tail]
        if self.compaction is not None:
            fields["compaction"] = [fields_of(self.compaction)]
        return encode_document(FORMAT_NAME, FORMAT_VERSION, fields)

    @classmethod
    def decode(cls, content: Buffer, *, source: str = "") -> Manifest:
        """`source` names the object in messages. Raises CorruptFile or UnsupportedFormat."""
        fields = decode_document(content, FORMAT_NAME, FORMAT_VERSIONS, source)
        partition = TopicIdPartition(
            fields.text("topic"), fields.uuid("topic_id"), fields.integer("partition")
        )
        folder = partition_folder(partition)
        manifest = cls(
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            revision=fields.integer("revision"),
            leader_epoch=fields.integer("leader_epoch"),
            log_start_offset=fields.integer("log_start_offset"),
            segments=tuple(entry_from(f, folder) for f in fields.objects("segments")),
            pages=tuple(page_from(f, folder) for f in fields.objects("pages")),
            deleting=tuple(deleted_from(f, folder) for f in fields.objects("deleting")),
            # Manifests of older releases have none of these.
            generation=fields.text("generation") if "generation" in fields else "",
            tail=tuple(tail_from(f, folder) for f in fields.optional_objects("tail")),
            compaction=mark_from(fields.optional_objects("compaction")),
        )
        _check_order(manifest, source or FORMAT_NAME)
        _check_marks(manifest, source or FORMAT_NAME)
        return manifest


def new_generation(now_ms: TimestampMs, *, after: str = "") -> str:
    """Returns a unique name for a new archive, greater than `after`."""
    after_text = after[:TIME_DIGITS]
    after_ms = int(after_text) if after_text.isdecimal() else -1
    return f"{max(now_ms, after_ms + 1):0{TIME_DIGITS}d}-{new_unique()[:8]}"


# --- checks ----------------------------------------------------------------------------------


def _check_order(manifest: Manifest, source: str) -> None:
    """Raises CorruptFile unless ranges are ordered and gaps lie below the log start."""
    end_offset: Offset | None = None
    archived: tuple[PageRef | SegmentEntry, ...] = (*manifest.pages, *manifest.segments)
    for found in archived:
        base, end = found.base_offset, found.end_offset
        if end <= base or base < 0:
            raise CorruptFile(f"{source}: impossible offset range [{base}, {end})")
        if end_offset is not None and base < end_offset:
            raise CorruptFile(f"{source}: [{base}, {end}) overlaps what ends at {end_offset}")
        if base != end_offset and base > manifest.log_start_offset:
            first_lost = max(manifest.log_start_offset, end_offset or 0)
            raise CorruptFile(
                f"{source}: no segment has the offsets {first_lost} to {base - 1}, above the log"
                f" start {manifest.log_start_offset}"
            )
        end_offset = end
    for entry in manifest.segments:
        if not entry.size_bytes:
            raise CorruptFile(
                f"{source}: segment [{entry.base_offset}, {entry.end_offset}) is empty"
            )
    if not are_adjacent(manifest.tail):
        raise CorruptFile(f"{source}: the parts of the open segment leave gaps")
    if manifest.tail and end_offset is not None and manifest.tail[0].base_offset < end_offset:
        raise CorruptFile(
            f"{source}: the open segment begins at {manifest.tail[0].base_offset}, and what is"
            f" archived ends at {end_offset}"
        )


def _check_marks(manifest: Manifest, source: str) -> None:
    """Raises CorruptFile if a key is referenced and marked for deletion."""
    marked = {key for mark in manifest.deleting for key in mark.keys}
    named = [page.key for page in manifest.pages] + [part.key for part in manifest.tail]
    for entry in manifest.segments:
        named += (entry.log_key, entry.meta_key)
    if found := marked.intersection(named):
        raise CorruptFile(f"{source}: {min(found)} is marked for deletion, and is named as well")
