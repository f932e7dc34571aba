"""Produce: append each batch to its partition and answer with the offsets they got.

     3   first version with record batches v2; older ones are refused by closing, as Kafka 4 does
     5   answers with the log start offset
     7   zstd allowed; below it a zstd batch gets UNSUPPORTED_COMPRESSION_TYPE
     8   record_errors and error_message
     9   flexible
    10   may answer with the current leader (not needed: this broker leads all it knows)
    13   topics by id

One batch per partition, appended in order. The records are a view of the receive buffer: checked,
stamped in place, written to the segment, never copied. acks=0 is answered by silence, and by
closing the connection on error: a client that does not listen would not learn of it otherwise.
acks=all is acks=1 while a partition has one replica; `min.insync.replicas` above 1 refuses it.

An append that `flush.messages` wants on the device is answered after an fsync, shared by everybody
who waits for the same one; then the answer comes from a coroutine instead of at once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from strandline.broker.answers import Answer, CloseConnectionError, Parts
from strandline.broker.cluster.partition import Partition
from strandline.broker.handlers.services import Services
from strandline.broker.protocol.api import ApiKey
from strandline.broker.protocol.errors import ErrorCode
from strandline.broker.protocol.header import RequestHeader, frame_response
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)
from strandline.broker.protocol.produce import encode_produce_response, frame_appended
from strandline.storage.errors import RecordsRejected, StorageError, UnsupportedCodec
from strandline.storage.local.log import AppendInfo
from strandline.storage.records.batch import (
    ATTRIBUTES_FIELD,
    CODEC_MASK,
    CRC_START,
    HEADER_BYTES,
)
from strandline.storage.records.compression import Codec

log = logging.getLogger(__name__)

ACKS_ALL = -1
FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_WITH_TOPIC_IDS = 13


@dataclass(frozen=True, slots=True)
class _ToFlush:
    """An append whose answer waits for an fsync, and where that answer stands."""

    partition: Partition
    answers: list[ProduceResponsePartition]
    position: int


class ProduceHandler:
    """Stateless but for what it asks of the services."""

    def __init__(self, services: Services) -> None:
        self._replicas = services.replicas

    def handle(self, request: ProduceRequest, header: RequestHeader) -> Answer:
        """The framed answer, now or after an fsync; None for acks=0."""
        topics = request.topics
        if len(topics) == 1 and len(topics[0].partitions) == 1 and request.acks != 0:
            answer = self._handle_one(request, topics[0], topics[0].partitions[0], header)
            if answer is not None:
                return answer
        return self._handle_many(request, header)

    def _handle_one(
        self,
        request: ProduceRequest,
        topic: ProduceTopic,
        wanted: ProducePartition,
        header: RequestHeader,
    ) -> Answer:
        """The usual request, answered without building the answer's objects."""
        version = header.api_version
        partition = self._find(topic, wanted.index, version)
        outcome = self._append(request, partition, wanted, version)
        if isinstance(outcome, AppendInfo):
            assert partition is not None
            if not partition.must_flush:
                framed = frame_appended(
                    version,
                    header.correlation_id,
                    topic,
                    wanted.index,
                    outcome.base_offset,
                    outcome.log_append_time_ms,
                    partition.log.log_start_offset,
                )
                if framed is not None:
                    return [framed]
        answers: list[ProduceResponsePartition] = []
        to_flush: list[_ToFlush] = []
        self._note(outcome, partition, wanted.index, answers, to_flush)
        return self._answer([_topic_answer(topic, answers)], to_flush, header)

    def _handle_many(self, request: ProduceRequest, header: RequestHeader) -> Answer:
        version = header.api_version
        topics: list[ProduceResponseTopic] = []
        to_flush: list[_ToFlush] = []
        for topic in request.topics:
            answers: list[ProduceResponsePartition] = []
            for wanted in topic.partitions:
                partition = self._find(topic, wanted.index, version)
                outcome = self._append(request, partition, wanted, version)
                self._note(outcome, partition, wanted.index, answers, to_flush)
            topics.append(_topic_answer(topic, answers))
        if request.acks == 0:
            _close_on_error(topics)
            return None
        return self._answer(topics, to_flush, header)

    def _note(
        self,
        outcome: AppendInfo | ProduceResponsePartition,
        partition: Partition | None,
        index: int,
        answers: list[ProduceResponsePartition],
        to_flush: list[_ToFlush],
    ) -> None:
        """Adds the answer of one partition, and the fsync that it may have to wait for."""
        if isinstance(outcome, ProduceResponsePartition):
            answers.append(outcome)
            return
        assert partition is not None
        if partition.must_flush:
            to_flush.append(_ToFlush(partition, answers, len(answers)))
        answers.append(
            ProduceResponsePartition(
                index=index,
                base_offset=outcome.base_offset,
                log_append_time_ms=outcome.log_append_time_ms,
                log_start_offset=partition.log.log_start_offset,
            )
        )

    def _answer(
        self, topics: list[ProduceResponseTopic], to_flush: list[_ToFlush], header: RequestHeader
    ) -> Answer:
        response = ProduceResponse(topics=topics)
        if to_flush:
            return self._answer_after_flush(response, to_flush, header)
        return _framed(response, header)

    def _find(self, topic: ProduceTopic, index: int, version: int) -> Partition | None:
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            return self._replicas.partition_by_id(topic.topic_id, index)
        return self._replicas.partition(topic.name, index)

    def _append(
        self,
        request: ProduceRequest,
        partition: Partition | None,
        wanted: ProducePartition,
        version: int,
    ) -> AppendInfo | ProduceResponsePartition:
        """Where the batch went, or the answer that says why it is refused."""
        index = wanted.index
        if partition is None:
            by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
            return ProduceResponsePartition(
                index=index,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID
                if by_id
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
        refusal = self._refusal(request, partition)
        if refusal is not None:
            return ProduceResponsePartition(index=index, error_code=refusal)
        if wanted.records is None:
            return ProduceResponsePartition(
                index=index, error_code=ErrorCode.INVALID_RECORD, error_message="no record batch"
            )
        try:
            if version < FIRST_VERSION_WITH_ZSTD:
                refuse_zstd(wanted.records)
            return partition.append(wanted.records)
        except RecordsRejected as error:
            return ProduceResponsePartition(
                index=index, error_code=error.kafka_code, error_message=str(error)
            )
        except StorageError as error:
            log.warning(
                "append failed",
                extra={
                    "fields": {"partition": str(partition.topic_partition), "error": str(error)}
                },
            )
            return ProduceResponsePartition(
                index=index, error_code=error.kafka_code, error_message=str(error)
            )

    def _refusal(self, request: ProduceRequest, partition: Partition) -> ErrorCode | None:
        if request.acks not in (0, 1, ACKS_ALL):
            return ErrorCode.INVALID_REQUIRED_ACKS
        if partition.is_internal:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if request.transactional_id is not None:
            # InitProducerId refuses transactional ids, so no honest client comes here.
            return ErrorCode.INVALID_TXN_STATE
        if request.acks == ACKS_ALL and partition.log.local.config.min_insync_replicas > 1:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return None

    async def _answer_after_flush(
        self, response: ProduceResponse, to_flush: list[_ToFlush], header: RequestHeader
    ) -> Parts:
        for entry in to_flush:
            try:
                await entry.partition.flush()
            except StorageError as error:
                log.error(
                    "flush failed",
                    extra={
                        "fields": {
                            "partition": str(entry.partition.topic_partition),
                            "error": str(error),
                        }
                    },
                )
                entry.answers[entry.position] = ProduceResponsePartition(
                    index=entry.answers[entry.position].index,
                    error_code=error.kafka_code,
                    error_message=str(error),
                )
        return _framed(response, header)


def refuse_zstd(records: memoryview) -> None:
    """Raises UnsupportedCodec for a zstd batch: clients this old cannot read it back (KIP-110)."""
    if len(records) >= HEADER_BYTES:
        (attributes,) = ATTRIBUTES_FIELD.unpack_from(records, CRC_START)
        if attributes & CODEC_MASK == Codec.ZSTD:
            raise UnsupportedCodec("zstd needs Produce version 7 or newer")


def _close_on_error(topics: list[ProduceResponseTopic]) -> None:
    """Raises CloseConnectionError if anything failed."""
    for topic in topics:
        for partition in topic.partitions:
            if partition.error_code:
                raise CloseConnectionError(
                    f"acks=0 produce to {topic.name or topic.topic_id}-{partition.index} "
                    f"failed with {ErrorCode(partition.error_code).name}"
                )


def _topic_answer(
    topic: ProduceTopic, answers: list[ProduceResponsePartition]
) -> ProduceResponseTopic:
    return ProduceResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)


def _framed(response: ProduceResponse, header: RequestHeader) -> Parts:
    version = header.api_version
    body = encode_produce_response(version, response)
    return frame_response(ApiKey.PRODUCE, version, header.correlation_id, body)
