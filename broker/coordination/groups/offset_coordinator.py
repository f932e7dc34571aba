"""The committed offsets of groups: requests that commit, fetch and delete them.

Offsets that a transaction commits are pending in their shard until its marker is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.groups.group_shard import GroupShard, GroupSlot
from strandline.broker.coordination.groups.group_writes import write_offsets, write_pending
from strandline.broker.coordination.model.classic_messages import CoordinatorFault, Instant
from strandline.broker.coordination.model.group_offsets import GroupOffsets
from strandline.broker.coordination.model.offset_messages import (
    CommitRequest,
    OffsetDeletion,
    OffsetRecord,
    OffsetToDelete,
)
from strandline.broker.coordination.model.pending_offsets import PendingOffsets
from strandline.broker.coordination.records.offset_records import LoadedMarker
from strandline.broker.coordination.runtime.runtime import CoordinatorRuntime
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import TopicPartition

T = TypeVar("T")


class OffsetCoordinator:
    """Commits, fetches and deletes offsets. Used on the event loop only."""

    def __init__(
        self, runtime: CoordinatorRuntime[GroupShard], arm: Callable[[Group], None]
    ) -> None:
        """`arm` arms the timer with a group's next deadline."""
        self._runtime = runtime
        self._slots = runtime.slots
        self._now = runtime.now
        self._arm = arm

    async def commit(self, group_id: str, request: CommitRequest) -> tuple[ErrorCode, ...]:
        """Returns a code for each offset in order. Raises CoordinatorFault."""
        return await self._runtime.write(
            group_id, lambda slot: self._commit(slot, group_id, request, write_offsets)
        )

    def _commit(
        self,
        slot: GroupSlot,
        group_id: str,
        request: CommitRequest,
        write: Callable[[GroupSlot, Sequence[OffsetRecord], Instant], None],
    ) -> tuple[ErrorCode, ...]:
        now = self._now()
        decision = slot.shard.commit(group_id, request, now)
        group = slot.shard.group(group_id)
        if group is not None:
            self._arm(group)
        if decision.records:
            write(slot, decision.records, now)
        return decision.error_codes

    async def commit_in_transaction(
        self,
        group_id: str,
        request: CommitRequest,
        producer: ProducerIdentity,
        confirm: Callable[[TopicPartition], ErrorCode],
    ) -> tuple[ErrorCode, ...]:
        """Commits offsets that count once the producer's transaction is committed.

        `confirm` asks the coordinator of the transaction whether the partition of the offsets is
        part of it. Returns a code for each offset in order. Raises CoordinatorFault.
        """
        check_group_id(group_id)

        def committed(slot: GroupSlot) -> tuple[ErrorCode, ...]:
            # No turn of the loop lies between this answer and the append: no marker can.
            code = confirm(slot.partition.topic_partition)
            if code is not ErrorCode.NONE:
                raise CoordinatorFault(code)
            return self._commit(slot, group_id, request, partial(write_pending, producer))

        return await self._runtime.write(group_id, committed)

    def ended_transaction(self, partition: TopicPartition, ended: LoadedMarker) -> None:
        """The marker of a transaction was written to a partition of the offsets."""
        slot = self._slots.at(partition.partition)
        if slot is not None and slot.is_loaded:
            slot.shard.take(ended, self._now())

    def may_end_transaction(self, partition: TopicPartition) -> bool:
        """Returns whether a marker may be written to this partition of the offsets.

        Not while it is loaded: a loading shard would miss what is appended behind its end.
        """
        slot = self._slots.at(partition.partition)
        return slot is not None and slot.is_loaded

    async def read_offsets(
        self,
        group_id: str,
        look: Callable[[GroupOffsets, PendingOffsets], T],
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> T:
        """Returns what `look` makes of the group's offsets, the committed and those of open
        transactions. Raises CoordinatorFault.

        A member of the new protocol that sends its epoch must be in that epoch.
        """

        def looked(shard: GroupShard) -> T:
            group = shard.consumers.get(group_id)
            if group is not None:
                code = shard.consumers.check_fetch(
                    group, member_id=member_id, member_epoch=member_epoch
                )
                if code is not ErrorCode.NONE:
                    raise CoordinatorFault(code)
            return look(shard.offsets_of(group_id) or GroupOffsets(), shard.pending)

        return await self._runtime.read(group_id, looked)

    def offsets_of(self, group_id: str) -> GroupOffsets | None:
        """Returns the group's committed offsets as of now, for the metrics."""
        slot = self._slots.of(group_id)
        return None if slot is None else slot.shard.offsets_of(group_id)

    async def delete_offsets(
        self, group_id: str, wanted: Sequence[OffsetToDelete]
    ) -> OffsetDeletion:
        """Deletes offsets. Raises CoordinatorFault."""
        check_group_id(group_id)

        def deleted(slot: GroupSlot) -> OffsetDeletion:
            deletion = slot.shard.delete_offsets(group_id, wanted)
            if deletion.records:
                write_offsets(slot, deletion.records, self._now())
            return deletion

        return await self._runtime.write(group_id, deleted, absent=ErrorCode.GROUP_ID_NOT_FOUND)


def check_group_id(group_id: str) -> None:
    """Raises CoordinatorFault for the empty name."""
    if not group_id:
        raise CoordinatorFault(ErrorCode.INVALID_GROUP_ID)
