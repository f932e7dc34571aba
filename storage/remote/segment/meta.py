"""The `.meta` object: facts of a segment, each section readable by one ranged GET.

    ┌──────────────────────────┐ 0
    │ magic                    │ 8 bytes
    ├──────────────────────────┤
    │ section bytes            │ back to back
    │ ...                      │
    ├──────────────────────────┤
    │ directory                │ JSON: [[section, position, length, crc32c], ...]
    ├──────────────────────────┤ size - 18
    │ footer                   │ directory length u32 | directory crc32c u32 | version u16 | magic 8
    └──────────────────────────┘ size

The footer locates everything, so a reader needs the object's size (the manifest has it) and one GET
of the tail. STATISTICS is the last section and the one read most: the same GET usually includes it.
Sections that do not exist for a segment are left out.

Positions of the chunks of STATISTICS are positions in the `.log` object.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter

from strandline.storage.errors import CorruptFile, ObjectCorrupt, UnsupportedFormat
from strandline.storage.model import (
    Buffer,
    EpochStart,
    Offset,
    Position,
    TimestampMs,
)
from strandline.storage.remote.manifest.json_document import decode_document, encode_document
from strandline.storage.remote.object_store.interface import GetsRanges
from strandline.storage.system import crc32c

MAGIC = b"slmeta\r\n"
FORMAT_VERSION = 1
FORMAT_VERSIONS = range(1, 2)
STATISTICS_FORMAT_NAME = "strandline-segment-statistics"
_CHECKSUMS = "chunk_checksums"

_FOOTER = struct.Struct(">IIH8s")
FOOTER_BYTES = _FOOTER.size

# A meta object of up to this size is fetched whole; of a larger one, the tail of this size. It
# covers the directory (under 1 KiB) and the statistics of a segment of some 450 MiB.
TAIL_BYTES = 64 * 1024

# The unit of STATISTICS: small enough that a query skips much, large enough for one GET.
STATISTICS_CHUNK_BYTES = 1024 * 1024


class Section(Enum):
    """The sections of a `.meta`; the values are their names in its directory."""

    TXN_INDEX = "txn_index"  # bytes of Kafka's .txnindex
    PRODUCER_SNAPSHOT = "producer_snapshot"  # bytes of Kafka's .snapshot at the end offset
    LEADER_EPOCHS = "leader_epochs"  # text of leader-epoch-checkpoint up to the end offset
    KEY_FILTER = "key_filter"  # KeyFilter; left out where it would spare nothing
    STATISTICS = "statistics"  # SegmentStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStatistics:
    """A run of whole batches: from `position` to the next chunk's position or the log's end."""

    position: Position
    base_offset: Offset
    record_count: int
    min_timestamp_ms: TimestampMs
    max_timestamp_ms: TimestampMs
    # Of its bytes in the log (docs/decisions, 12); None if the writer did not compute it.
    crc32c: int | None = None


_CHUNK_COLUMNS = (
    "position",
    "base_offset",
    "record_count",
    "min_timestamp_ms",
    "max_timestamp_ms",
)
_chunk_row = attrgetter(*_CHUNK_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStatistics:
    """Facts about the log object; times are exact over its records (-1 if it has none)."""

    record_count: int
    batch_count: int
    control_batch_count: int
    min_timestamp_ms: TimestampMs
    max_timestamp_ms: TimestampMs
    chunks: tuple[ChunkStatistics, ...]

    @property
    def has_checksums(self) -> bool:
        return all(chunk.crc32c is not None for chunk in self.chunks)

    def without_checksums(self) -> SegmentStatistics:
        """Returns the same facts without chunk checksums."""
        return replace(self, chunks=tuple(replace(chunk, crc32c=None) for chunk in self.chunks))

    def encode(self) -> bytes:
        checksums = [chunk.crc32c for chunk in self.chunks if chunk.crc32c is not None]
        return encode_document(
            STATISTICS_FORMAT_NAME,
            FORMAT_VERSION,
            {
                "record_count": self.record_count,
                "batch_count": self.batch_count,
                "control_batch_count": self.control_batch_count,
                "min_timestamp_ms": self.min_timestamp_ms,
                "max_timestamp_ms": self.max_timestamp_ms,
                "chunks": [list(_chunk_row(chunk)) for chunk in self.chunks],
                # All chunks have one or none does, so they are not in the rows.
                **({_CHECKSUMS: [*checksums]} if self.has_checksums else {}),
            },
        )

    @classmethod
    def decode(cls, content: Buffer, *, source: str = "") -> SegmentStatistics:
        """Raises CorruptFile or UnsupportedFormat."""
        fields = decode_document(content, STATISTICS_FORMAT_NAME, FORMAT_VERSIONS, source)
        rows = list(fields.rows("chunks", len(_CHUNK_COLUMNS)))
        checksums: list[int] | list[None] = [None] * len(rows)
        if _CHECKSUMS in fields:
            checksums = fields.integers(_CHECKSUMS)
        if len(checksums) != len(rows):
            raise CorruptFile(f"{source}: {len(rows)} chunks with {len(checksums)} checksums")
        chunks = tuple(
            ChunkStatistics(**dict(zip(_CHUNK_COLUMNS, row, strict=True)), crc32c=checksum)
            for row, checksum in zip(rows, checksums, strict=True)
        )
        _check_chunks(chunks, source)
        return cls(
            record_count=fields.integer("record_count"),
            batch_count=fields.integer("batch_count"),
            control_batch_count=fields.integer("control_batch_count"),
            min_timestamp_ms=fields.integer("min_timestamp_ms"),
            max_timestamp_ms=fields.integer("max_timestamp_ms"),
            chunks=chunks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRange:
    """A section's position in its object, and its checksum."""

    section: Section
    position: Position
    length: int
    crc32c: int

    def check(self, content: Buffer, *, source: str = "") -> bytes:
        """Returns the section's bytes. Raises CorruptFile unless their checksum matches."""
        if len(content) != self.length or crc32c.crc32c(content) != self.crc32c:
            raise CorruptFile(f"{source}: section {self.section.value} has a wrong checksum")
        return bytes(content)


class DirectoryOutsideTail(CorruptFile):
    """The tail was too short for the directory: retry with `needed_bytes` of it."""

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


# --- writing ---------------------------------------------------------------------------------


def encode(sections: Mapping[Section, Buffer]) -> bytes:
    """Returns the whole object, sections in the order of `Section` whatever the mapping's."""
    parts: list[Buffer] = [MAGIC]
    directory: list[list[object]] = []
    position = len(MAGIC)
    for section in Section:
        content = sections.get(section)
        if content is None:
            continue
        directory.append([section.value, position, len(content), crc32c.crc32c(content)])
        parts.append(content)
        position += len(content)
    encoded = json.dumps(directory, separators=(",", ":")).encode()
    footer = _FOOTER.pack(len(encoded), crc32c.crc32c(encoded), FORMAT_VERSION, MAGIC)
    return b"".join([*parts, encoded, footer])


# --- reading ---------------------------------------------------------------------------------


def decode_directory(
    tail: Buffer, *, size_bytes: int, source: str = ""
) -> Mapping[Section, SectionRange]:
    """Decodes the directory of an object of `size_bytes` from its tail (`TAIL_BYTES` suffices).

    Raises CorruptFile, UnsupportedFormat, or DirectoryOutsideTail if more of the end is needed.
    """
    if len(tail) < FOOTER_BYTES or size_bytes < len(tail):
        raise CorruptFile(f"{source}: {size_bytes} bytes are no segment meta")
    view = memoryview(tail)
    length, crc, version, magic = _FOOTER.unpack(view[-FOOTER_BYTES:])
    if magic != MAGIC:
        raise CorruptFile(f"{source}: is no segment meta")
    if version not in FORMAT_VERSIONS:
        raise UnsupportedFormat.of_version(f"{source}: segment meta", version, FORMAT_VERSIONS)
    needed_bytes = FOOTER_BYTES + length
    if needed_bytes + len(MAGIC) > size_bytes:
        raise CorruptFile(f"{source}: directory of {length} bytes exceeds the object")
    if needed_bytes > len(tail):
        raise DirectoryOutsideTail(f"{source}: directory lies outside the tail", needed_bytes)
    encoded = view[len(tail) - needed_bytes : len(tail) - FOOTER_BYTES]
    if crc32c.crc32c(encoded) != crc:
        raise CorruptFile(f"{source}: directory has a wrong checksum")
    return _parse_directory(encoded, size_bytes - needed_bytes, source)


def _parse_directory(
    encoded: memoryview, end_position: Position, source: str
) -> dict[Section, SectionRange]:
    known = {section.value: section for section in Section}
    sections: dict[Section, SectionRange] = {}
    try:
        rows = json.loads(bytes(encoded))
        for name, position, length, crc in rows:
            if not type(position) is type(length) is type(crc) is int:
                raise CorruptFile(f"{source}: section {name} lies nowhere")
            if position < len(MAGIC) or length < 0 or position + length > end_position:
                raise CorruptFile(f"{source}: section {name} lies outside the object")
            # Sections of other releases are ignored: once there were `offset_index` and
            # `time_index`, with Kafka's .index and .timeindex.
            if name in known:
                sections[known[name]] = SectionRange(
                    section=known[name], position=position, length=length, crc32c=crc
                )
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFile(f"{source}: directory is unreadable: {error}") from error
    return sections


def object_checksum(tail: Buffer, *, size_bytes: int, source: str = "") -> int:
    """Returns the CRC-32C of the whole object, from a tail that `decode_directory` accepts.

    The directory has the checksums of all bytes before it. Raises CorruptFile if it does not
    cover every byte.
    """
    view = memoryview(tail)
    if len(view) == size_bytes:
        return crc32c.crc32c(view)
    length, *_ = _FOOTER.unpack(view[-FOOTER_BYTES:])
    end = view[len(view) - FOOTER_BYTES - length :]
    position, checksum = len(MAGIC), crc32c.crc32c(MAGIC)
    for _, start, section_bytes, section_crc in json.loads(bytes(end[:-FOOTER_BYTES])):
        if start != position:
            raise CorruptFile(f"{source}: the directory leaves out bytes from {position} on")
        checksum = crc32c.joined(checksum, section_crc, section_bytes)
        position += section_bytes
    if position != size_bytes - len(end):
        raise CorruptFile(f"{source}: the directory leaves out bytes from {position} on")
    return crc32c.crc32c(end, checksum)


def decode(content: Buffer, *, source: str = "") -> dict[Section, bytes]:
    """All sections of a whole object, each checked. Raises CorruptFile or UnsupportedFormat."""
    view = memoryview(content)
    directory = decode_directory(view, size_bytes=len(view), source=source)
    return {
        section: found.check(view[found.position : found.position + found.length], source=source)
        for section, found in directory.items()
    }


class MetaReader:
    """Reads sections of one object and keeps its tail: blocking, not shared between threads.

    With `meta_crc32c` from the manifest it must be exactly that object: another segment's may have
    the same length, and be valid.
    """

    def __init__(
        self,
        store: GetsRanges,
        meta_key: str,
        meta_size_bytes: int,
        meta_crc32c: int | None = None,
    ) -> None:
        self._store = store
        self._key = meta_key
        self._size_bytes = meta_size_bytes
        self._unchecked_crc32c = meta_crc32c
        self._tail = b""
        self._directory: Mapping[Section, SectionRange] | None = None

    def read(self, section: Section) -> bytes | None:
        """As `section`; any corruption is an ObjectCorrupt that names the object."""
        try:
            return self.section(section)
        except CorruptFile as error:
            raise ObjectCorrupt(self._key, "get", str(error)) from error

    def section(self, section: Section) -> bytes | None:
        """The section's bytes; None if the object has no such section. Raises CorruptFile."""
        found = self._load_directory().get(section)
        content = None
        if found is not None:
            content = found.check(self._section_bytes(found), source=self._key)
        if self._unchecked_crc32c is not None:
            whole = object_checksum(self._tail, size_bytes=self._size_bytes, source=self._key)
            if whole != self._unchecked_crc32c:
                raise CorruptFile(
                    f"{self._key}: checksum of the whole object differs from the manifest's"
                )
            self._unchecked_crc32c = None
        return content

    def _load_directory(self) -> Mapping[Section, SectionRange]:
        if self._directory is None:
            try:
                self._directory = self._read_directory(TAIL_BYTES)
            except DirectoryOutsideTail as error:
                self._directory = self._read_directory(error.needed_bytes)
        return self._directory

    def _read_directory(self, tail_bytes: int) -> Mapping[Section, SectionRange]:
        start = max(0, self._size_bytes - tail_bytes)
        self._tail = self._store.get(self._key, start=start, end=self._size_bytes)
        return decode_directory(self._tail, size_bytes=self._size_bytes, source=self._key)

    def _section_bytes(self, found: SectionRange) -> Buffer:
        tail_position = self._size_bytes - len(self._tail)
        if found.position >= tail_position:
            start = found.position - tail_position
            return memoryview(self._tail)[start : start + found.length]
        if not found.length:
            return b""
        return self._store.get(self._key, start=found.position, end=found.position + found.length)


def read_section(
    store: GetsRanges, meta_key: str, meta_size_bytes: int, section: Section
) -> bytes | None:
    """One section of one object; `MetaReader` for several. Raises ObjectCorrupt, or as `get`."""
    return MetaReader(store, meta_key, meta_size_bytes).read(section)


# --- sections --------------------------------------------------------------------------------


def encode_leader_epochs(epochs: Sequence[EpochStart]) -> bytes:
    """Kafka's checkpoint text: version, count, `epoch start_offset` lines."""
    lines = ["0", str(len(epochs)), *(f"{epoch} {offset}" for epoch, offset in epochs)]
    return ("\n".join(lines) + "\n").encode()


def decode_leader_epochs(content: Buffer, *, source: str = "") -> tuple[EpochStart, ...]:
    """Raises CorruptFile."""
    try:
        version, count, *lines = bytes(content).decode("ascii").split("\n")
        pairs = [line.split(" ") for line in lines if line]
        epochs = tuple(EpochStart(int(epoch), int(offset)) for epoch, offset in pairs)
        if version != "0" or int(count) != len(epochs):
            raise ValueError(f"version {version}, {count} entries, {len(epochs)} lines")
    except ValueError as error:
        raise CorruptFile(f"{source}: leader epochs are unreadable: {error}") from error
    return epochs


def _check_chunks(chunks: Sequence[ChunkStatistics], source: str) -> None:
    if chunks and chunks[0].position != 0:
        raise CorruptFile(f"{source}: first chunk begins at {chunks[0].position}")
    for previous, chunk in itertools.pairwise(chunks):
        if chunk.position <= previous.position or chunk.base_offset <= previous.base_offset:
            raise CorruptFile(f"{source}: chunks are out of order at {chunk.position}")
