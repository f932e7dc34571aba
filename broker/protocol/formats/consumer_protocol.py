"""The consumer protocol inside JoinGroup and SyncGroup: subscriptions and assignments.

    JoinGroup metadata     version i16 | ConsumerProtocolSubscription
    SyncGroup assignment   version i16 | ConsumerProtocolAssignment      or no bytes at all: none

    subscription  v1  owned partitions (cooperative)    v2  generation    v3  rack
    assignment    v1 to v3 are like v0

For a broker these bytes are opaque, except to describe a group. They have this format only for the
protocol type `consumer`: Connect and others use their own. Every version extends the one before it.
So, as in Kafka, a newer version is read as the newest known one, and the rest is ignored. The
topics of a member are in version 0, and are decoded as such: some clients announce a version and
leave out its new fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from strandline.broker.protocol.formats.versioned import read_struct, read_version, write_struct
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import Struct

S = TypeVar("S", bound=Struct)

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
CONSUMER_PROTOCOL_VERSION_MAX: Final = 3


class ConsumerTopicPartitions(Struct):
    topic: str = wire.string()
    partitions: Sequence[int] = wire.array(wire.int32)


class ConsumerProtocolSubscription(Struct):
    """A subscription. `generation_id` -1 is unknown; `user_data` belongs to the assignor."""

    topics: Sequence[str] = wire.array(wire.string)
    user_data: bytes | None = wire.byte_string(nullable="0+", default=None)
    owned_partitions: Sequence[ConsumerTopicPartitions] = wire.array(
        ConsumerTopicPartitions, "1+", default=()
    )
    generation_id: int = wire.int32("2+", default=-1)
    rack_id: str | None = wire.string("3+", nullable="3+", default=None)


class ConsumerProtocolAssignment(Struct):
    assigned_partitions: Sequence[ConsumerTopicPartitions] = wire.array(ConsumerTopicPartitions)
    user_data: bytes | None = wire.byte_string(nullable="0+", default=None)


def decode_subscription(metadata: wire.Buffer) -> ConsumerProtocolSubscription:
    """Decodes a subscription. Raises MalformedRequest."""
    return _decode(ConsumerProtocolSubscription, metadata)


def decode_subscribed_topics(metadata: wire.Buffer) -> Sequence[str]:
    """Decodes the topics that a member subscribes to, for any announced version, as in Kafka.

    Raises MalformedRequest.
    """
    encoded = memoryview(metadata)
    read_version(encoded)
    return read_struct(ConsumerProtocolSubscription, 0, encoded)[0].topics


def decode_assignment(assignment: wire.Buffer) -> ConsumerProtocolAssignment:
    """Decodes an assignment. Raises MalformedRequest."""
    return _decode(ConsumerProtocolAssignment, assignment)


def encode_assignment(
    assignment: ConsumerProtocolAssignment, version: int = CONSUMER_PROTOCOL_VERSION_MAX
) -> bytes:
    """Encodes the leader's assignment for one member."""
    return write_struct(assignment, version)


def _decode(cls: type[S], raw: wire.Buffer) -> S:
    encoded = memoryview(raw)
    version = read_version(encoded)
    if version < 0:
        raise MalformedRequest(f"{cls.__name__} of version {version}")
    return read_struct(cls, min(version, CONSUMER_PROTOCOL_VERSION_MAX), encoded)[0]
