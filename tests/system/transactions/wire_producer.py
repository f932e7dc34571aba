"""A transactional producer on a bare connection, of transaction version 1 or 2."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence

from strandline.broker.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from strandline.broker.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from strandline.broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceTopic,
)
from strandline.broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import ZERO_TOPIC_ID
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.compression import Codec
from tests.support.broker import eventually
from tests.support.wire import WireClient
from tests.system.calls import FIRST_TIMESTAMP_MS

TIMEOUT_MS = 60_000


class WireProducer:
    """Knows its identity and its sequences; each call returns the error code of its answer."""

    def __init__(self, client: WireClient, transactional_id: str, *, version: int) -> None:
        assert version in (1, 2), version
        self.client = client
        self.transactional_id = transactional_id
        self.is_of_version_2 = version == 2
        self.producer_id = -1
        self.epoch = -1
        # Of the last batch that was written.
        self.base_offset = -1
        self._sequences: defaultdict[tuple[str, int], int] = defaultdict(int)

    def init(self, *, timeout_ms: int = TIMEOUT_MS) -> ErrorCode:
        answer = self.client.ask(
            InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms
            ),
            InitProducerIdResponse,
            5,
        )
        if not answer.error_code:
            self.become(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def begin(self, *, timeout_ms: int = TIMEOUT_MS) -> None:
        """Becomes the producer of its id, whatever went on under that before."""
        answered = eventually(lambda: self.init(timeout_ms=timeout_ms).name == "NONE")
        assert answered

    def become(self, producer_id: int, epoch: int) -> None:
        """Goes on under this identity, whose sequences begin at 0."""
        self.producer_id, self.epoch = producer_id, epoch
        self._sequences.clear()

    def add(self, topic: str, *partitions: int) -> ErrorCode:
        """AddPartitionsToTxn, which producers of version 2 do not send."""
        answer = self.client.ask(
            AddPartitionsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=[AddPartitionsToTxnTopic(name=topic, partitions=partitions)],
            ),
            AddPartitionsToTxnResponse,
            3,
        )
        return ErrorCode(answer.results_by_topic[0].results_by_partition[0].partition_error_code)

    def write(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        version: int | None = None,
        key: bytes | None = None,
        codec: Codec = Codec.NONE,
        skipped: int = 0,
        timestamp_ms: int = FIRST_TIMESTAMP_MS,
    ) -> ErrorCode:
        """Produces one batch, whose partition must be in the transaction in version 1.

        `skipped` is by how much its sequence is too high.
        """
        batch = self.batch(
            topic,
            *values,
            partition=partition,
            key=key,
            codec=codec,
            skip=skipped,
            timestamp_ms=timestamp_ms,
        )
        (written,) = self._produce(topic, [batch], version)
        code = ErrorCode(written.error_code)
        if code is ErrorCode.NONE:
            self.base_offset = written.base_offset
            self._sequences[topic, partition] += len(values)
        return code

    def write_together(
        self, topic: str, value: bytes, *, partitions: Sequence[int]
    ) -> list[ErrorCode]:
        """Produces a batch of one record to each partition, in one request."""
        batches = [self.batch(topic, value, partition=partition) for partition in partitions]
        answers = self._produce(topic, batches)
        for answer in answers:
            self._sequences[topic, answer.index] += answer.error_code == 0
        return [ErrorCode(answer.error_code) for answer in answers]

    def batch(
        self,
        topic: str,
        *values: bytes,
        partition: int,
        key: bytes | None = None,
        codec: Codec = Codec.NONE,
        skip: int = 0,
        timestamp_ms: int = FIRST_TIMESTAMP_MS,
    ) -> ProducePartition:
        """Returns the next batch of a partition, for `produce`."""
        encoded = encode_batch(
            [
                Record(offset=at, timestamp_ms=timestamp_ms, key=key, value=value)
                for at, value in enumerate(values)
            ],
            codec=codec,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences[topic, partition] + skip,
            transactional=True,
        )
        return ProducePartition(index=partition, records=memoryview(encoded))

    def produce(
        self,
        topic: str,
        batches: Sequence[ProducePartition],
        *,
        transactional_id: str | None,
    ) -> list[ErrorCode]:
        """Produces these batches in one request, which may name another id or none."""
        request = self._request(topic, batches, transactional_id)
        answers = self.client.ask(request, ProduceResponse, self._version).topics[0].partitions
        return [ErrorCode(one.error_code) for one in answers]

    @property
    def _version(self) -> int:
        return 12 if self.is_of_version_2 else 11

    def _request(
        self, topic: str, batches: Sequence[ProducePartition], transactional_id: str | None
    ) -> ProduceRequest:
        return ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=5000,
            topics=[ProduceTopic(name=topic, partitions=batches)],
        )

    def _produce(
        self, topic: str, batches: Sequence[ProducePartition], version: int | None = None
    ) -> Sequence[ProduceResponsePartition]:
        request = self._request(topic, batches, self.transactional_id)
        answer = self.client.ask(request, ProduceResponse, version or self._version)
        return answer.topics[0].partitions

    def send(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        key: bytes | None = None,
        codec: Codec = Codec.NONE,
    ) -> None:
        """Produces within the transaction, as a client of its version."""
        code = self.try_send(topic, *values, partition=partition, key=key, codec=codec)
        assert code is ErrorCode.NONE, code

    def try_send(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        key: bytes | None = None,
        codec: Codec = Codec.NONE,
    ) -> ErrorCode:
        """The same, which may be refused."""
        if not self.is_of_version_2:
            added = self.add(topic, partition)
            if added is not ErrorCode.NONE:
                return added
        return self.write(topic, *values, partition=partition, key=key, codec=codec)

    def send_offset(
        self,
        group_id: str,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        member_id: str = "",
        generation: int = -1,
        metadata: str | None = None,
        topic_id: uuid.UUID | None = None,
    ) -> ErrorCode:
        """Commits an offset within the transaction, for a member if one is named.

        With `topic_id` in version 6, which names topics by id.
        """
        if not self.is_of_version_2:
            added = self.client.ask(
                AddOffsetsToTxnRequest(
                    transactional_id=self.transactional_id,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    group_id=group_id,
                ),
                AddOffsetsToTxnResponse,
                4,
            )
            if added.error_code:
                return ErrorCode(added.error_code)
        committed = self.client.ask(
            TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=group_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                topics=[
                    TxnOffsetCommitRequestTopic(
                        name=topic,
                        topic_id=topic_id or ZERO_TOPIC_ID,
                        partitions=[
                            TxnOffsetCommitRequestPartition(
                                partition_index=partition,
                                committed_offset=offset,
                                committed_metadata=metadata,
                            )
                        ],
                    )
                ],
            ),
            TxnOffsetCommitResponse,
            6 if topic_id else 5 if self.is_of_version_2 else 4,
        )
        return ErrorCode(committed.topics[0].partitions[0].error_code)

    def end_request(self, *, is_commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )

    def end(self, *, is_commit: bool) -> ErrorCode:
        answer = self.client.ask(
            self.end_request(is_commit=is_commit),
            EndTxnResponse,
            5 if self.is_of_version_2 else 4,
        )
        if self.is_of_version_2 and not answer.error_code:
            self.become(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def commit(self) -> ErrorCode:
        return self.end(is_commit=True)

    def abort(self) -> ErrorCode:
        return self.end(is_commit=False)
