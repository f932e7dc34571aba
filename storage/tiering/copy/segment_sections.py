"""Builds the `.meta` sections and the manifest entry of a segment from its inspected facts.

A copy, a merge and a repair write them; a scrub compares them with the segment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from strandline.storage.model import AbortedTransaction, Buffer, EpochStart, Offset, TimestampMs
from strandline.storage.records.txn_index import encode_entries
from strandline.storage.remote.keys import SegmentKeys
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import ChunkStatistics, Section, SegmentStatistics
from strandline.storage.system import crc32c
from strandline.storage.tiering.copy.inspection import SegmentFacts


def sections_of(
    facts: SegmentFacts,
    *,
    leader_epochs: Sequence[EpochStart],
    aborted: Collection[AbortedTransaction],
    producer_snapshot: bytes | None,
) -> dict[Section, Buffer]:
    """Returns the sections that the segment has.

    `aborted` is every aborted transaction that touches the segment, wherever its marker lies: the
    lake reads a segment alone, and must know them.
    """
    sections: dict[Section, Buffer] = {
        Section.LEADER_EPOCHS: segment_meta.encode_leader_epochs(leader_epochs),
        Section.STATISTICS: statistics_of(facts).encode(),
    }
    if facts.key_filter is not None:
        sections[Section.KEY_FILTER] = facts.key_filter.encode()
    if aborted:
        in_order = sorted(aborted, key=lambda transaction: transaction.last_offset)
        sections[Section.TXN_INDEX] = encode_entries(in_order)
    if producer_snapshot is not None:
        sections[Section.PRODUCER_SNAPSHOT] = producer_snapshot
    return sections


def entry_of(
    facts: SegmentFacts,
    keys: SegmentKeys,
    meta: bytes,
    *,
    base_offset: Offset,
    end_offset: Offset,
    has_transactions: bool,
    recompressed_from_bytes: int | None,
    uploaded_ms: TimestampMs,
) -> SegmentEntry:
    """Returns the manifest entry of a segment and its `meta`, both uploaded under `keys`."""
    return SegmentEntry(
        base_offset=base_offset,
        end_offset=end_offset,
        leader_epochs=facts.leader_epochs,
        size_bytes=facts.size_bytes,
        record_count=facts.record_count,
        min_timestamp_ms=facts.bounds.min_ms,
        max_timestamp_ms=facts.bounds.max_ms,
        log_key=keys.log_key,
        meta_key=keys.meta_key,
        log_crc32c=facts.crc32c,
        meta_size_bytes=len(meta),
        meta_crc32c=crc32c.crc32c(meta),
        has_transactions=has_transactions,
        uploaded_ms=uploaded_ms,
        recompressed_from_bytes=recompressed_from_bytes,
    )


def statistics_of(facts: SegmentFacts) -> SegmentStatistics:
    """Returns the STATISTICS section."""
    return SegmentStatistics(
        record_count=facts.record_count,
        batch_count=facts.batch_count,
        control_batch_count=facts.control_batch_count,
        min_timestamp_ms=facts.bounds.min_ms,
        max_timestamp_ms=facts.bounds.max_ms,
        chunks=tuple(
            ChunkStatistics(
                position=chunk.position,
                base_offset=chunk.base_offset,
                record_count=chunk.record_count,
                min_timestamp_ms=chunk.bounds.min_ms,
                max_timestamp_ms=chunk.bounds.max_ms,
                crc32c=chunk.crc32c,
            )
            for chunk in facts.chunks
        ),
    )
