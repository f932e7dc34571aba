"""The offsets of OffsetCommit and TxnOffsetCommit, which name their topics by name or by id."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from strandline.broker.cluster.metadata.image import MetadataImage, TopicImage
from strandline.broker.coordination.model.offset_messages import OffsetToCommit
from strandline.broker.protocol.schema.errors import ErrorCode

# Of a partition in the request: the positions of its topic, and of itself there.
Place: TypeAlias = tuple[int, int]


class OffsetOfPartition(Protocol):
    @property
    def partition_index(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


class OffsetsOfTopic(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> uuid.UUID: ...
    @property
    def partitions(self) -> Sequence[OffsetOfPartition]: ...


@dataclass(frozen=True, slots=True)
class OffsetsToCommit:
    """Offsets of partitions that exist, and the codes of the others."""

    offsets: dict[Place, OffsetToCommit]
    codes: dict[Place, ErrorCode]

    @classmethod
    def of(
        cls, topics: Sequence[OffsetsOfTopic], image: MetadataImage, *, by_id: bool
    ) -> OffsetsToCommit:
        found = cls({}, {})
        for row, wanted in enumerate(topics):
            topic = (
                image.topics_by_id.get(wanted.topic_id) if by_id else image.topics.get(wanted.name)
            )
            for column, partition in enumerate(wanted.partitions):
                fault = partition_fault(topic, partition.partition_index, by_id=by_id)
                if topic is None or fault is not ErrorCode.NONE:
                    found.codes[row, column] = fault
                    continue
                found.offsets[row, column] = OffsetToCommit(
                    topic.name,
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata,
                    topic.topic_id,
                )
        return found

    def note(self, codes: Sequence[ErrorCode]) -> None:
        """Takes the codes of the offsets, in their order."""
        self.codes.update(zip(self.offsets, codes, strict=True))


def partition_fault(topic: TopicImage | None, partition: int, *, by_id: bool = False) -> ErrorCode:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not 0 <= partition < topic.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
