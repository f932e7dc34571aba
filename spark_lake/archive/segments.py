"""Readers of one archived segment: its `.meta` sections, and its log in checked windows.

    .meta    tail -> directory -> STATISTICS (which chunks), TXN_INDEX (what was aborted)
    .log     ranges of chunks, each read in windows:

             range  [chunk 3 | chunk 4 | chunk 5]            as the statistics cut it
             window [............|............|....]         at most WINDOW_BYTES, one GET each
             block  [whole batches][whole batches ][..]      a window without its torn end, which
                                                             goes in front of the next one

A ranged GET carries no checksum. So before a block returns its first row, its batches must have the
right CRCs, and offsets that grow and stay inside the range (the CRC does not cover them). A block
that fails is read once more; then the segment is corrupt. Each chunk must have the checksum of the
statistics, a whole segment that of the manifest, and each range its record count, so that a wrong
object under the right name does not become rows. These are checked before a block's rows, too.

`salvaged` tells a damaged chunk's batches from what is lost of it, for who keeps account of that:

    only CRCs are wrong      headers, offsets and record counts are as archived: the batches with
                             a wrong CRC are lost
    anything else            torn, cut, or perhaps another segment's: all of the chunk is lost
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from strandline.spark_lake.archive.objects import ObjectReader, naming_later_formats
from strandline.spark_lake.archive.open_segment import PIECE_REMEDY
from strandline.spark_lake.plan.splits import WINDOW_BYTES, ChunkChecksum, ChunkRange, OpenPiece
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    ObjectCorrupt,
    ObjectNotFound,
    UnsupportedFormat,
)
from strandline.storage.model import AbortedTransaction, Offset, Position
from strandline.storage.records.batch.any_batch import check_crc, walk
from strandline.storage.records.batch.batch import LOG_OVERHEAD, LOG_OVERHEAD_BYTES, Batch
from strandline.storage.records.columns.key_filter import KeyFilter
from strandline.storage.records.txn_index import decode_entries
from strandline.storage.remote.keys import parse_partition_object
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.segment.meta import (
    MetaReader,
    Section,
    SegmentStatistics,
)
from strandline.storage.system import crc32c

CORRUPT_REMEDY = (
    "restore the object from a backup or a version of the bucket (`strandline archive verify` names"
    " all that is damaged), or leave its offsets out with startingOffsets or endingOffsets (a"
    " table: --on-error reject)"
)
META_REMEDY = (
    "`strandline archive verify --repair` makes it anew, unless its segment has transactions: then"
    " restore it from a backup or a version of the bucket"
)


def offsets_of(entry: SegmentEntry) -> str:
    """Returns the segment's offsets for an error text; its name has only the first."""
    parsed = parse_partition_object(entry.log_key)
    of_partition = ""
    if parsed is not None:
        partition = parsed.partition
        of_partition = f" of {partition.topic} partition {partition.partition}"
    return f"it has the offsets {entry.base_offset} to {entry.end_offset - 1}{of_partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecords:
    """Archived records that cannot be read; compaction may have left fewer than offsets."""

    base_offset: Offset
    end_offset: Offset
    record_count: int
    reason: str


class _SegmentObjects:
    """The objects of one segment; errors about them name its offsets."""

    def __init__(self, reader: ObjectReader, entry: SegmentEntry) -> None:
        self._reader = reader
        self._entry = entry

    def get(self, key: str, *, start: Position, end: Position) -> bytes:
        """As `ObjectReader.get`."""
        try:
            return self._reader.get(key, start=start, end=end)
        except (ObjectCorrupt, ObjectNotFound) as error:
            detail = f"{error.detail}; {offsets_of(self._entry)}"
            raise type(error)(error.key, error.operation, detail) from error

    def corrupt(self, key: str, detail: str) -> ObjectCorrupt:
        """Returns the error for an object that differs from the archived one."""
        remedy = META_REMEDY if key == self._entry.meta_key else CORRUPT_REMEDY
        if isinstance(self._entry, OpenPiece):
            remedy = PIECE_REMEDY
        detail = f"{detail}; {remedy}; {offsets_of(self._entry)}"
        return ObjectCorrupt(self.name(key), "read", detail)

    def name(self, key: str) -> str:
        return f"{self._reader.url}/{key}"

    @contextmanager
    def naming_damage(self, key: str) -> Iterator[None]:
        """Converts decoding errors to errors that name the object."""
        try:
            with naming_later_formats(self._reader.url):
                yield
        except CorruptFile as error:
            raise self.corrupt(key, str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBlock:
    """Whole batches with correct CRCs, and their position in the log."""

    position: Position
    content: memoryview
    batches: Sequence[Batch]


class SegmentMeta:
    """Reader of one segment's `.meta`; raises ObjectCorrupt if it is damaged or another segment's.

    Sections are fetched on first use.
    """

    def __init__(self, reader: ObjectReader, entry: SegmentEntry) -> None:
        self._entry = entry
        self._objects = _SegmentObjects(reader, entry)
        # Another segment's chunks, keys and transactions would lose rows, or add some.
        self._meta = MetaReader(
            self._objects, entry.meta_key, entry.meta_size_bytes, entry.meta_crc32c
        )

    def statistics(self) -> SegmentStatistics:
        """Returns the statistics, which must exist and agree with the manifest."""
        entry = self._entry
        with self._objects.naming_damage(entry.meta_key):
            content = self._meta.section(Section.STATISTICS)
            if content is None:
                raise CorruptFile("has no statistics")
            statistics = SegmentStatistics.decode(content, source=entry.meta_key)
            chunks = statistics.chunks
            if (
                not chunks
                or statistics.record_count != entry.record_count
                or sum(chunk.record_count for chunk in chunks) != entry.record_count
                or chunks[0].base_offset < entry.base_offset
                or chunks[-1].base_offset >= entry.end_offset
                or chunks[-1].position >= entry.size_bytes
            ):
                raise CorruptFile("has statistics that do not fit the manifest")
        return statistics

    def key_filter(self) -> KeyFilter | None:
        """Returns the key filter; None if the broker wrote none because it would save nothing."""
        with self._objects.naming_damage(self._entry.meta_key):
            content = self._meta.section(Section.KEY_FILTER)
            if content is None:
                return None
            try:
                return KeyFilter.decode(content, source=self._entry.meta_key)
            except UnsupportedFormat:
                # A filter only saves work; one of a later release is ignored.
                return None

    def aborted_transactions(self) -> tuple[AbortedTransaction, ...]:
        """Returns every aborted transaction that has records in the segment."""
        with self._objects.naming_damage(self._entry.meta_key):
            content = self._meta.section(Section.TXN_INDEX)
            return decode_entries(content or b"", source=self._entry.meta_key)


def whole_segment(entry: SegmentEntry) -> ChunkRange:
    """Returns the whole segment as a range, without its statistics."""
    return ChunkRange(
        start_position=0,
        end_position=entry.size_bytes,
        base_offset=entry.base_offset,
        end_offset=entry.end_offset,
        record_count=entry.record_count,
    )


def chunk_ranges(entry: SegmentEntry, statistics: SegmentStatistics) -> list[ChunkRange]:
    """Returns each chunk as a range of its own."""
    chunks = statistics.chunks
    ends = [(chunk.position, chunk.base_offset) for chunk in chunks[1:]]
    ends.append((entry.size_bytes, entry.end_offset))
    return [
        ChunkRange(
            start_position=chunk.position,
            end_position=end_position,
            base_offset=chunk.base_offset,
            end_offset=end_offset,
            record_count=chunk.record_count,
            checksums=()
            if chunk.crc32c is None
            else (ChunkChecksum(end_position=end_position, crc32c=chunk.crc32c),),
        )
        for chunk, (end_position, end_offset) in zip(chunks, ends, strict=True)
    ]


def joined(ranges: Sequence[ChunkRange]) -> list[ChunkRange]:
    """Merges adjacent ranges."""
    result: list[ChunkRange] = []
    for part in ranges:
        if result and result[-1].end_position == part.start_position:
            before = result[-1]
            result[-1] = ChunkRange(
                start_position=before.start_position,
                end_position=part.end_position,
                base_offset=before.base_offset,
                end_offset=part.end_offset,
                record_count=before.record_count + part.record_count,
                checksums=before.checksums + part.checksums,
            )
        else:
            result.append(part)
    return result


class LogReader:
    """Reader of ranges of one log object as checked blocks, with one window of prefetch."""

    def __init__(
        self,
        reader: ObjectReader,
        entry: SegmentEntry,
        *,
        ahead: ThreadPoolExecutor | None,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """`ahead` prefetches the next window while the caller works; None disables prefetch."""
        self._entry = entry
        self._objects = _SegmentObjects(reader, entry)
        self._ahead = ahead
        self._window_bytes = window_bytes

    def first_window(self, part: ChunkRange) -> Future[bytes] | None:
        """Prefetches the first window of a range, for `blocks`."""
        if self._ahead is None:
            return None
        end = min(part.start_position + self._window_bytes, part.end_position)
        return self._ahead.submit(self._fetch, part.start_position, end)

    def blocks(
        self,
        part: ChunkRange,
        *,
        first: Future[bytes] | None = None,
        then: Callable[[], None] | None = None,
    ) -> Iterator[LogBlock]:
        """The blocks of a range in order. Raises ObjectCorrupt unless it is exactly as archived.

        `first` is the result of `first_window`; `then` is called after the last window was fetched.
        """
        is_whole = part.end_position - part.start_position == self._entry.size_bytes
        checksums = _Checksums(part, self._entry.log_crc32c if is_whole else None)
        expected = _Expected(
            position=part.start_position,
            end_position=part.end_position,
            next_offset=part.base_offset,
            end_offset=part.end_offset,
        )
        record_count = 0
        torn = b""
        for window in self._windows(part, first, then):
            block = self._checked(torn + window if torn else window, expected)
            consumed = block.batches[-1].end_position if block.batches else 0
            torn = bytes(block.content[consumed:])
            if block.batches:
                record_count += sum(header.record_count for _, header in block.batches)
                expected = expected.after(block)
                if expected.position == part.end_position and record_count != part.record_count:
                    raise self._corrupt(
                        part.start_position,
                        f"holds {record_count} records up to byte {part.end_position},"
                        f" {part.record_count} were archived",
                    )
                if (wrong := checksums.wrong_after(block.content[:consumed])) is not None:
                    raise self._corrupt(*wrong)
                yield block
        if torn:
            raise self._corrupt(expected.position, f"{len(torn)} bytes behind the last batch")

    def salvaged(self, part: ChunkRange) -> Iterator[LogBlock | LostRecords]:
        """What is left of a chunk and what is lost of it, in order; the window must hold it.

        Raises ObjectNotFound, or another TierError of the store.
        """
        try:
            yield from list(self.blocks(part))
        except ObjectCorrupt:
            yield from self._left_of(part)

    def lost(self, batch: Batch, position: Position, why: str) -> LostRecords:
        """The records of a batch in the block at `position`."""
        header = batch.header
        start, end = position + batch.position, position + batch.end_position
        return LostRecords(
            base_offset=header.base_offset,
            end_offset=header.next_offset,
            record_count=header.record_count,
            reason=f"the batch with the offsets {header.base_offset} to {header.last_offset} {why}"
            f" ({self._place(start, end)})",
        )

    def _left_of(self, part: ChunkRange) -> Iterator[LogBlock | LostRecords]:
        try:
            block = _by_headers(self._fetch(part.start_position, part.end_position), part)
        except (ObjectCorrupt, CorruptRecords):
            place = self._place(part.start_position, part.end_position)
            yield LostRecords(
                base_offset=part.base_offset,
                end_offset=part.end_offset,
                record_count=part.record_count,
                reason=f"the offsets {part.base_offset} to {part.end_offset - 1} are in a damaged"
                f" part of the archive ({place})",
            )
            return
        for batch in block.batches:
            if _has_right_crc(block, batch):
                yield replace(block, batches=[batch])
            else:
                yield self.lost(batch, block.position, "has a wrong CRC")

    def _place(self, start: Position, end: Position) -> str:
        return f"bytes {start} to {end} of {self._objects.name(self._entry.log_key)}"

    def _windows(
        self,
        part: ChunkRange,
        first: Future[bytes] | None,
        then: Callable[[], None] | None,
    ) -> Iterator[bytes]:
        edges = [*range(part.start_position, part.end_position, self._window_bytes)]
        edges.append(part.end_position)
        waiting = first
        for number, (start, end) in enumerate(pairwise(edges)):
            window = waiting.result() if waiting else self._fetch(start, end)
            waiting = None
            if self._ahead is not None and number + 2 < len(edges):
                waiting = self._ahead.submit(self._fetch, end, edges[number + 2])
            elif then is not None and number + 2 == len(edges):
                then()
            yield window

    def _fetch(self, start: Position, end: Position) -> bytes:
        return self._objects.get(self._entry.log_key, start=start, end=end)

    def _checked(self, content: bytes, expected: _Expected) -> LogBlock:
        try:
            return _verified(content, expected)
        except CorruptRecords:
            # Bytes may be damaged in transit, which no lower layer notices.
            again = self._fetch(expected.position, expected.position + len(content))
        try:
            return _verified(again, expected)
        except CorruptRecords as error:
            raise self._corrupt(expected.position, str(error)) from error

    def _corrupt(self, position: Position, detail: str) -> ObjectCorrupt:
        return self._objects.corrupt(self._entry.log_key, f"from byte {position}: {detail}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """The start and the limits of the next block."""

    position: Position
    end_position: Position
    next_offset: Offset
    end_offset: Offset

    def after(self, block: LogBlock) -> _Expected:
        last = block.batches[-1]
        return replace(
            self, position=self.position + last.end_position, next_offset=last.header.next_offset
        )


class _Checksums:
    """Verifier of the checksums of a range, chunk by chunk or as a whole.

    Batches with correct CRCs may still be wrong: those of another segment of the same shape, or
    with changed offsets, which the CRC does not cover.
    """

    def __init__(self, part: ChunkRange, whole_crc32c: int | None) -> None:
        """`whole_crc32c` is the checksum of a range that is the whole object."""
        self._wanted = [
            (one.end_position, one.crc32c, "checksum of the chunk differs from the statistics'")
            for one in part.checksums
        ]
        if not self._wanted and whole_crc32c is not None:
            detail = "checksum of the whole object differs from the manifest's"
            self._wanted = [(part.end_position, whole_crc32c, detail)]
        self._wanted.reverse()
        self._position = self._start_position = part.start_position
        self._crc = 0

    def wrong_after(self, content: memoryview) -> tuple[Position, str] | None:
        """Adds the next bytes; the position of the first wrong chunk that ends in them, and why."""
        start = 0
        end_position = self._position + len(content)
        while self._wanted and self._wanted[-1][0] <= end_position:
            chunk_end, wanted, detail = self._wanted.pop()
            end = chunk_end - self._position
            if crc32c.crc32c(content[start:end], self._crc) != wanted:
                return self._start_position, detail
            self._start_position, self._crc = chunk_end, 0
            start = end
        if self._wanted:
            self._crc = crc32c.crc32c(content[start:], self._crc)
        self._position = end_position
        return None


def _by_headers(content: bytes, part: ChunkRange) -> LogBlock:
    """The batches of a damaged chunk. Raises CorruptRecords unless only CRCs can be wrong."""
    block = _verified(
        content,
        _Expected(
            position=part.start_position,
            end_position=part.end_position,
            next_offset=part.base_offset,
            end_offset=part.end_offset,
        ),
        verify_crc=False,
    )
    ends_right = bool(block.batches) and block.batches[-1].end_position == len(content)
    record_count = sum(header.record_count for _, header in block.batches)
    if not ends_right or record_count != part.record_count:
        raise CorruptRecords("the headers are not those that were archived")
    is_whole = all(crc32c.crc32c(content) == one.crc32c for one in part.checksums)
    if not is_whole and all(_has_right_crc(block, one) for one in block.batches):
        # As of another segment of the same shape.
        raise CorruptRecords("each batch is whole, and the chunk is not what was archived")
    return block


def _has_right_crc(block: LogBlock, batch: Batch) -> bool:
    try:
        check_crc(block.content, batch.header, batch.position)
    except CorruptRecords:
        return False
    return True


def _verified(content: bytes, expected: _Expected, *, verify_crc: bool = True) -> LogBlock:
    """Returns the batches of `content`. Raises CorruptRecords unless they continue the range."""
    view = memoryview(content)
    batches = list(walk(view, verify_crc=verify_crc))
    next_offset = expected.next_offset
    for _, header in batches:
        last_offset = header.base_offset + header.last_offset_delta
        if header.base_offset < next_offset or last_offset >= expected.end_offset:
            raise CorruptRecords(
                f"a batch with the offsets {header.base_offset} to {last_offset} lies where"
                f" {next_offset} to {expected.end_offset - 1} belong"
            )
        next_offset = last_offset + 1
    torn_position = batches[-1].end_position if batches else 0
    _check_torn(view, torn_position, expected.end_position - expected.position)
    return LogBlock(position=expected.position, content=view, batches=batches)


def _check_torn(view: memoryview, start: Position, bytes_left: int) -> None:
    """Refuses a batch that would end beyond its range before all of it is loaded."""
    if len(view) - start >= LOG_OVERHEAD_BYTES:
        _, batch_length = LOG_OVERHEAD.unpack_from(view, start)
        if start + LOG_OVERHEAD_BYTES + batch_length > bytes_left:
            raise CorruptRecords(f"a batch of {batch_length} bytes reaches beyond its chunk")
