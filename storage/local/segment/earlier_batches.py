"""The batches of producers that a snapshot does not hold, read again from the log.

    [ s0 ... ][ s1 .....|##### read again #####|  snapshot  ][ s2: replayed at the start ]

A snapshot holds only the last batch of each producer, in Kafka's format. That is enough for Kafka,
which appends a connection's next batch once the one before it is answered. Here up to five are
appended and wait for followers together. After a restart or a truncation their client sends them
again, and each must be recognised: refused as out of order, it would end an idempotent producer of
librdkafka, and be appended a second time by a Java client under its next epoch.

Most starts never need them, so they are read when the first batch would be refused: backwards, in
windows, until there are enough. That is on the event loop, and so has two bounds. They are also
read before the first of them is freed or compacted: its client may wait for it still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain

from strandline.storage.errors import CorruptFile, CorruptRecords
from strandline.storage.local.formats.producer_state import ProducerState
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.records.batch.batch import BatchHeader

# Three producers with five batches of the default max.request.size (1 MiB). The headers of so much
# are read once after a load; earlier batches are refused as out of order.
READ_BYTES_MAX = 16 * 1024 * 1024
# Of small ones: 25 ms.
BATCHES_MAX = 10_000
WINDOW_BYTES = 64 * 1024


def read_earlier_batches(producers: ProducerState, segments: Sequence[LogSegment]) -> bool:
    """Completes a state that came from a snapshot, once; whether there was anything to read.

    Raises DiskError.
    """
    end_offset = producers.unread_before
    if not end_offset:
        return False
    found: list[list[BatchHeader]] = []
    count = 0
    for window in _windows(segments, end_offset):
        found.append(window)
        count += len(window)
        if count >= BATCHES_MAX:
            break
    producers.add_earlier(chain.from_iterable(reversed(found)))
    return True


def reaches_earlier_batches(
    producers: ProducerState, segments: Sequence[LogSegment], freed_count: int
) -> bool:
    """Whether one of the first `freed_count` segments may have batches that are to be read."""
    end_offset = producers.unread_before
    if not end_offset or not freed_count:
        return False
    behind = (one for one in segments[freed_count:] if one.base_offset < end_offset)
    return sum(one.size_bytes for one in behind) < READ_BYTES_MAX


def _windows(segments: Sequence[LogSegment], end_offset: int) -> Iterator[list[BatchHeader]]:
    """The headers of one window after the other, from the last one on."""
    left = READ_BYTES_MAX
    for segment in reversed(segments):
        if segment.base_offset >= end_offset:
            continue
        found = segment.locate(end_offset)
        end = segment.size_bytes if found is None else found.position
        while end > 0:
            begin = segment.border_before(max(0, end - min(WINDOW_BYTES, left)))
            size_bytes = end - begin
            if left <= 0 or size_bytes > READ_BYTES_MAX:
                # Enough, or an index with too few entries.
                return
            yield _headers(segment, begin, end)
            left -= size_bytes
            end = begin


def _headers(segment: LogSegment, begin: int, end: int) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    # Readers are told of damage; here it means that a batch stays unknown.
    with suppress(CorruptRecords, CorruptFile):
        found.extend(batch.header for batch in segment.scan(begin, end))
    return found
