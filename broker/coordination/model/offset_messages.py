"""Requests, responses and records of one partition of `__consumer_offsets` (plain values).

A record is a fact in the log: `GroupRecord` and `OffsetRecord`, each with None as tombstone; those
of KIP-848 groups are in `consumer_messages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from strandline.broker.coordination.model.consumer_messages import ConsumerRecord
from strandline.broker.protocol.formats.offsets_topic import GroupMetadataValue, OffsetCommitValue
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import ZERO_TOPIC_ID, TopicId

NO_RETENTION = -1


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The members of a group; None: the group is deleted."""

    group_id: str
    snapshot: GroupMetadataValue | None


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A committed offset; None: it is deleted."""

    group_id: str
    topic: str
    partition: int
    committed: OffsetCommitValue | None


CoordinatorRecord: TypeAlias = GroupRecord | OffsetRecord | ConsumerRecord


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """One partition of a commit; the client's metadata may be null.

    `topic_id` is that of the topic which has the name now.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    topic_id: TopicId = ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """OffsetCommit for one group; generation -1 comes from a client that is no member.

    `missing_group_code` answers a member of a group that does not exist; it depends on the version
    of the request.
    """

    member_id: str = ""
    group_instance_id: str | None = None
    generation: int = -1
    retention_ms: int = NO_RETENTION
    offsets: tuple[OffsetToCommit, ...]
    missing_group_code: ErrorCode = ErrorCode.ILLEGAL_GENERATION
    # TxnOffsetCommit: need not name a member, and may come during a rebalance.
    is_transactional: bool = False
    # Before OffsetCommit v9 `generation` cannot be the epoch of a member of the new protocol.
    # Before TxnOffsetCommit v6 it can, but a stale epoch is answered as a wrong generation.
    knows_member_epochs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDecision:
    """Records to write, and a code for each offset in order."""

    records: tuple[OffsetRecord, ...]
    error_codes: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class OffsetToDelete:
    """One partition of OffsetDelete."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeletion:
    """Records to write, and a code for each offset in order; or one code for all."""

    records: tuple[OffsetRecord, ...] = ()
    error_codes: tuple[ErrorCode, ...] = ()
    group_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeletion:
    """Tombstones of a deleted group, or the reason why it cannot be deleted."""

    records: tuple[CoordinatorRecord, ...] = ()
    error_code: ErrorCode = ErrorCode.NONE
