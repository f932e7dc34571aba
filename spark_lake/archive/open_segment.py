"""Reader of the open segment's pieces as the end of the archive, for records of the last hour.

    segments   [ archived ][ archived ]
    pieces                             [ piece ][piece][p]      manifest, written by the broker
    entries    [ segment  ][ segment  ][ piece ][piece]         what the planner gets
                                               ^ stable end     first undecided record

A piece has no `.meta`: no statistics, no key filter, no aborted transactions. If the manifest says
that it has no transactions, only a task reads it. Else the planner reads its headers and markers,
because `read_committed` must know the aborted transactions, and ends before the first transaction
that the pieces neither commit nor abort. Later uploads never change the rows below that end.

Pieces are used only if they continue the archive's end: while a closed segment is being uploaded
there may be a gap, and the pieces after it wait for that upload.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.plan.splits import OpenPiece
from strandline.storage.errors import CorruptRecords, ObjectCorrupt
from strandline.storage.model import AbortedTransaction, Isolation, Offset
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.marker import MarkerType, read_marker
from strandline.storage.records.columns.vectorised import INT64_MAX, INT64_MIN
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.system import crc32c

# The broker writes none larger; a task holds a whole piece in memory.
PIECE_BYTES_MAX = 16 * 1024 * 1024
# Scans that a stream keeps between triggers: enough for a few large open segments.
SCANS_KEPT = 256

PIECE_REMEDY = "includeOpenSegment=false leaves the pieces of open segments out"


def with_open_segment(manifest: Manifest, reader: ObjectReader, isolation: Isolation) -> Manifest:
    """Returns the manifest with its usable pieces as entries after the segments.

    Raises ObjectNotFound for a piece that is gone, ObjectCorrupt for one that is damaged.
    """
    parts = usable_parts(manifest)
    entries = tuple(_entries(parts, reader, isolation))
    return replace(manifest, segments=(*manifest.segments, *entries)) if entries else manifest


def usable_parts(manifest: Manifest) -> tuple[TailPart, ...]:
    """Returns the pieces, if they continue the archive's end without a gap."""
    tail = manifest.tail
    reached = max(manifest.end_offset, manifest.log_start_offset)
    if not tail or tail[0].base_offset > reached or tail[-1].end_offset <= reached:
        return ()
    overlaps = not manifest.is_empty and tail[0].base_offset < manifest.end_offset
    return () if overlaps else tail


def _entries(
    parts: Sequence[TailPart], reader: ObjectReader, isolation: Isolation
) -> Iterator[OpenPiece]:
    is_committed = isolation is Isolation.READ_COMMITTED
    scans = [
        _scans.of(reader, part)
        if part.record_count is None or (part.has_transactions and is_committed)
        else None
        for part in parts
    ]
    decided = _Transactions()
    if is_committed:
        for scan in scans:
            for event in () if scan is None else scan.events:
                decided.add(event)
    stable_end = decided.stable_end
    for part, scan in zip(parts, scans, strict=True):
        if part.base_offset >= stable_end:
            return
        piece = OpenPiece(
            base_offset=part.base_offset,
            end_offset=part.end_offset,
            leader_epochs=(),
            size_bytes=part.size_bytes,
            record_count=scan.record_count if scan is not None else part.record_count or 0,
            # Unknown: headers have the latest timestamp, not the earliest.
            min_timestamp_ms=INT64_MIN,
            max_timestamp_ms=INT64_MAX,
            log_key=part.key,
            meta_key=part.key,
            log_crc32c=part.crc32c,
            meta_size_bytes=0,
            meta_crc32c=0,
            has_transactions=scan.has_transactions if scan else bool(part.has_transactions),
            uploaded_ms=part.uploaded_ms,
            aborted=tuple(
                one
                for one in decided.aborted
                if one.first_offset < part.end_offset and one.last_offset >= part.base_offset
            ),
        )
        yield piece if part.end_offset <= stable_end else _before(stable_end, piece, part, reader)


def _before(
    end_offset: Offset, piece: OpenPiece, part: TailPart, reader: ObjectReader
) -> OpenPiece:
    """Returns the part of a piece before `end_offset`, where a batch in its middle begins."""
    content = _content(reader, part)
    size_bytes = record_count = 0
    for batch in walk(content):
        if batch.header.base_offset >= end_offset:
            break
        size_bytes = batch.end_position
        record_count += batch.header.record_count
    return replace(
        piece,
        end_offset=end_offset,
        size_bytes=size_bytes,
        record_count=record_count,
        log_crc32c=crc32c.crc32c(memoryview(content)[:size_bytes]),
    )


# --- transactions -----------------------------------------------------------------------------


class _Event(NamedTuple):
    """A producer wrote in a transaction, from `offset` on; with an end, its marker is there."""

    producer_id: int
    offset: Offset
    end: MarkerType | None


class _Transactions:
    """The aborted transactions, and the first offset of the first undecided one."""

    def __init__(self) -> None:
        self._open: dict[int, Offset] = {}
        self.aborted: list[AbortedTransaction] = []

    def add(self, event: _Event) -> None:
        if event.end is None:
            self._open.setdefault(event.producer_id, event.offset)
            return
        first_offset = self._open.pop(event.producer_id, None)
        if first_offset is not None and event.end is MarkerType.ABORT:
            self.aborted.append(
                AbortedTransaction(event.producer_id, first_offset, event.offset, first_offset)
            )

    @property
    def stable_end(self) -> Offset:
        """The first undecided offset: every transaction below it has ended."""
        return min(self._open.values(), default=INT64_MAX)


# --- reading pieces ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """The transaction events in the batches of one piece."""

    record_count: int
    has_transactions: bool
    events: tuple[_Event, ...]


class _Scans:
    """LRU cache of scans by key; objects never change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], _Scan] = OrderedDict()

    def of(self, reader: ObjectReader, part: TailPart) -> _Scan:
        name = (reader.url, part.key)
        with self._lock:
            known = self._known.get(name)
        if known is None:
            known = _scanned(reader, part)
            with self._lock:
                self._known[name] = known
                while len(self._known) > SCANS_KEPT:
                    self._known.popitem(last=False)
        return known


_scans = _Scans()


def _scanned(reader: ObjectReader, part: TailPart) -> _Scan:
    content = _content(reader, part)
    try:
        headers = [batch.header for batch in walk(content)]
        is_transactional = any(header.is_transactional for header in headers)
        events = tuple(_events(content)) if is_transactional else ()
    except CorruptRecords as error:
        raise _corrupt(reader, part, str(error)) from error
    return _Scan(
        record_count=sum(header.record_count for header in headers),
        has_transactions=is_transactional,
        events=events,
    )


def _events(content: bytes) -> Iterator[_Event]:
    """Yields the events of a piece; of a producer's consecutive batches only the first is one."""
    writing: set[int] = set()
    for batch in walk(content):
        header = batch.header
        if not header.is_transactional:
            continue
        producer_id = header.producer_id
        if header.is_control:
            marker = read_marker(content, header, batch.position)
            if marker is not None:
                writing.discard(producer_id)
                yield _Event(producer_id, header.last_offset, marker.type)
        elif producer_id not in writing:
            writing.add(producer_id)
            yield _Event(producer_id, header.base_offset, None)


def _content(reader: ObjectReader, part: TailPart) -> bytes:
    """Returns the whole piece. Raises ObjectCorrupt unless it is what the manifest says."""
    if part.size_bytes > PIECE_BYTES_MAX:
        raise _corrupt(reader, part, f"{part.size_bytes} bytes are more than a piece can have")
    # Bytes may be damaged in transit: they are read once more.
    for _ in range(2):
        content = reader.get(part.key, end=part.size_bytes)
        if crc32c.crc32c(content) == part.crc32c:
            return content
    raise _corrupt(reader, part, "checksum differs from the manifest's")


def _corrupt(reader: ObjectReader, part: TailPart, detail: str) -> ObjectCorrupt:
    return ObjectCorrupt(f"{reader.url}/{part.key}", "read", f"{detail}; {PIECE_REMEDY}")
