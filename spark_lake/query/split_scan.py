"""Reader of one split into Arrow record batches; each task runs one.

    for each slice   statistics, if limits or the cut ask for them -> wanted chunks
                     aborted transactions, if the segment has any
                     a piece of the open segment: whole, or its replacement
    for each block   wanted batches -> runs -> decoded rows within the limits -> record batch

Left out: control batches, records of aborted transactions unless the option is `read_uncommitted`,
rows outside the limits. All other rows come in offset order, or an error does.

The transaction index of a segment's `.meta` holds every aborted transaction that has records in
the segment, wherever its marker is.

With `lost_schema` a damaged segment is no error. It is read chunk by chunk, without prefetch, and
each of its records that cannot be read is a row of its offset and the reason:

    for each chunk   right checksum                -> batches, one by one -> rows
                     another                       -> what is left of it (`LogReader.salvaged`)
    a batch that is lost, or does not decode       -> rows of its offsets

A `.meta` without checksums of chunks cannot tell where its segment is damaged: that stays an error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pyarrow as pa

from strandline.spark_lake.archive.catalog import LOOKS_MAX, Catalog
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.archive.open_segment import PIECE_BYTES_MAX
from strandline.spark_lake.archive.segments import (
    LogBlock,
    LogReader,
    LostRecords,
    SegmentMeta,
    joined,
    whole_segment,
)
from strandline.spark_lake.archive.split_prefetch import LogRange, SplitPrefetch
from strandline.spark_lake.options.options import CORRUPT_COLUMN, REASON_COLUMN
from strandline.spark_lake.plan.planner import OffsetRange
from strandline.spark_lake.plan.splits import ChunkRange, OpenPiece, SegmentSlice, Split
from strandline.spark_lake.query.arrow import ArrowEncoder
from strandline.spark_lake.query.pruning import Keys, may_have, owned_chunks, prune
from strandline.spark_lake.query.report import TaskReport
from strandline.spark_lake.query.row_filter import RowFilter
from strandline.spark_lake.values.decoders.decoder import UnparsableRecord, ValueColumns
from strandline.storage.errors import (
    CorruptRecords,
    ObjectCorrupt,
    ObjectNotFound,
    UnsupportedCodec,
)
from strandline.storage.model import AbortedTransaction, Isolation
from strandline.storage.records.batch.batch import CONTROL_BIT, BatchHeader
from strandline.storage.records.columns.columns import (
    OUTPUT_ROWS_MAX,
    RowLimits,
    Run,
    RunBuilder,
    decode,
)
from strandline.storage.remote.keys import parse_partition_object
from strandline.storage.remote.manifest.entries import SegmentEntry

DECODE_HINT = (
    "its checksum is right, so this is what its producer wrote: leave the batch out with"
    " startingOffsets and endingOffsets (a table: --on-error reject)"
)


class SplitScan:
    """Reader of one split; `record_batches` may be called once."""

    def __init__(
        self,
        reader: ObjectReader,
        split: Split,
        *,
        columns: Sequence[str],
        isolation: Isolation,
        keys: Keys = None,
        row_filter: RowFilter | None = None,
        values: ValueColumns | None = None,
        looks_left: int = LOOKS_MAX,
        counts: TaskReport | None = None,
        lost_schema: Any = None,
    ) -> None:
        """`looks_left` bounds the searches for the successor of a deleted piece.

        `lost_schema` is that of the rows for records that cannot be read; None: they are an error.
        """
        self._reader = reader
        self._split = split
        self._isolation = isolation
        self._looks_left = looks_left
        self._keys = keys
        self._row_filter = row_filter or RowFilter()
        self._columns = list(columns)
        self._values = values
        self._encoder = ArrowEncoder(self._needed(), split.topic_partition)
        self.counts = counts or TaskReport()
        self._lost_schema = lost_schema

    def record_batches(self) -> Iterator[Any]:
        """`pyarrow.RecordBatch`es in offset order.

        Raises a TierError or CorruptRecords that names the object and what to do about it.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="lake-window") as ahead:
            todo = SplitPrefetch(
                one for piece in self._split.slices for one in self._ranges(piece, ahead)
            )
            while (one := todo.take()) is not None:
                yield from self._read(one, todo)

    def _ranges(self, piece: SegmentSlice, ahead: ThreadPoolExecutor) -> Iterator[LogRange]:
        """Yields the ranges of a slice to read, by its `.meta`."""
        entry = piece.entry
        if isinstance(entry, OpenPiece):
            yield LogRange(
                entry=entry,
                log=LogReader(self._reader, entry, ahead=ahead, window_bytes=PIECE_BYTES_MAX),
                part=whole_segment(entry),
                aborted=entry.aborted,
                chunks=1,
            )
            return
        meta = SegmentMeta(self._reader, entry)
        if self._lost_schema is not None:
            parts = self._wanted_chunks(meta, piece)
            if all(part.checksums for part in parts):
                yield from self._chunk_ranges(piece, meta, parts)
                return
        pruned = prune(meta, piece, self._split.limits, self._keys)
        self.counts.chunks_skipped += pruned.chunks_skipped
        if not pruned.ranges:
            self.counts.segments_skipped.append(entry.log_key)
            return
        aborted = self._aborted(entry, meta)
        log = LogReader(self._reader, entry, ahead=ahead)
        for number, part in enumerate(joined(pruned.ranges)):
            chunks = None if number else len(pruned.ranges)
            yield LogRange(entry=entry, log=log, part=part, aborted=aborted, chunks=chunks)

    def _wanted_chunks(self, meta: SegmentMeta, piece: SegmentSlice) -> list[ChunkRange]:
        limits = self._split.limits
        owned = owned_chunks(meta, piece)
        return [part for part, chunk in owned if may_have(part, chunk, limits)]

    def _chunk_ranges(
        self, piece: SegmentSlice, meta: SegmentMeta, parts: Sequence[ChunkRange]
    ) -> Iterator[LogRange]:
        """Yields each chunk as a range, which one window holds."""
        entry = piece.entry
        aborted = self._aborted(entry, meta)
        for number, part in enumerate(parts):
            log = LogReader(self._reader, entry, ahead=None, window_bytes=part.size_bytes)
            chunks = None if number else len(parts)
            yield LogRange(entry=entry, log=log, part=part, aborted=aborted, chunks=chunks)

    def _read(self, one: LogRange, todo: SplitPrefetch) -> Iterator[Any]:
        if self._lost_schema is not None and one.part.checksums:
            yield from self._salvaged(one)
            return
        blocks = one.log.blocks(one.part, first=one.first, then=todo.fetch_next)
        if isinstance(one.entry, OpenPiece):
            try:
                # All of it is in memory and checked before its first row is returned.
                blocks = iter(list(blocks))
            except ObjectNotFound as error:
                yield from self._replaced(one.entry, error)
                return
        if one.chunks is not None:
            self.counts.segments_read.append(one.entry.log_key)
        for block in blocks:
            yield from self._encoded(one.entry, block, one.aborted)

    def _replaced(self, piece: OpenPiece, error: ObjectNotFound) -> Iterator[Any]:
        """Yields the same offsets from newer uploads; raises `error` if those do not have them."""
        parsed = parse_partition_object(piece.log_key)
        offsets = OffsetRange(start_offset=piece.base_offset, end_offset=piece.end_offset)
        if parsed is None or not self._looks_left:
            raise error
        entries = Catalog(self._reader).entries_for(parsed.partition, offsets, self._isolation)
        if not entries or any(entry.log_key == piece.log_key for entry in entries):
            raise error
        limits = self._split.limits
        split = replace(
            self._split,
            slices=tuple(map(SegmentSlice.whole, entries)),
            limits=replace(
                limits,
                start_offset=max(limits.start_offset, offsets.start_offset),
                end_offset=min(limits.end_offset, offsets.end_offset),
            ),
        )
        yield from SplitScan(
            self._reader,
            split,
            columns=self._columns,
            isolation=self._isolation,
            keys=self._keys,
            row_filter=self._row_filter,
            values=self._values,
            looks_left=self._looks_left - 1,
            counts=self.counts,
            lost_schema=self._lost_schema,
        ).record_batches()

    def _salvaged(self, one: LogRange) -> Iterator[Any]:
        """The rows of a chunk in order, with a row for each record that cannot be read."""
        if one.chunks is not None:
            self.counts.segments_read.append(one.entry.log_key)
        for found in one.log.salvaged(one.part):
            if isinstance(found, LostRecords):
                yield from self._lost_rows(found)
                continue
            for batch in found.batches:
                try:
                    # All of it is decoded before its first row is returned.
                    rows = list(
                        self._encoded(one.entry, replace(found, batches=[batch]), one.aborted)
                    )
                except ObjectCorrupt as error:
                    lost = one.log.lost(batch, found.position, f"cannot be read: {error.__cause__}")
                    yield from self._lost_rows(lost)
                else:
                    yield from rows

    # --- rows --------------------------------------------------------------------------------

    def _lost_rows(self, lost: LostRecords) -> Iterator[Any]:
        """Rows of the place and the reason; of fewer records than offsets, the first offsets."""
        limits, partition = self._split.limits, self._split.topic_partition
        first = max(lost.base_offset, limits.start_offset)
        end = min(lost.base_offset + lost.record_count, lost.end_offset, limits.end_offset)
        for start in range(first, end, OUTPUT_ROWS_MAX):
            offsets = range(start, min(start + OUTPUT_ROWS_MAX, end))
            known = {
                "topic": pa.repeat(partition.topic, len(offsets)),
                "partition": pa.repeat(pa.scalar(partition.partition, pa.int32()), len(offsets)),
                "offset": pa.array(offsets, pa.int64()),
                REASON_COLUMN: pa.repeat(lost.reason, len(offsets)),
            }
            arrays = [
                known[one.name] if one.name in known else pa.nulls(len(offsets), one.type)
                for one in self._lost_schema
            ]
            self.counts.rows += len(offsets)
            yield pa.RecordBatch.from_arrays(arrays, schema=self._lost_schema)

    def _aborted(self, entry: SegmentEntry, meta: SegmentMeta) -> tuple[AbortedTransaction, ...]:
        if self._isolation is Isolation.READ_UNCOMMITTED or not entry.has_transactions:
            return ()
        return meta.aborted_transactions()

    def _encoded(
        self, entry: SegmentEntry, block: LogBlock, aborted: Sequence[AbortedTransaction]
    ) -> Iterator[Any]:
        limits = self._split.limits
        with _naming(self._reader, entry):
            for run in _runs(block, limits, aborted):
                for decoded in decode(run, limits=limits, wanted=self._encoder.wanted):
                    batch = self._wanted_rows(self._encoder.encode(decoded))
                    if batch.num_rows:
                        self.counts.rows += batch.num_rows
                        yield batch

    def _needed(self) -> list[str]:
        """Returns the columns to decode: the query's, and those that filters and values need."""
        needed = dict.fromkeys([*self._columns, *self._row_filter.columns])
        if self._values is not None:
            needed.pop(CORRUPT_COLUMN, None)
            needed.pop(REASON_COLUMN, None)
            needed |= dict.fromkeys(["value", "offset"])
        return list(needed)

    def _wanted_rows(self, batch: Any) -> Any:
        if self._row_filter.columns:
            batch = self._row_filter.apply(batch)
        if self._values is not None:
            return self._values.apply(batch) if batch.num_rows else batch
        return batch.select(self._columns) if self._row_filter.columns else batch


_LAST_OFFSET = attrgetter("last_offset")


def _runs(
    block: LogBlock, limits: RowLimits, aborted: Sequence[AbortedTransaction]
) -> Iterator[Run]:
    batches = block.batches
    is_inside = (
        bool(batches)
        and limits.start_offset <= batches[0].header.base_offset
        and batches[-1].header.last_offset < limits.end_offset
    )
    aborted_by_producer = _by_producer(aborted)
    # Each test here costs as much per batch as decoding a dozen records.
    wanted = (
        batch
        for batch in batches
        if not batch.header.attributes & CONTROL_BIT
        and (is_inside or _overlaps(batch.header, limits))
        and not (aborted and _is_aborted(batch.header, aborted_by_producer))
    )
    builder = RunBuilder(block.content)
    yield from builder.add_all(wanted)
    yield from builder.finish()


def _overlaps(header: BatchHeader, limits: RowLimits) -> bool:
    return header.last_offset >= limits.start_offset and header.base_offset < limits.end_offset


def _by_producer(
    aborted: Sequence[AbortedTransaction],
) -> dict[int, list[AbortedTransaction]]:
    """Each producer's aborted transactions in the order of their ends: there may be very many."""
    found: dict[int, list[AbortedTransaction]] = {}
    for transaction in sorted(aborted, key=_LAST_OFFSET):
        found.setdefault(transaction.producer_id, []).append(transaction)
    return found


def _is_aborted(header: BatchHeader, aborted: Mapping[int, Sequence[AbortedTransaction]]) -> bool:
    # A producer has one transaction at a time, so all that it wrote between the first record and
    # the marker of an aborted transaction belongs to it.
    if not header.is_transactional:
        return False
    transactions = aborted.get(header.producer_id, ())
    at = bisect_left(transactions, header.base_offset, key=_LAST_OFFSET)
    return at < len(transactions) and transactions[at].first_offset <= header.base_offset


@contextmanager
def _naming(reader: ObjectReader, entry: SegmentEntry) -> Iterator[None]:
    """Converts errors about records to errors that name their object."""
    try:
        yield
    except UnparsableRecord as error:
        raise ObjectCorrupt(f"{reader.url}/{entry.log_key}", "decode", str(error)) from error
    except (CorruptRecords, UnsupportedCodec) as error:
        raise ObjectCorrupt(
            f"{reader.url}/{entry.log_key}",
            "decode",
            f"{error}; {DECODE_HINT}",
        ) from error
