"""What lies behind the archive's end, in the bucket: bounds the records that are lost with the
machine.

    archive ... ][ part ][ part ][part]        in the manifest beside the segments
    disk        [ closed segment ][ open ..
                 ^ base of the first segment that is not archived

A part is an object with a run of whole batches of the local log, byte for byte. `position` is where
they begin if the segments from the first part on were one file; the parts follow each other without
a gap, and none reaches over the end of a segment. They are not part of the archive: no read uses
them while the broker has its disk, and no local segment is freed because of them. When a segment is
archived, its parts are marked for deletion in the same commit, and those behind it stay. A restore
appends them to the local log that it starts at the archive's end; so does a read-only replica, each
time it polls. The lake reads them as the end of the archive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strandline.storage.model import Offset, Position, TimestampMs
from strandline.storage.remote.keys import TAIL_SUFFIX
from strandline.storage.remote.manifest.json_document import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class TailPart:
    """Batches with offsets [base_offset, end_offset), `position` bytes behind the first part."""

    base_offset: Offset
    end_offset: Offset
    position: Position
    size_bytes: int
    key: str
    crc32c: int
    uploaded_ms: TimestampMs
    # From the headers of its batches, for readers of the bucket; None if the writer left it out.
    record_count: int | None = None
    has_transactions: bool | None = None

    @property
    def end_position(self) -> Position:
        return self.position + self.size_bytes


def are_adjacent(parts: Sequence[TailPart]) -> bool:
    """Returns whether the parts are contiguous from position 0 on."""
    position, offset = 0, parts[0].base_offset if parts else 0
    for part in parts:
        if (part.position, part.base_offset) != (position, offset):
            return False
        if part.size_bytes <= 0 or part.end_offset <= part.base_offset:
            return False
        position, offset = part.end_position, part.end_offset
    return True


def parts_behind(parts: Sequence[TailPart], offset: Offset) -> tuple[TailPart, ...]:
    """Returns the parts that continue an archive that ends at `offset` now; none if it ends inside
    a part.
    """
    behind = [part for part in parts if part.base_offset >= offset]
    if not behind or behind[0].base_offset != offset:
        return ()
    begin = behind[0].position
    return tuple(replace(part, position=part.position - begin) for part in behind)


def tail_from(fields: Fields, folder: str) -> TailPart:
    """Decodes a part from the manifest of the partition with that `folder`; the last two fields may
    be absent. Raises CorruptFile."""
    return TailPart(
        base_offset=fields.integer("base_offset"),
        end_offset=fields.integer("end_offset"),
        position=fields.count("position"),
        size_bytes=fields.count("size_bytes"),
        key=fields.object_key("key", folder, TAIL_SUFFIX),
        crc32c=fields.crc("crc32c"),
        uploaded_ms=fields.integer("uploaded_ms"),
        record_count=fields.optional_integer("record_count"),
        has_transactions=fields.optional_boolean("has_transactions"),
    )
