"""TxnOffsetCommit: a producer commits offsets of a group as part of its transaction.

0-6  2 leader epoch; COORDINATOR_LOAD_IN_PROGRESS, 3 generation and member (KIP-447),
     4 TRANSACTION_ABORTABLE, 5 adds the offsets to the transaction (KIP-890),
     6 topics by id, GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH (KIP-1319)
"""

from __future__ import annotations

from functools import partial

from strandline.broker.coordination.groups.group_coordinator import GroupCoordinator
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.model.offset_messages import CommitRequest, OffsetToCommit
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.coordination.transactions.verification import Confirmation
from strandline.broker.handlers.services.limits import refuse_partition_flood
from strandline.broker.handlers.services.offsets_to_commit import OffsetsToCommit
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode

FIRST_WITH_LOAD_IN_PROGRESS = 2
FIRST_WITH_ABORTABLE = 4
FIRST_OF_VERSION_2 = 5
FIRST_BY_TOPIC_ID = 6
FIRST_WITH_CODES_OF_OFFSET_COMMIT = 6


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
        wanted_offsets = OffsetsToCommit.of(
            request.topics, self._metadata.image, by_id=context.api_version >= FIRST_BY_TOPIC_ID
        )
        offsets = tuple(wanted_offsets.offsets.values())
        if offsets:
            wanted_offsets.note(await self._commit(request, offsets, context.api_version))
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=wanted.name,
                    topic_id=wanted.topic_id,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=partition.partition_index,
                            error_code=wanted_offsets.codes[row, column],
                        )
                        for column, partition in enumerate(wanted.partitions)
                    ],
                )
                for row, wanted in enumerate(request.topics)
            ]
        )

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
                    generation=request.generation_id_or_member_epoch,
                    offsets=offsets,
                    missing_group_code=ErrorCode.GROUP_ID_NOT_FOUND
                    if version >= FIRST_WITH_CODES_OF_OFFSET_COMMIT
                    else ErrorCode.ILLEGAL_GENERATION,
                    is_transactional=True,
                    knows_member_epochs=version >= FIRST_WITH_CODES_OF_OFFSET_COMMIT,
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
