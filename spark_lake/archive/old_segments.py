"""Detection of partitions with messages from before Kafka 0.11 (v0 and v1).

Folders of an old Kafka may hold them, and their segments are archived unchanged. They are at the
start of a log and have no leader epoch, so the manifest has epoch 0 for them, as it may have for
newer segments. The first bytes of a partition's first segment decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from strandline.spark_lake.archive.objects import ObjectReader, in_parallel
from strandline.spark_lake.plan.splits import SegmentSlice, Split
from strandline.storage.errors import ObjectNotFound
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.old_messages import MAGIC_POSITION, is_old
from strandline.storage.remote.manifest.entries import SegmentEntry

# First segments in the cache: a hundred bytes each.
KNOWN_MAX = 10_000
# Whether an object begins with an old message, by its URL.
_known: dict[str, bool] = {}


def may_be_old(piece: SegmentSlice) -> bool:
    """Returns whether the manifest allows old messages in the segment."""
    epochs = piece.entry.leader_epochs
    return not piece.is_open and (not epochs or epochs[0].epoch <= 0)


def old_partitions(splits: Iterable[Split], reader: ObjectReader) -> frozenset[TopicPartition]:
    """Returns the partitions whose first planned segment begins with an old message.

    A deleted segment counts as new: a task that reads it reports the deletion. Each process reads
    the start of an object once, because objects are never rewritten. Raises the other errors of
    `ObjectReader.get`.
    """
    first: dict[TopicPartition, SegmentSlice] = {}
    for split in splits:
        for piece in split.slices:
            first.setdefault(split.topic_partition, piece)
    doubted = {one: piece.entry for one, piece in first.items() if may_be_old(piece)}
    names = {one: f"{reader.url}/{entry.log_key}" for one, entry in doubted.items()}
    is_old_by_name = {
        name: known for name in names.values() if (known := _known.get(name)) is not None
    }
    asked = [one for one in doubted if names[one] not in is_old_by_name]
    begins = in_parallel(lambda one: _begin(doubted[one], reader), asked)
    answered = {
        names[one]: is_old(begin)
        for one, begin in zip(asked, begins, strict=True)
        if begin is not None
    }
    is_old_by_name |= answered
    if len(_known) + len(answered) > KNOWN_MAX:
        _known.clear()
    _known.update(islice(answered.items(), KNOWN_MAX))
    return frozenset(one for one, name in names.items() if is_old_by_name.get(name, False))


def _begin(entry: SegmentEntry, reader: ObjectReader) -> bytes | None:
    try:
        return reader.get(entry.log_key, end=min(entry.size_bytes, MAGIC_POSITION + 1))
    except ObjectNotFound:
        return None
