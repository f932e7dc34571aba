"""Which partitions have segments of messages from before Kafka 0.11 (v0 and v1).

An old Kafka's folder may hold them, and its segments are archived as they are. They lie at the
begin of a log and know no leader epoch, so that the manifest has epoch 0 for them, which segments
of today may have as well. The first bytes of the first segment of a partition tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from strandline.spark_lake.catalog import PARALLEL_READS
from strandline.spark_lake.objects import ObjectReader
from strandline.spark_lake.splits import SegmentSlice, Split
from strandline.storage.errors import ObjectNotFound
from strandline.storage.model import TopicPartition
from strandline.storage.records.old_messages import MAGIC_POSITION, is_old
from strandline.storage.remote.manifest_entries import SegmentEntry


def may_be_old(piece: SegmentSlice) -> bool:
    """Whether the manifest allows old messages in the segment."""
    epochs = piece.entry.leader_epochs
    return not piece.is_open and (not epochs or epochs[0].epoch <= 0)


def old_partitions(splits: Iterable[Split], reader: ObjectReader) -> frozenset[TopicPartition]:
    """The partitions whose first planned segment begins with an old message.

    A segment that is gone counts as new: the task that reads it tells what became of it, if one
    ever does. Raises as `ObjectReader.get_range` does for all else.
    """
    first: dict[TopicPartition, SegmentSlice] = {}
    for split in splits:
        for piece in split.slices:
            first.setdefault(split.topic_partition, piece)
    asked = {partition: piece.entry for partition, piece in first.items() if may_be_old(piece)}
    if not asked:
        return frozenset()

    def begins_old(entry: SegmentEntry) -> bool:
        try:
            begin = reader.get_range(entry.log_key, 0, min(entry.size_bytes, MAGIC_POSITION + 1))
        except ObjectNotFound:
            return False
        return is_old(begin)

    with ThreadPoolExecutor(min(PARALLEL_READS, len(asked))) as pool:
        found = pool.map(begins_old, asked.values())
        return frozenset(one for one, old in zip(asked, found, strict=True) if old)
