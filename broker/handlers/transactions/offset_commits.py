"""TxnOffsetCommit: a producer commits offsets of a group as part of its transaction.

0-6  2 leader epoch; COORDINATOR_LOAD_IN_PROGRESS, 3 generation and member (KIP-447),
     4 TRANSACTION_ABORTABLE, 5 adds the offsets to the transaction (KIP-890),
     6 topics by id, GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH (KIP-1319)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strandline.broker.cluster.replicas.partition import LeaderRefusal
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
from strandline.storage.model import TopicPartition

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
        self._replicas = services.replicas
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
            confirm = await self._confirmation(request, producer, _confirmation(version))
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
                confirm,
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

    async def _confirmation(
        self, request: TxnOffsetCommitRequest, producer: ProducerIdentity, wanted: Confirmation
    ) -> Callable[[TopicPartition], ErrorCode]:
        """Returns who says whether the partition of the offsets is part of the transaction.

        A coordinator on another broker is asked here; the log's guard says later whether a marker
        came meanwhile. Raises CoordinatorFault.
        """
        name = request.transactional_id
        node_id = self._coordinator.elsewhere(name)
        if node_id is None:
            return partial(self._coordinator.confirm, name, producer, confirmation=wanted)
        where = await self._groups.partition_of(request.group_id)
        partition = self._replicas.leader(where.topic, where.partition)
        if isinstance(partition, LeaderRefusal):
            raise CoordinatorFault(ErrorCode.NOT_COORDINATOR)
        producers = partition.log.local.producers
        if producers.has_open_transaction(*producer):
            return lambda _: ErrorCode.NONE
        guard = producers.begin_verification(*producer)
        codes = await self._coordinator.confirm_elsewhere(node_id, name, producer, {where}, wanted)

        def confirmed(_: TopicPartition) -> ErrorCode:
            if codes[where] is ErrorCode.NONE and not producers.is_verified(
                producer.producer_id, guard
            ):
                return ErrorCode.INVALID_TXN_STATE
            return codes[where]

        return confirmed


def _confirmation(version: int) -> Confirmation:
    if version >= FIRST_OF_VERSION_2:
        return Confirmation.ADD
    return Confirmation.LOOK if version < FIRST_WITH_ABORTABLE else Confirmation.LOOK_ABORTABLE
