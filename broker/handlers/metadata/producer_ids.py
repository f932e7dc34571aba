"""InitProducerId: allocates a unique id for every idempotent producer.

    0-5   2 flexible, 3 carries the producer's current id and epoch (KIP-360)

Current ids matter for transactions only: other producers get a new id each time, as from Kafka's
TransactionCoordinator. If the epoch were raised instead, two producers with the same id would share
an epoch, and their batches would pass for duplicates. Idempotent producers raise epochs themselves.

Ids come from a block that is allocated in the metadata log for good: a crash loses the rest of a
block, but no id is used twice. Transactional ids are refused with a code that clients report at
once; transactions are not served yet.
"""

from __future__ import annotations

from strandline.broker.cluster.metadata import controller
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import StorageError

# Id and epoch of a producer without an id.
NO_PRODUCER = -1


class ProducerIdHandler:
    """Owner of the current block of producer ids."""

    def __init__(self, services: Services) -> None:
        self._metadata = services.metadata
        self._next = 0
        self._block_end = 0

    async def init_producer_id(
        self, request: InitProducerIdRequest, _context: RequestContext
    ) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
        if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_PRODUCER):
            # As in KafkaApis: one without the other identifies no producer.
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
        try:
            producer_id = await self._take()
        except StorageError as error:
            return InitProducerIdResponse(error_code=error.kafka_code)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    async def _take(self) -> int:
        while self._next == self._block_end:
            before = self._block_end
            decision = await self._metadata.change(controller.allocate_producer_ids)
            (block,) = decision.results
            # Another request may have fetched a block meanwhile, which must not be lost.
            if self._block_end == before:
                self._next, self._block_end = block.start, block.stop
        taken = self._next
        self._next += 1
        return taken
