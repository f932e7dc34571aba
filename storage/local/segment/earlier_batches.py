"""The batches of producers that a snapshot does not hold, read again from the log.

    [ s0 ... ][ s1 .....|##### read again #####|  snapshot  ][ s2: replayed at the start ]

A snapshot holds only the last batch of each producer, in Kafka's format. That is enough for Kafka,
which appends a connection's next batch once the one before it is answered. Here up to five are
appended and wait for followers together. After a restart or a truncation their client sends them
again, and each must be recognised: refused as out of order, it would end an idempotent producer of
librdkafka, and be appended a second time by a Java client under its next epoch.

Most starts never need them, so they are read when the first batch would be refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strandline.storage.errors import CorruptFile, CorruptRecords
from strandline.storage.local.formats.producer_state import ProducerState
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.records.batch.batch import Batch

# Three producers with five batches of the default max.request.size (1 MiB). The headers of so much
# are read once after a load; earlier batches are refused as out of order.
READ_BYTES_MAX = 16 * 1024 * 1024


def read_earlier_batches(producers: ProducerState, segments: Sequence[LogSegment]) -> bool:
    """Completes a state that came from a snapshot, once; whether there was anything to read.

    Raises DiskError.
    """
    end_offset = producers.unread_before
    if not end_offset:
        return False
    producers.add_earlier(
        batch.header
        for segment, position in _beginnings(segments, end_offset)
        for batch in _batches(segment, position, end_offset)
    )
    return True


def _beginnings(segments: Sequence[LogSegment], end_offset: int) -> list[tuple[LogSegment, int]]:
    """The segments to read, in order, and where."""
    found: list[tuple[LogSegment, int]] = []
    left = READ_BYTES_MAX
    for segment in reversed(segments):
        if left <= 0:
            break
        if segment.base_offset < end_offset:
            end = segment.locate(end_offset)
            size_bytes = segment.size_bytes if end is None else end.position
            found.append((segment, segment.border_before(max(0, size_bytes - left))))
            left -= size_bytes
    return found[::-1]


def _batches(segment: LogSegment, position: int, end_offset: int) -> Iterator[Batch]:
    try:
        for batch in segment.scan(position):
            if batch.header.base_offset >= end_offset:
                return
            yield batch
    except (CorruptRecords, CorruptFile):
        # Readers are told; here it means that a batch stays unknown.
        return
