"""What consumers tell each other through JoinGroup and SyncGroup: subscriptions and assignments.

    JoinGroup metadata     version i16 | ConsumerProtocolSubscription
    SyncGroup assignment   version i16 | ConsumerProtocolAssignment      or no bytes at all: none

    subscription  v1  owned partitions (cooperative)    v2  generation    v3  rack
    assignment    v1 to v3 are like v0

For a broker these bytes are opaque, except to describe a group. They mean this only where the
protocol type is `consumer`: Connect and others put in their own. Every version begins like those
before it. So, as in Kafka, what is newer than we know is read as the newest that we know, and what
is left behind it is not looked at. Which topics a member reads stands in version 0, and is read as
such: some clients announce a version and leave out what it brought.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from strandline.broker.protocol.formats.versioned import read_struct, read_version, write_struct
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import (
    Buffer,
    Struct,
    array,
    byte_string,
    int32,
    string,
    wire,
)

S = TypeVar("S", bound=Struct)

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
CONSUMER_PROTOCOL_VERSION_MAX: Final = 3


class ConsumerTopicPartitions(Struct):
    topic: str = wire(string)
    partitions: Sequence[int] = wire(array(int32))


class ConsumerProtocolSubscription(Struct):
    """`generation_id` -1 is unknown. `user_data` belongs to the assignor."""

    topics: Sequence[str] = wire(array(string))
    user_data: bytes | None = wire(byte_string, nullable="0+", default=None)
    owned_partitions: Sequence[ConsumerTopicPartitions] = wire(
        array(ConsumerTopicPartitions), "1+", default=()
    )
    generation_id: int = wire(int32, "2+", default=-1)
    rack_id: str | None = wire(string, "3+", nullable="3+", default=None)


class ConsumerProtocolAssignment(Struct):
    assigned_partitions: Sequence[ConsumerTopicPartitions] = wire(array(ConsumerTopicPartitions))
    user_data: bytes | None = wire(byte_string, nullable="0+", default=None)


def decode_subscription(metadata: Buffer) -> ConsumerProtocolSubscription:
    """What a member subscribes to. Raises MalformedRequest."""
    return _decode(ConsumerProtocolSubscription, metadata)


def decode_subscribed_topics(metadata: Buffer) -> Sequence[str]:
    """The topics that a member subscribes to, whatever version it announces, as in Kafka.

    Raises MalformedRequest.
    """
    encoded = memoryview(metadata)
    read_version(encoded)
    return read_struct(ConsumerProtocolSubscription, 0, encoded)[0].topics


def encode_subscription(
    subscription: ConsumerProtocolSubscription, version: int = CONSUMER_PROTOCOL_VERSION_MAX
) -> bytes:
    """What a member sends as the metadata of a protocol."""
    return write_struct(subscription, version)


def decode_assignment(assignment: Buffer) -> ConsumerProtocolAssignment:
    """What a member is to read. Raises MalformedRequest."""
    return _decode(ConsumerProtocolAssignment, assignment)


def encode_assignment(
    assignment: ConsumerProtocolAssignment, version: int = CONSUMER_PROTOCOL_VERSION_MAX
) -> bytes:
    """What a leader sends for one member."""
    return write_struct(assignment, version)


def _decode(cls: type[S], raw: Buffer) -> S:
    encoded = memoryview(raw)
    version = read_version(encoded)
    if version < 0:
        raise MalformedRequest(f"{cls.__name__} of version {version}")
    return read_struct(cls, min(version, CONSUMER_PROTOCOL_VERSION_MAX), encoded)[0]
