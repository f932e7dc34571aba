"""Compaction of one log: one pass finds the latest offset of every key, another copies records.

    dirty segments ──index──> key -> latest offset      (until the memory for it is used up)
    all segments, group by group ──copy──> <base>.log.cleaned ...

    a record is kept       if it is the latest of its key, or was not indexed
    a tombstone is kept    until the delete horizon that the first cleaning set in its batch
    a record is dropped    without a key; of an aborted transaction; superseded
    an empty batch is kept, header only, if it is the last of a producer (it has its sequence), or
                           the last of the round (it has the end offset)

Offsets, batch borders and producer fields never change. A batch that keeps its records is copied
as it is; any other is compressed again with the codec it had. Same results as Kafka's Cleaner and
MemoryRecords.filterTo.

Both passes verify the CRC of every batch before they use it: a damaged batch must neither replace
good records nor get a new, valid CRC. It ends the cleaning with CorruptRecords.

The cleaning only reads segment files and writes `.cleaned` ones. It runs in a child process
(`process.py`) while the broker reads the segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from strandline.storage.errors import DiskError
from strandline.storage.local.cleaner.cleaned_batch import empty_batch, rewritten_batch
from strandline.storage.local.cleaner.messages import (
    CleanedGroup,
    CleaningRequest,
    CleaningStatistics,
    SegmentWanted,
)
from strandline.storage.local.cleaner.plan import CleanableFacts, group_segments
from strandline.storage.local.cleaner.transactions import CleanedTransactions
from strandline.storage.local.cleaner.windows import BatchWindow, read_windows
from strandline.storage.local.formats.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    file_name,
)
from strandline.storage.local.segment.cleaned_segment import CleanedFacts, CleanedSegment
from strandline.storage.model import NO_TIMESTAMP, Buffer
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.any_batch import check_crc
from strandline.storage.records.batch.batch import Batch
from strandline.storage.records.batch.marker import read_marker
from strandline.storage.records.columns import vectorised
from strandline.storage.records.columns.key_index import (
    CompiledKeyIndex,
    KeyIndex,
    Payload,
    PlainKeyIndex,
    Retained,
)

# A delete horizon this far away never comes, and timestamps relative to it still fit in 64 bits.
HORIZON_MS_MAX = 2**62


class Cleaning:
    """One compaction run over one log."""

    def __init__(
        self,
        request: CleaningRequest,
        *,
        spend: Callable[[int], None] = lambda _bytes: None,
        fetch: Callable[[SegmentWanted], None] = lambda _wanted: None,
        compiled: bool | None = None,
    ) -> None:
        """`spend` is called with bytes read and written; it may wait or raise. `fetch` makes a
        segment available if the request asks for segments. `compiled` None: if numba pays off.
        """
        if compiled is None:
            compiled = request.is_large and vectorised.available()
        self._request = request
        self._spend = spend
        self._fetch = fetch
        self._compiled = compiled
        self._keys = self._make_keys()
        # The last batch of the group that lost all its records.
        self._dropped: list[tuple[BatchWindow, Batch]] = []
        self._producers = {producer.producer_id: producer for producer in request.producers}
        self.statistics = CleaningStatistics(next_dirty_offset=request.first_dirty_offset)

    def _make_keys(self) -> KeyIndex:
        request = self._request
        if not self._compiled:
            return PlainKeyIndex(bytes_max=request.key_bytes_max, load_factor=request.load_factor)
        return CompiledKeyIndex(
            bytes_max=request.key_bytes_max,
            load_factor=request.load_factor,
            offsets_max=request.first_uncleanable_offset - request.first_dirty_offset,
        )

    def groups(self) -> Iterator[CleanedGroup]:
        """Cleans group by group; yields each one when it is synced to disk.

        Raises CorruptRecords, DiskError. After the last group `statistics` has the totals.
        """
        self._index_keys()
        statistics = self.statistics
        statistics.next_dirty_offset = self._keys.latest_offset + 1
        statistics.key_count = self._keys.key_count
        statistics.key_share = self._keys.key_count / self._keys.key_count_max
        segments = [
            replace(segment, index_bytes=self._index_bytes(segment))
            for segment in self._request.segments
            if segment.base_offset < statistics.next_dirty_offset
        ]
        start_offset = self._request.segments[0].base_offset
        transactions = CleanedTransactions(self._request.aborted, start_offset=start_offset)
        config, starts = self._request.config, self._request.group_starts
        for group in group_segments(segments, config, group_starts=starts):
            yield CleanedGroup(sources=group, facts=self._clean_group(group, transactions))

    def _index_bytes(self, segment: CleanableFacts) -> int:
        sizes_bytes = [0]
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            path = self._request.directory / file_name(segment.base_offset, suffix)
            if path.exists():
                sizes_bytes.append(path.stat().st_size)
        return max(sizes_bytes)

    def _windows(self, segment: CleanableFacts) -> Iterator[BatchWindow]:
        """Returns the batches of a segment, in pieces. Raises CorruptRecords, DiskError."""
        if self._request.asks_for_segments:
            self._fetch(SegmentWanted(base_offset=segment.base_offset))
        return read_windows(
            self._request.directory / file_name(segment.base_offset, LOG_SUFFIX),
            segment.size_bytes,
            io_bytes=self._request.io_bytes,
            spend=self._spend,
        )

    # --- first pass --------------------------------------------------------------------------

    def _index_keys(self) -> None:
        request, keys = self._request, self._keys
        # Without its marker, a transaction that ended before the dirty part would seem to be open,
        # and later committed records of its producer to be aborted.
        transactions = CleanedTransactions(
            entry for entry in request.aborted if entry.last_offset >= request.first_dirty_offset
        )
        for segment in request.segments:
            if segment.end_offset <= request.first_dirty_offset:
                continue
            for window in self._windows(segment):
                self.statistics.indexed_bytes += window.source_bytes
                if self._index_window(window, transactions):
                    return
            # Earlier compaction may have removed the last offsets of the segment.
            keys.latest_offset = segment.end_offset - 1

    def _index_window(self, window: BatchWindow, transactions: CleanedTransactions) -> bool:
        """Adds the keys of a window; True if the index is full."""
        keys, start_offset = self._keys, self._request.first_dirty_offset
        run: list[Payload] = []
        last_offset = keys.latest_offset
        for batch in window.batches:
            header = batch.header
            if header.last_offset < start_offset:
                continue
            check_crc(window.content, batch.header, batch.position)
            if header.attributes & _NEEDS_TRANSACTIONS:
                if header.is_control:
                    _take_marker(window, batch, transactions)
                    continue
                if transactions.is_aborted_data(header):
                    continue
            if header.record_count and not header.codec:
                run.append(_payload(batch))
            elif header.record_count:
                if run and keys.add(window.content, run, start_offset):
                    return True
                run.clear()
                keys.latest_offset = max(keys.latest_offset, last_offset)
                content = window.decompressed(batch)
                if content is not None and keys.add(
                    content, [_payload(batch, len(content))], start_offset
                ):
                    return True
            last_offset = header.last_offset
        if run and keys.add(window.content, run, start_offset):
            return True
        keys.latest_offset = max(keys.latest_offset, last_offset)
        return False

    # --- second pass -------------------------------------------------------------------------

    def _clean_group(
        self, group: Sequence[CleanableFacts], transactions: CleanedTransactions
    ) -> CleanedFacts | None:
        request = self._request
        target = CleanedSegment(
            request.directory,
            group[0].base_offset,
            index_interval_bytes=request.config.index_interval_bytes,
        )
        self._dropped.clear()
        try:
            is_changed = len(group) > 1
            for segment in group:
                for window in self._windows(segment):
                    is_changed |= self._copy_window(window, target, transactions)
            if request.keeps_segments and not target.size_bytes and self._dropped:
                window, batch = self._dropped[-1]
                content = empty_batch(batch.encoded(window.content))
                target.append(content, batch.header.last_offset, batch.header.max_timestamp_ms)
            retained = transactions.take_retained()
            if not is_changed:
                target.abandon()
                return None
            return target.finish(retained, modified_ns=self._modified_ns(group[-1]))
        except BaseException:
            target.abandon()
            raise

    def _modified_ns(self, segment: CleanableFacts) -> int:
        path = self._request.directory / file_name(segment.base_offset, LOG_SUFFIX)
        try:
            return path.stat().st_mtime_ns
        except OSError as error:
            raise DiskError(f"cannot look at {path}: {error.strerror}") from error

    def _copy_window(
        self, window: BatchWindow, target: CleanedSegment, transactions: CleanedTransactions
    ) -> bool:
        """Copies the retained batches of a window; returns whether any of them changed."""
        for batch in window.batches:
            header = batch.header
            check_crc(window.content, batch.header, batch.position)
        verdicts = [self._verdict(window, batch, transactions) for batch in window.batches]
        retained = self._retain(window, verdicts)
        written_bytes = target.size_bytes
        is_changed = window.is_converted
        for batch, verdict, kept in zip(window.batches, verdicts, retained, strict=True):
            header = batch.header
            self.statistics.records_read += header.record_count
            rewritten = self._rewritten(window, batch, verdict, kept)
            if rewritten is None:
                is_changed = True
                self._dropped[:] = [(window, batch)]
                continue
            is_changed |= rewritten.is_changed
            self.statistics.records_kept += rewritten.record_count
            target.append(rewritten.content, header.last_offset, rewritten.max_timestamp_ms)
        written_bytes = target.size_bytes - written_bytes
        self.statistics.bytes_read += window.source_bytes
        self.statistics.bytes_written += written_bytes
        self._spend(written_bytes)
        return is_changed

    def _verdict(
        self, window: BatchWindow, batch: Batch, transactions: CleanedTransactions
    ) -> _Verdict:
        """Decides about a batch by its transaction."""
        header = batch.header
        if not header.attributes & _NEEDS_TRANSACTIONS:
            return _KEEP
        if header.is_control:
            if not _take_marker(window, batch, transactions):
                return _KEEP
            needs_horizon = _horizon_ms(batch) is None
            return _Verdict(all_records=self._is_over(batch), needs_horizon=needs_horizon)
        return _Verdict(all_records=transactions.is_aborted_data(header), needs_horizon=False)

    def _is_over(self, batch: Batch) -> bool:
        """Returns whether the delete horizon of tombstones and markers in the batch has passed."""
        horizon_ms = _horizon_ms(batch)
        return (
            horizon_ms is not None
            and horizon_ms <= self._request.now_ms
            and batch.header.last_offset < self._request.horizon_end_offset
        )

    def _retain(self, window: BatchWindow, verdicts: Sequence[_Verdict]) -> list[Retained | None]:
        """Returns the retained records of each data batch; None for a batch that is not read."""
        retained: list[Retained | None] = [None] * len(window.batches)
        run: list[Payload] = []
        places: list[int] = []
        for place, (batch, verdict) in enumerate(zip(window.batches, verdicts, strict=True)):
            header = batch.header
            if verdict.all_records or header.is_control or not header.record_count:
                continue
            drop = self._is_over(batch)
            if not header.codec:
                run.append(_payload(batch, drop_tombstones=drop))
                places.append(place)
                continue
            content = window.decompressed(batch)
            if content is not None:
                payload = _payload(batch, len(content), drop_tombstones=drop)
                (retained[place],) = self._keys.retain(content, [payload])
        if run:
            for place, kept in zip(places, self._keys.retain(window.content, run), strict=True):
                retained[place] = kept
        return retained

    def _rewritten(
        self, window: BatchWindow, batch: Batch, verdict: _Verdict, kept: Retained | None
    ) -> _Rewritten | None:
        """Returns the batch to write; None if it is dropped."""
        header = batch.header
        original = batch.encoded(window.content)
        if verdict.all_records or not header.record_count:
            return self._emptied(batch, original)
        if header.is_control:
            if not verdict.needs_horizon:
                return _Rewritten(original, header.record_count, header.max_timestamp_ms, False)
            records: Buffer = original[batch_format.HEADER_BYTES :]
            kept = Retained(records, header.record_count, header.max_timestamp_ms, True, 0, True)
        elif kept is None or not kept.is_readable:
            # Unreadable records are kept, and do not end the cleaning.
            self.statistics.unreadable_batches += 1
            return _Rewritten(original, header.record_count, header.max_timestamp_ms, False)
        self.statistics.keyless_records += kept.keyless_count
        if not kept.record_count:
            return self._emptied(batch, original)
        needs_horizon = kept.has_tombstone and _horizon_ms(batch) is None
        is_append_time = header.attributes & batch_format.TIMESTAMP_TYPE_BIT
        # Earlier releases stored the header's as producers sent it.
        newest_ms = max(kept.max_timestamp_ms, NO_TIMESTAMP)
        max_timestamp_ms = header.max_timestamp_ms if is_append_time else newest_ms
        if (
            kept.record_count == header.record_count
            and max_timestamp_ms == header.max_timestamp_ms
            and not needs_horizon
        ):
            return _Rewritten(original, header.record_count, max_timestamp_ms, False)
        horizon_ms = None
        records = kept.records
        if needs_horizon:
            config = self._request.config
            horizon_ms = min(self._request.now_ms + config.delete_retention_ms, HORIZON_MS_MAX)
            shift_ms = header.base_timestamp_ms - horizon_ms
            records = self._keys.rebase(records, kept.record_count, shift_ms)
        content = rewritten_batch(
            original,
            records,
            record_count=kept.record_count,
            max_timestamp_ms=max_timestamp_ms,
            delete_horizon_ms=horizon_ms,
        )
        return _Rewritten(content, kept.record_count, max_timestamp_ms, True)

    def _emptied(self, batch: Batch, original: memoryview) -> _Rewritten | None:
        """Only the header of a batch, if a producer or the last offset still needs it."""
        header = batch.header
        if not self._is_needed_empty(batch):
            return None
        if not header.record_count:
            return _Rewritten(original, 0, header.max_timestamp_ms, False)
        return _Rewritten(empty_batch(original), 0, header.max_timestamp_ms, True)

    def _is_needed_empty(self, batch: Batch) -> bool:
        header = batch.header
        if header.last_offset + 1 == self._request.first_uncleanable_offset:
            return True
        producer = self._producers.get(header.producer_id)
        if header.producer_id < 0 or producer is None:
            return False
        if producer.last_data_offset >= 0:
            return header.last_offset == producer.last_data_offset
        return header.is_control and header.producer_epoch == producer.epoch


class _Verdict(NamedTuple):
    """The decision on a batch: it loses all records, or may get a delete horizon."""

    all_records: bool
    needs_horizon: bool


class _Rewritten(NamedTuple):
    """A batch to write to the cleaned segment."""

    content: Buffer
    record_count: int
    max_timestamp_ms: int
    is_changed: bool


_KEEP = _Verdict(all_records=False, needs_horizon=False)
_NEEDS_TRANSACTIONS = batch_format.TRANSACTIONAL_BIT | batch_format.CONTROL_BIT


def _horizon_ms(batch: Batch) -> int | None:
    """The delete horizon, after which tombstones and markers may be dropped; None if unset."""
    header = batch.header
    if header.attributes & batch_format.DELETE_HORIZON_BIT:
        return header.base_timestamp_ms
    return None


def _take_marker(window: BatchWindow, batch: Batch, transactions: CleanedTransactions) -> bool:
    """Passes a control batch to the transactions; returns whether it may be removed."""
    marker = read_marker(window.content, batch.header, batch.position)
    return transactions.is_marker_free(batch.header, marker)


def _payload(
    batch: Batch, decompressed_bytes: int | None = None, *, drop_tombstones: bool = False
) -> Payload:
    """Returns the position of a batch's records, in the window or in a decompressed buffer."""
    header = batch.header
    if decompressed_bytes is None:
        start, end = batch.position + batch_format.HEADER_BYTES, batch.end_position
    else:
        start, end = 0, decompressed_bytes
    return Payload(
        start,
        end,
        header.base_offset,
        header.base_timestamp_ms,
        header.record_count,
        header.last_offset_delta,
        drop_tombstones,
    )
