"""TxnOffsetCommit: a producer commits offsets of a group as part of its transaction.

v2  leader epoch    v3  flexible; generation and member (KIP-447)    v4  TRANSACTION_ABORTABLE
v5  adds the offsets to the transaction as well: no AddOffsetsToTxn before it (KIP-890)
v6  topics by id, GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH (KIP-1319)
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class TxnOffsetCommitRequestPartition(Struct):
    """One offset; `committed_metadata` None is stored as empty."""

    partition_index: int = wire.int32()
    committed_offset: int = wire.int64()
    committed_leader_epoch: int = wire.int32("2+", default=-1)
    committed_metadata: str | None = wire.string(nullable="0+", default=None)


class TxnOffsetCommitRequestTopic(Struct):
    """One topic: by name, or (v6) by id."""

    name: str = wire.string("0-5", default="")
    topic_id: uuid.UUID = wire.uuid_("6+", default=wire.ZERO_UUID)
    partitions: Sequence[TxnOffsetCommitRequestPartition] = wire.array(
        TxnOffsetCommitRequestPartition
    )


class TxnOffsetCommitRequest(Request, api=ApiKey.TXN_OFFSET_COMMIT):
    """The offsets of one group; generation -1 with an empty member id names no member."""

    transactional_id: str = wire.string()
    group_id: str = wire.string()
    producer_id: int = wire.int64()
    producer_epoch: int = wire.int16()
    generation_id_or_member_epoch: int = wire.int32("3+", default=-1)
    member_id: str = wire.string("3+", default="")
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)
    topics: Sequence[TxnOffsetCommitRequestTopic] = wire.array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)


class TxnOffsetCommitResponseTopic(Struct):
    name: str = wire.string("0-5", default="")
    topic_id: uuid.UUID = wire.uuid_("6+", default=wire.ZERO_UUID)
    partitions: Sequence[TxnOffsetCommitResponsePartition] = wire.array(
        TxnOffsetCommitResponsePartition
    )


class TxnOffsetCommitResponse(Response, api=ApiKey.TXN_OFFSET_COMMIT):
    throttle_time_ms: int = wire.int32(default=0)
    topics: Sequence[TxnOffsetCommitResponseTopic] = wire.array(TxnOffsetCommitResponseTopic)
