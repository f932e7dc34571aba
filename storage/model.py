"""The value types that every layer shares.

Offsets, positions, counts and epochs are plain `int`s under telling names: a `NewType` would ask
for a cast after every addition, and additions are what a log does all day.

    offset      number of a record in a partition
    position    byte in a file or object
    end_offset  exclusive; `last_offset` is inclusive
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

Offset: TypeAlias = int
Position: TypeAlias = int
Epoch: TypeAlias = int
TimestampMs: TypeAlias = int
TopicId: TypeAlias = uuid.UUID
Buffer: TypeAlias = bytes | bytearray | memoryview

NO_EPOCH: Epoch = -1
NO_TIMESTAMP: TimestampMs = -1
ZERO_TOPIC_ID: TopicId = uuid.UUID(int=0)


class TopicPartition(NamedTuple):
    """One partition by name, as `topic-3` in folder names and logs."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class TopicIdPartition:
    """One partition of one topic by its id: a re-created topic has another id."""

    topic: str
    topic_id: TopicId
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class EpochStart(NamedTuple):
    """A leader epoch and its start offset."""

    epoch: Epoch
    start_offset: Offset


class TimestampOffset(NamedTuple):
    """A record found by time. `leader_epoch` is that of its batch."""

    timestamp_ms: TimestampMs
    offset: Offset
    leader_epoch: Epoch


class AbortedTransaction(NamedTuple):
    """A producer's aborted range, as FetchResponse lists it."""

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


class Isolation(IntEnum):
    """How far a read may go: up to the high watermark, the last stable offset, or the log's end.

    Kafka's FetchIsolation. LOG_END is for coordinators that load their state, and for followers.
    """

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1
    LOG_END = 2

    @classmethod
    def of_consumer(cls, level: int) -> Isolation:
        """Returns that of a consumer's request."""
        return cls.READ_COMMITTED if level == cls.READ_COMMITTED else cls.READ_UNCOMMITTED


class TimestampType(IntEnum):
    """The source of a record timestamp: the producer or the broker."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1
