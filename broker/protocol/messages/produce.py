"""Produce: record batches for partitions.

    v3   transactional id            v7   zstd allowed               v9   flexible
    v5   log start offset            v8   record errors, message     v10  current leader (KIP-951)
    v13  topic ids instead of names  v11, v12: new semantics (KIP-890)

Versions 0 to 2 (old message formats) are advertised and refused; see `api`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ProducePartition(Struct):
    """Record batches for one partition; `records` is a slice of the request's buffer."""

    index: int = wire.int32()
    records: memoryview | None = wire.records()


class ProduceTopic(Struct):
    """One topic of the request; `topic_id` is None in versions that name the topic."""

    name: str = wire.string("0-12", default="")
    topic_id: uuid.UUID | None = wire.optional_uuid("13+", default=None)
    partitions: Sequence[ProducePartition] = wire.array(ProducePartition)


class ProduceRequest(Request, api=ApiKey.PRODUCE):
    transactional_id: str | None = wire.string("3+", nullable="3+", default=None)
    acks: int = wire.int16()
    timeout_ms: int = wire.int32()
    topics: Sequence[ProduceTopic] = wire.array(ProduceTopic)

    # Twenty thousand partitions of as many topics: it is decoded on the loop, 50 ms at most.
    elements_max = 40_000


class ProduceRecordError(Struct):
    """A record for which its batch was refused."""

    batch_index: int = wire.int32()
    batch_index_error_message: str | None = wire.string(nullable="0+", default=None)


class ProduceCurrentLeader(Struct):
    """The partition's current leader, with NOT_LEADER_OR_FOLLOWER."""

    leader_id: int = wire.int32(default=-1)
    leader_epoch: int = wire.int32(default=-1)


class ProduceResponsePartition(Struct):
    index: int = wire.int32()
    error_code: int = wire.int16(default=0)
    base_offset: int = wire.int64(default=-1)
    log_append_time_ms: int = wire.int64("2+", default=-1)
    log_start_offset: int = wire.int64("5+", default=-1)
    record_errors: Sequence[ProduceRecordError] = wire.array(ProduceRecordError, "8+", default=())
    error_message: str | None = wire.string("8+", nullable="8+", default=None)
    current_leader: ProduceCurrentLeader | None = wire.optional_struct(
        ProduceCurrentLeader, "10+", tag=0, default=None
    )


class ProduceResponseTopic(Struct):
    name: str = wire.string("0-12", default="")
    topic_id: uuid.UUID | None = wire.optional_uuid("13+", default=None)
    partitions: Sequence[ProduceResponsePartition] = wire.array(ProduceResponsePartition)


class ProduceNodeEndpoint(Struct):
    """The address of a leader that `current_leader` names."""

    node_id: int = wire.int32()
    host: str = wire.string()
    port: int = wire.int32()
    rack: str | None = wire.string(nullable="0+", default=None)


class ProduceResponse(Response, api=ApiKey.PRODUCE):
    topics: Sequence[ProduceResponseTopic] = wire.array(ProduceResponseTopic)
    throttle_time_ms: int = wire.int32("1+", default=0)
    node_endpoints: Sequence[ProduceNodeEndpoint] = wire.array(
        ProduceNodeEndpoint, "10+", tag=0, default=()
    )
