"""Counting of the rows of a query, from manifests and statistics where possible.

    whole segment, no transactions      the manifest's record count             no request
    whole chunks, no transactions       the statistics in `.meta`               one small request
    everything else                     the records, without any of their columns

With transactions in a segment, its records include control records and perhaps aborted ones: they
are counted by reading. Filters on keys and values are counted by reading too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.archive.segments import SegmentMeta
from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.plan.splits import OpenPiece, SegmentSlice, Split
from strandline.spark_lake.query.arrow_scan import (
    FilterTuple,
    OptionValue,
    default_threads,
    make_query,
    refuse_jvm,
)
from strandline.spark_lake.query.pruning import covers, may_have, owned_chunks
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.query.query_log import log_event, read_fields, telling_of_silence
from strandline.storage.remote.manifest.entries import SegmentEntry


def count(
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    filters: Sequence[FilterTuple] = (),
    options: Mapping[str, OptionValue] | None = None,
) -> int:
    """The number of rows that `scan` would give for the same arguments; raises what it raises."""
    query = make_query(path, topics, columns=["offset"], filters=filters, options=options)
    refuse_jvm(query, "count")
    with telling_of_silence(query.options.url):
        reader = query.open()
        plan = query.plan(reader)
        planning = reader.statistics()
        counted = count_plan(query, plan, reader)
    log_event("rows counted", read_fields(plan, counted, reader.statistics(), planning=planning))
    return counted


def count_plan(query: Query, plan: ScanPlan, reader: ObjectReader) -> int:
    """Returns the rows of a plan of the query. Raises what `Query.read` raises."""
    pieces = [replace(split, slices=(piece,)) for split in plan.splits for piece in split.slices]
    counter = _Counter(query, reader)
    known = [counter.without_request(one) for one in pieces]
    todo = [one for one, rows in zip(pieces, known, strict=True) if rows is None]
    with ThreadPoolExecutor(default_threads()) as pool:
        return sum(rows for rows in known if rows is not None) + sum(pool.map(counter.of, todo))


class _Counter:
    def __init__(self, query: Query, reader: ObjectReader) -> None:
        self._query = query
        self._reader = reader
        # Whether every record within the limits is a row.
        self._counts_records = query.predicate.keys is None and not query.residual

    def without_request(self, one: Split) -> int | None:
        """Returns the rows of a split of one slice, if the manifest has their number."""
        (piece,) = one.slices
        if self._is_plain(piece.entry) and piece.is_whole and covers(one.limits, piece.entry):
            return piece.entry.record_count
        return None

    def of(self, one: Split) -> int:
        """Returns the rows of a split of one slice, from the statistics or the records."""
        (piece,) = one.slices
        if not self._is_plain(piece.entry) or isinstance(piece.entry, OpenPiece):
            return self._by_reading(one)
        return sum(
            known if known is not None else self._by_reading(part)
            for part, known in _chunks(one, piece, self._reader)
        )

    def _is_plain(self, entry: SegmentEntry) -> bool:
        return self._counts_records and not entry.has_transactions

    def _by_reading(self, one: Split) -> int:
        return sum(batch.num_rows for batch in self._query.read(one, self._reader))


def _chunks(
    one: Split, piece: SegmentSlice, reader: ObjectReader
) -> Iterator[tuple[Split, int | None]]:
    """Yields the wanted chunks of a slice, each with its rows if all of them are wanted."""
    limits = one.limits
    for part, chunk in owned_chunks(SegmentMeta(reader, piece.entry), piece):
        if (
            limits.start_offset <= part.base_offset
            and limits.end_offset >= part.end_offset
            and limits.start_timestamp_ms <= chunk.min_timestamp_ms
            and limits.last_timestamp_ms >= chunk.max_timestamp_ms
        ):
            yield one, chunk.record_count
        elif may_have(part, chunk, limits):
            own = SegmentSlice(
                entry=piece.entry, start_position=chunk.position, end_position=chunk.position + 1
            )
            yield replace(one, slices=(own,)), None
