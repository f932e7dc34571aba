"""The APIs of transactional producers, and WriteTxnMarkers.

InitProducerId      0-5  2 flexible, 3 the producer's current id and epoch (KIP-360),
                         4 PRODUCER_FENCED, 5 TRANSACTION_ABORTABLE
AddPartitionsToTxn  0-5  2 PRODUCER_FENCED, 4 from brokers: several transactions, verification;
                         before, a client's: none of the broker's own topics
AddOffsetsToTxn     0-4  2 PRODUCER_FENCED
EndTxn              0-5  2 PRODUCER_FENCED, 5 a new epoch at each end (KIP-890)
WriteTxnMarkers     0-2  2 the transaction's version (KIP-1228)

Versions before PRODUCER_FENCED get INVALID_PRODUCER_EPOCH for it.

A producer without a transactional id gets a new producer id each time, as from Kafka's
TransactionCoordinator. If the epoch were raised instead, two producers with the same id would share
an epoch, and their batches would pass for duplicates. Idempotent producers raise epochs themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence, Set
from typing import Final

from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS
from strandline.broker.coordination.groups.group_coordinator import GroupCoordinator
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.transactions.markers import EndMarker, LocalMarkers
from strandline.broker.coordination.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdentity,
    TransactionVersion,
)
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.handlers.services.limits import refuse_partition_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from strandline.broker.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from strandline.broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from strandline.broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import StorageError
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.marker import MarkerType

FIRST_INIT_WITH_PRODUCER_FENCED = 4
FIRST_WITH_PRODUCER_FENCED = 2
FIRST_BATCHED_ADD = 4
FIRST_END_OF_VERSION_2 = 5
# How long followers are waited for with a marker: the default of Kafka's request.timeout.ms.
REPLICATION_S_MAX: Final = 30.0


class TransactionHandlers:
    """Handlers of transactional producers: decode, ask the coordinator, encode."""

    def __init__(
        self,
        services: Services,
        coordinator: TransactionCoordinator,
        groups: GroupCoordinator,
        markers: LocalMarkers,
    ) -> None:
        self._metadata = services.metadata
        self._coordinator = coordinator
        self._groups = groups
        self._markers = markers

    # --- InitProducerId ----------------------------------------------------------------------

    async def init_producer_id(
        self, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse:
        producer_id, epoch = request.producer_id, request.producer_epoch
        if (producer_id == NO_PRODUCER_ID) != (epoch == NO_PRODUCER_EPOCH):
            # As in KafkaApis: one without the other identifies no producer.
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
        expected = None if producer_id == NO_PRODUCER_ID else ProducerIdentity(producer_id, epoch)
        try:
            if request.transactional_id is None:
                got = ProducerIdentity(await self._coordinator.producer_ids.take(), 0)
            else:
                got = await self._coordinator.init_producer(
                    request.transactional_id,
                    timeout_ms=request.transaction_timeout_ms,
                    expected=expected,
                )
        except StorageError as error:
            return InitProducerIdResponse(error_code=error.kafka_code)
        except CoordinatorFault as fault:
            is_old = context.api_version < FIRST_INIT_WITH_PRODUCER_FENCED
            return InitProducerIdResponse(error_code=_known_to(is_old, fault.error_code))
        return InitProducerIdResponse(producer_id=got.producer_id, producer_epoch=got.epoch)

    # --- AddPartitionsToTxn, AddOffsetsToTxn -------------------------------------------------

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        version = context.api_version
        if version >= FIRST_BATCHED_ADD:
            wanted = request.transactions
            refuse_partition_flood(
                topic.partitions for transaction in wanted for topic in transaction.topics
            )
            return AddPartitionsToTxnResponse(
                results_by_transaction=[
                    AddPartitionsToTxnResult(
                        transactional_id=transaction.transactional_id,
                        topic_results=await self._add(transaction, version),
                    )
                    for transaction in wanted
                ]
            )
        refuse_partition_flood(topic.partitions for topic in request.topics)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            topics=request.topics,
        )
        return AddPartitionsToTxnResponse(results_by_topic=await self._add(transaction, version))

    async def _add(
        self, wanted: AddPartitionsToTxnTransaction, version: int
    ) -> list[AddPartitionsToTxnTopicResult]:
        """Adds all partitions of one transaction, or none if one cannot be added."""
        image = self._metadata.image
        partitions = {
            TopicPartition(topic.name, index)
            for topic in wanted.topics
            for index in topic.partitions
        }
        # Clients write no records to the broker's own topics; brokers add the offsets' partitions.
        kept_back = INTERNAL_TOPICS if version < FIRST_BATCHED_ADD else frozenset()
        refused = {
            one: ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if one.topic in kept_back
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for one in partitions
            if one.topic in kept_back or image.partition(one) is None
        }
        if refused:
            others = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED)
            return _add_results(wanted.topics, others | refused)
        return _add_results(wanted.topics, await self._ask(wanted, partitions, version))

    async def _ask(
        self, wanted: AddPartitionsToTxnTransaction, partitions: Set[TopicPartition], version: int
    ) -> Mapping[TopicPartition, ErrorCode]:
        producer = ProducerIdentity(wanted.producer_id, wanted.producer_epoch)
        if wanted.verify_only:
            return await self._coordinator.verify_partitions(
                wanted.transactional_id, producer, partitions
            )
        client_version = (
            TransactionVersion.V2 if version >= FIRST_BATCHED_ADD else TransactionVersion.V0
        )
        code = await self._coordinator.add_partitions(
            wanted.transactional_id, producer, partitions, client_version
        )
        return dict.fromkeys(partitions, _known_to(version < FIRST_WITH_PRODUCER_FENCED, code))

    async def add_offsets(
        self, request: AddOffsetsToTxnRequest, context: RequestContext
    ) -> AddOffsetsToTxnResponse:
        try:
            partition = await self._groups.partition_of(request.group_id)
        except CoordinatorFault as fault:
            return AddOffsetsToTxnResponse(error_code=fault.error_code)
        # Clients of version 2 add the offsets with TxnOffsetCommit.
        code = await self._coordinator.add_partitions(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            {partition},
            TransactionVersion.V0,
        )
        is_old = context.api_version < FIRST_WITH_PRODUCER_FENCED
        return AddOffsetsToTxnResponse(error_code=_known_to(is_old, code))

    # --- EndTxn, WriteTxnMarkers -------------------------------------------------------------

    async def end(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        version = context.api_version
        try:
            got = await self._coordinator.end(
                request.transactional_id,
                ProducerIdentity(request.producer_id, request.producer_epoch),
                MarkerType.COMMIT if request.committed else MarkerType.ABORT,
                TransactionVersion.V2
                if version >= FIRST_END_OF_VERSION_2
                else TransactionVersion.V0,
            )
        except CoordinatorFault as fault:
            is_old = version < FIRST_WITH_PRODUCER_FENCED
            return EndTxnResponse(error_code=_known_to(is_old, fault.error_code))
        return EndTxnResponse(producer_id=got.producer_id, producer_epoch=got.epoch)

    def write_markers(
        self, request: WriteTxnMarkersRequest, _context: RequestContext
    ) -> WriteTxnMarkersResponse | Coroutine[None, None, WriteTxnMarkersResponse]:
        """Writes markers of a coordinator elsewhere, or of an administrator, who ends a hanging
        transaction (KIP-664). The answer waits for followers, and for the device if it has to.
        """
        refuse_partition_flood(
            topic.partition_indexes for marker in request.markers for topic in marker.topics
        )
        waits: list[asyncio.Future[None]] = []
        response = WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                self._write_marker(_marker_of(marker), topic.name, index, waits)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )
        return _once_replicated(response, waits) if waits else response

    def _write_marker(
        self, marker: EndMarker, topic: str, index: int, waits: list[asyncio.Future[None]]
    ) -> WritableTxnMarkerPartitionResult:
        """Returns the answer, which a wait may yet change."""
        coming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer = WritableTxnMarkerPartitionResult(partition_index=index)

        def on_replicated(code: ErrorCode) -> None:
            answer.error_code = code  # type: ignore[misc]  # not sent yet
            if not coming.done():
                coming.set_result(None)

        code = self._markers.write(marker, TopicPartition(topic, index), on_replicated)
        if code is None:
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT  # type: ignore[misc]
            waits.append(coming)
        else:
            answer.error_code = code  # type: ignore[misc]
        return answer


async def _once_replicated(
    response: WriteTxnMarkersResponse, waits: Sequence[asyncio.Future[None]]
) -> WriteTxnMarkersResponse:
    await asyncio.wait(waits, timeout=REPLICATION_S_MAX)
    return response


def _marker_of(marker: WritableTxnMarker) -> EndMarker:
    return EndMarker(
        producer=ProducerIdentity(marker.producer_id, marker.producer_epoch),
        end=MarkerType.COMMIT if marker.transaction_result else MarkerType.ABORT,
        coordinator_epoch=marker.coordinator_epoch,
        version=(
            TransactionVersion.V2
            if marker.transaction_version >= TransactionVersion.V2
            else TransactionVersion.V0
        ),
    )


def _add_results(
    topics: Sequence[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=codes[TopicPartition(topic.name, index)],
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _known_to(is_old: bool, code: ErrorCode) -> ErrorCode:
    """Returns the code for a client's version; old ones do not know PRODUCER_FENCED."""
    if is_old and code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
