"""Offsets of a stream, and the limits of one micro-batch. Pure.

    offsets in the checkpoint   {"offsets": {"orders": {"0": 17}}, "topic_ids": {"orders": "..."}}

All records below an offset were returned, none from it on. The topic's id tells a topic that was
deleted and recreated from one that continued. A partition without an offset is new: it enters
with the offset where its archive begins, and has rows from the next micro-batch on. So the rows
of each micro-batch lie between two written offsets, and one that Spark repeats is the same.

Spark's log has where batches end, and asks for the beginning of the first one again when it is
repeated: by then `latest` is later, and `earliest` may have been deleted. So the end of the first
batch says where it began:

    initial offset      {..., "began": {}}
    end of batch 0      {..., "began": {"orders": {"0": 3}}}        of no other

A limit is shared in proportion to what waits in each partition, as in Spark's Kafka source. Bytes
are those of the archive (compressed), and assumed to be spread evenly inside a segment.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strandline.spark_lake.archive.catalog import LakePartition
from strandline.spark_lake.plan.planner import OffsetRange, archived_range
from strandline.storage.errors import CorruptFile
from strandline.storage.model import Offset, TopicId, TopicPartition
from strandline.storage.remote.manifest.entries import PageRef, SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffsets:
    """The next offset of each partition that the stream has seen."""

    offsets: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)

    def to_json(self, *, began: StreamOffsets | None = None) -> dict[str, dict[str, object]]:
        """`began` is the start of the first batch, if it ends here; empty for initial offsets."""
        fields: dict[str, dict[str, object]] = {
            "offsets": dict(_by_topic(self.offsets)),
            "topic_ids": {topic: str(self.topic_ids[topic]) for topic in sorted(self.topic_ids)},
        }
        if began is not None:
            fields["began"] = dict(_by_topic(began.offsets))
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Mapping[str, object]]) -> StreamOffsets:
        """Raises CorruptFile for fields that no stream of ours wrote."""
        try:
            offsets = {
                TopicPartition(topic, int(number)): int(offset)
                for topic, numbers in fields["offsets"].items()
                for number, offset in numbers.items()  # type: ignore[attr-defined]
            }
            ids = {topic: uuid.UUID(str(text)) for topic, text in fields["topic_ids"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFile(
                f"the checkpoint has the offsets {fields!r}, which this source did not write:"
                " give each query a checkpointLocation of its own"
            ) from error
        return cls(offsets=offsets, topic_ids=ids)


def is_initial(fields: Mapping[str, Mapping[str, object]]) -> bool:
    """Returns whether these are the initial offsets, at which no batch ends."""
    return fields.get("began") == {}


def began_of(end: Mapping[str, Mapping[str, object]]) -> StreamOffsets | None:
    """Returns the start of the first batch, if it ends here; else None. Raises CorruptFile."""
    if not end.get("began"):
        return None
    return StreamOffsets.from_json({**end, "offsets": end["began"]})


def _by_topic(offsets: Mapping[TopicPartition, Offset]) -> dict[str, dict[str, int]]:
    by_topic: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        by_topic.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return by_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoss:
    """Rows that the stream should have returned and cannot."""

    partition: TopicPartition
    detail: str

    def __str__(self) -> str:
        return f"{self.partition}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The position of a stream relative to the archive."""

    position: StreamOffsets
    # Partitions with records to read, from the stream's position to the archive's end.
    waiting: Mapping[TopicPartition, OffsetRange]
    losses: tuple[DataLoss, ...] = ()


def compare(position: StreamOffsets, archived: Sequence[LakePartition]) -> StreamPosition:
    """The records since `position`, and losses; new partitions start where their archive begins."""
    offsets: dict[TopicPartition, Offset] = {}
    waiting: dict[TopicPartition, OffsetRange] = {}
    losses: list[DataLoss] = []
    for one in archived:
        partition = one.topic_partition
        available = archived_range(one.manifest)
        at = position.offsets.get(partition)
        known_id = position.topic_ids.get(partition.topic)
        if at is not None and known_id is not None and known_id != one.partition.topic_id:
            losses.append(
                DataLoss(
                    partition=partition,
                    detail="the topic was deleted and made anew since the checkpoint",
                )
            )
            at = None
        if at is None:
            offsets[partition] = available.start_offset
            continue
        if at < available.start_offset:
            losses.append(
                DataLoss(
                    partition=partition,
                    detail=f"offsets {at} to {available.start_offset} were deleted by retention"
                    " before the stream read them",
                )
            )
            at = available.start_offset
        elif at > _known_end(one.manifest):
            losses.append(
                DataLoss(
                    partition=partition,
                    detail=f"the stream stands at offset {at}, the archive ends at"
                    f" {available.end_offset}",
                )
            )
            # Records after it are new, although older ones had the same offsets.
            at = available.end_offset
        offsets[partition] = at
        if at < available.end_offset:
            waiting[partition] = OffsetRange(start_offset=at, end_offset=available.end_offset)
    found = {one.topic_partition for one in archived}
    losses += [
        DataLoss(
            partition=partition,
            detail="the topic or partition is no longer in the archive, or not asked for",
        )
        for partition in sorted(position.offsets)
        if partition not in found
    ]
    return StreamPosition(
        position=StreamOffsets(
            offsets=offsets,
            topic_ids={one.topic_partition.topic: one.partition.topic_id for one in archived},
        ),
        waiting=waiting,
        losses=tuple(losses),
    )


def admitted(
    standing: StreamPosition,
    manifests: Mapping[TopicPartition, Manifest],
    *,
    offsets_max: int | None = None,
    bytes_max: int | None = None,
) -> StreamOffsets:
    """Returns the end of the next micro-batch; every partition with records to read moves."""
    ends = {partition: one.end_offset for partition, one in standing.waiting.items()}
    if offsets_max is not None:
        shared = _shared(
            {partition: one.offset_count for partition, one in standing.waiting.items()},
            offsets_max,
        )
        for partition, share in shared.items():
            ends[partition] = min(ends[partition], standing.waiting[partition].start_offset + share)
    if bytes_max is not None:
        sizes = {
            partition: _size_bytes(manifests[partition], one)
            for partition, one in standing.waiting.items()
        }
        # Rounding could leave a record behind, so everything is admitted if it fits.
        shared = _shared(sizes, bytes_max) if sum(sizes.values()) > bytes_max else {}
        for partition, share in shared.items():
            end = _end_within(manifests[partition], standing.waiting[partition], share)
            ends[partition] = min(ends[partition], end)
    return StreamOffsets(
        offsets={**standing.position.offsets, **ends}, topic_ids=standing.position.topic_ids
    )


def up_to(
    target: StreamOffsets, standing: StreamPosition, *, known: StreamOffsets
) -> StreamPosition:
    """`standing` without records beyond `target`, or in partitions that it does not have.

    Partitions that the stream knows keep their positions: else they would count as new later.
    """
    offsets = {
        partition: offset
        for partition, offset in standing.position.offsets.items()
        if partition in target.offsets or partition in known.offsets
    }
    waiting = {
        partition: OffsetRange(
            start_offset=one.start_offset,
            end_offset=min(one.end_offset, target.offsets[partition]),
        )
        for partition, one in standing.waiting.items()
        if partition in target.offsets and one.start_offset < target.offsets[partition]
    }
    topics = {partition.topic for partition in offsets}
    topic_ids = {name: one for name, one in standing.position.topic_ids.items() if name in topics}
    position = StreamOffsets(offsets=offsets, topic_ids=topic_ids)
    return StreamPosition(position=position, waiting=waiting, losses=standing.losses)


def _known_end(manifest: Manifest | None) -> Offset:
    """Returns the end of all known records, some of which cannot be read yet.

    Records read from pieces of an open segment wait for the upload of the closed segment.
    """
    return max(manifest.end_offset, manifest.tail_end_offset) if manifest else 0


def _shared(sizes: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Shares `limit` in proportion to the sizes; at least 1 each, against starvation."""
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    return {
        partition: max(1, math.floor(limit * size / total)) for partition, size in sizes.items()
    }


def _size_bytes(manifest: Manifest, one: OffsetRange) -> int:
    return int(
        sum(
            part.size_bytes * _share(part.base_offset, part.end_offset, one)
            for part in _parts(manifest)
        )
    )


def _parts(manifest: Manifest) -> Sequence[PageRef | SegmentEntry]:
    return (*manifest.pages, *manifest.segments)


def _share(base_offset: Offset, end_offset: Offset, one: OffsetRange) -> float:
    """Returns the share of [base_offset, end_offset) inside the range."""
    inside = min(end_offset, one.end_offset) - max(base_offset, one.start_offset)
    return max(0, inside) / (end_offset - base_offset)


def _end_within(manifest: Manifest, one: OffsetRange, size_bytes: int) -> Offset:
    """Returns the offset up to which the range has about `size_bytes`; beyond its start."""
    left = float(size_bytes)
    for part in _parts(manifest):
        share = _share(part.base_offset, part.end_offset, one)
        if share <= 0:
            continue
        inside_bytes = part.size_bytes * share
        if inside_bytes > left:
            first = max(part.base_offset, one.start_offset)
            span = min(part.end_offset, one.end_offset) - first
            return max(one.start_offset + 1, first + int(span * left / inside_bytes))
        left -= inside_bytes
    return one.end_offset
