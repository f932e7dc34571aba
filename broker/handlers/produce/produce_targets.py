"""Finds the partition of a batch, and refuses batches before their records are read."""

from __future__ import annotations

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponsePartition,
    ProduceTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import UnsupportedCodec
from strandline.storage.records.batch.batch import (
    ATTRIBUTES_FIELD,
    CODEC_MASK,
    CRC_START,
    HEADER_BYTES,
)
from strandline.storage.records.compression import Codec

ACKS_ALL = -1
FIRST_VERSION_WITH_TOPIC_IDS = 13


class ProduceTargets:
    """Looks up replicas by name or by id, depending on the version of the request."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def find(self, topic: ProduceTopic, index: int, version: int) -> Partition | None:
        """Returns the partition; None if it is not on this broker."""
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            return self._replicas.partition_by_id(topic.topic_id, index)
        return self._replicas.partition(topic.name, index)

    def refused(
        self,
        request: ProduceRequest,
        topic: ProduceTopic,
        partition: Partition | None,
        wanted: ProducePartition,
        version: int,
    ) -> ProduceResponsePartition | None:
        """Returns the answer to a batch that is refused before its records are read."""
        if partition is None:
            return ProduceResponsePartition(
                index=wanted.index, error_code=self._code_of_missing(topic, wanted.index, version)
            )
        partition.traffic.produce_requests += 1
        code = _refusal_code(request, partition)
        if code is not None:
            return ProduceResponsePartition(index=wanted.index, error_code=code)
        if wanted.records is None:
            partition.traffic.failed_produce += 1
            return ProduceResponsePartition(
                index=wanted.index,
                error_code=ErrorCode.INVALID_RECORD,
                error_message="no record batch",
            )
        return None

    def _code_of_missing(self, topic: ProduceTopic, index: int, version: int) -> ErrorCode:
        """Returns the error code for a partition that `find` does not find."""
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            if self._replicas.is_offline_by_id(topic.topic_id, index):
                return ErrorCode.KAFKA_STORAGE_ERROR
            if not self._replicas.has_topic_id(topic.topic_id):
                return ErrorCode.UNKNOWN_TOPIC_ID
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self._replicas.code_of_missing(topic.name, index)


def _refusal_code(request: ProduceRequest, partition: Partition) -> ErrorCode | None:
    if request.acks not in (0, 1, ACKS_ALL):
        return ErrorCode.INVALID_REQUIRED_ACKS
    if partition.is_internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return None


def refuse_zstd(records: memoryview) -> None:
    """Raises UnsupportedCodec for a zstd batch: clients this old cannot read it back (KIP-110)."""
    if len(records) >= HEADER_BYTES:
        (attributes,) = ATTRIBUTES_FIELD.unpack_from(records, CRC_START)
        if attributes & CODEC_MASK == Codec.ZSTD:
            raise UnsupportedCodec("zstd needs Produce version 7 or newer")
