"""TxnOffsetCommit: a producer commits offsets of a group as part of its transaction.

0-5  2 leader epoch; COORDINATOR_LOAD_IN_PROGRESS, 3 generation and member (KIP-447),
     4 TRANSACTION_ABORTABLE, 5 adds the offsets to the transaction (KIP-890)
"""

from __future__ import annotations

from functools import partial

from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.model.offset_messages import CommitRequest, OffsetToCommit
from strandline.broker.coordination.runtime.group_coordinator import GroupCoordinator
from strandline.broker.coordination.runtime.transaction_coordinator import (
    Confirmation,
    TransactionCoordinator,
)
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.handlers.services.limits import refuse_partition_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import TopicPartition

FIRST_WITH_LOAD_IN_PROGRESS = 2
FIRST_WITH_ABORTABLE = 4
FIRST_OF_VERSION_2 = 5


class TransactionalCommitHandler:
    """Handler that commits offsets within a transaction."""

    def __init__(
        self, services: Services, coordinator: TransactionCoordinator, groups: GroupCoordinator
    ) -> None:
        self._metadata = services.metadata
        self._coordinator = coordinator
        self._groups = groups

    async def commit(
        self, request: TxnOffsetCommitRequest, context: RequestContext
    ) -> TxnOffsetCommitResponse:
        refuse_partition_flood(topic.partitions for topic in request.topics)
        offsets = self._existing(request)
        codes: dict[TopicPartition, ErrorCode] = {}
        if offsets:
            committed = await self._commit(request, tuple(offsets.values()), context.api_version)
            codes.update(zip(offsets, committed, strict=True))
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=wanted.partition_index,
                            error_code=codes.get(
                                TopicPartition(topic.name, wanted.partition_index),
                                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            ),
                        )
                        for wanted in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _existing(self, request: TxnOffsetCommitRequest) -> dict[TopicPartition, OffsetToCommit]:
        """Returns the offsets of partitions that exist."""
        image = self._metadata.image
        offsets = {}
        for topic in request.topics:
            known = image.topics.get(topic.name)
            for wanted in topic.partitions:
                where = TopicPartition(topic.name, wanted.partition_index)
                if known is not None and image.partition(where) is not None:
                    offsets[where] = OffsetToCommit(
                        topic.name,
                        wanted.partition_index,
                        wanted.committed_offset,
                        wanted.committed_leader_epoch,
                        wanted.committed_metadata,
                        known.topic_id,
                    )
        return offsets

    async def _commit(
        self, request: TxnOffsetCommitRequest, offsets: tuple[OffsetToCommit, ...], version: int
    ) -> tuple[ErrorCode, ...]:
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        try:
            return await self._groups.commit_in_transaction(
                request.group_id,
                CommitRequest(
                    member_id=request.member_id,
                    group_instance_id=request.group_instance_id,
                    generation=request.generation_id,
                    offsets=offsets,
                    is_transactional=True,
                ),
                producer,
                partial(
                    self._coordinator.confirm,
                    request.transactional_id,
                    producer,
                    confirmation=_confirmation(version),
                ),
            )
        except CoordinatorFault as fault:
            code = fault.error_code
            if (
                code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                and version < FIRST_WITH_LOAD_IN_PROGRESS
            ):
                # Producers up to Kafka 2.2 fail for good at the other code (KAFKA-7296).
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return (code,) * len(offsets)


def _confirmation(version: int) -> Confirmation:
    if version >= FIRST_OF_VERSION_2:
        return Confirmation.ADD
    return Confirmation.LOOK if version < FIRST_WITH_ABORTABLE else Confirmation.LOOK_ABORTABLE
