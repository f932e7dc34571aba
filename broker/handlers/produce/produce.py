"""Produce: appends each batch to its partition and answers with the assigned offsets.

     0   message format 0; answers without throttle time
     1   throttle time
     2   message format 1, answers with the append time
     3   first version with record batches v2, and with nothing else
     5   answers with the log start offset
     7   zstd allowed; below it a zstd batch gets UNSUPPORTED_COMPRESSION_TYPE
     8   record_errors and error_message
     9   flexible
    10   answers with the current leader, if another broker leads (KIP-951)
    13   topics by id

One batch per partition, appended in order. The records are a view of the receive buffer: checked,
stamped in place, written to the segment, never copied. acks=0 gets no answer, and an error closes
the connection: the client would not learn of it otherwise. acks=all waits for followers
(`delayed.py`), and is refused while fewer replicas are in sync than `min.insync.replicas`. With one
replica it is acks=1: no more can be in sync than there are (Kafka's Partition.effectiveMinIsr).

The times of all records are read, for the batch's max timestamp. Versions 0 to 2, which Apache
Kafka 4 advertises and refuses, are served as batches of v2. A worker thread prepares them, large
batches, those whose max timestamp is wrong, and those of topics that need more of their records
(`storage/local/log/preparation.py`); a coroutine answers, in request order. The first batches of a
connection are looked at more closely (`first_batch_checks.py`).

A client above `producer_byte_rate` is answered at once, with the time for which it is muted; with
acks=0 it is just muted.

An append that `flush.messages` wants on the device is answered after an fsync, shared by all
requests that wait for it, from a coroutine. So is a batch whose header has timestamps in the
future: a worker finds the records that cause it (KIP-467).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple, TypeAlias

from strandline.broker.authorization.authorizer import Access
from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.handlers.produce.confirmed_partitions import (
    Confirmed,
    code_for_all,
    joins,
    origin_of,
    transactional_batch,
)
from strandline.broker.handlers.produce.deferred_answers import (
    Later,
    PendingFlush,
    PendingTimestampCheck,
    complete,
    record_errors,
)
from strandline.broker.handlers.produce.delayed import (
    DelayedProduce,
    DelayedTimes,
    PendingReplication,
)
from strandline.broker.handlers.produce.elsewhere import Unconfirmed
from strandline.broker.handlers.produce.first_batch_checks import FirstBatchChecks
from strandline.broker.handlers.produce.rights import denied_topics, may_write_transaction
from strandline.broker.handlers.services.leader_endpoints import leader_endpoints
from strandline.broker.handlers.services.limits import refuse_partition_flood
from strandline.broker.handlers.services.services import Services
from strandline.broker.network.responses import (
    CloseConnectionError,
    DeferredAnswer,
    Parts,
    ThrottledParts,
)
from strandline.broker.protocol.codec.codec import encode
from strandline.broker.protocol.header import RequestHeader, frame_response
from strandline.broker.protocol.messages.produce import (
    ProduceCurrentLeader,
    ProduceNodeEndpoint,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)
from strandline.broker.protocol.produce import frame_appended
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.telemetry.requests import count_errors
from strandline.storage.errors import (
    CorruptRecords,
    DiskError,
    MessageTooLarge,
    RecordListTooLarge,
    RecordsRejected,
    StorageError,
    UnsupportedCodec,
)
from strandline.storage.local.log.log import AppendInfo, AppendOrigin
from strandline.storage.local.log.preparation import needs_preparation, prepare, prepare_old
from strandline.storage.model import TopicPartition
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.batch import (
    ATTRIBUTES_FIELD,
    CODEC_MASK,
    CRC_START,
    HEADER_BYTES,
)
from strandline.storage.records.compression import Codec

log = logging.getLogger(__name__)

FIRST_VERSION_WITH_BATCHES = 3
FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_WITH_RECORD_ERRORS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 13
ACKS_ALL = -1
# How the frame of a Produce begins.
_ANOTHER_PRODUCE = ApiKey.PRODUCE.to_bytes(2, "big")

# Why nothing of a request is stored, by its code.
_REFUSED_WHOLE = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "a batch is part of a transaction, and the"
    " request names no transactional id",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the request has transactional batches of two producers",
}
_REFUSED_UNREAD = (CorruptRecords, MessageTooLarge, RecordListTooLarge)

Produced: TypeAlias = "Parts | DeferredAnswer | Awaitable[Parts | None] | None"


class Asked(NamedTuple):
    """The sender of a request, its size, and when its processing started."""

    header: RequestHeader
    size_bytes: int
    started_s: float
    # Set for new connections: their first batches are validated.
    new_peer: str
    # Of a request with several batches, the partitions that join a transaction together.
    together: Set[TopicPartition] = frozenset()
    # The listener that the client came by.
    listener: str = ""
    # Answers for topics that the client may not write to; the rest of the request has no others.
    denied: Sequence[ProduceResponseTopic] = ()
    acks: int = 1
    timeout_ms: int = 0
    # What a coordinator on another broker said; None while none was asked.
    confirmed: Mapping[TopicPartition, Confirmed] | None = None
    # Without an authorizer None.
    access: Access | None = None


class ProduceHandler:
    """The Produce handler; stateless except for its services."""

    def __init__(self, services: Services, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions
        self._metadata = services.metadata
        self._replicas = services.replicas
        self._clock = services.clock
        self._workers = services.records
        self._quotas = services.quotas
        self._pace = services.cold_pace
        self._traffic = services.traffic.apis[ApiKey.PRODUCE]
        self._now_s = services.clock.monotonic_s
        self._quiet_log = QuietLog(log, services.clock)
        self._first_batches = FirstBatchChecks(services.clock.monotonic_s)
        self._times = DelayedTimes()

    def handle(
        self,
        request: ProduceRequest,
        header: RequestHeader,
        size_bytes: int,
        started_s: float,
        peer: str,
        access: Access | None = None,
        listener: str = "",
    ) -> Produced:
        """Returns the framed answer, now or after an fsync; None for acks=0.

        `size_bytes` is that of the whole request, received at `started_s` from `peer`, whose rights
        are `access`: every right if there is no authorizer. `listener` is the one that it came by.
        """
        self._pace.saw_live(started_s)
        if not self._first_batches.is_new(peer):
            peer = ""
        asked = Asked(
            header,
            size_bytes,
            started_s,
            peer,
            listener=listener,
            acks=request.acks,
            timeout_ms=request.timeout_ms,
            access=access,
        )
        if access is not None:
            if not may_write_transaction(request, access):
                refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                return self._refuse_all(request, refused, asked, refused.message)
            denied = denied_topics(request.topics, access, self._metadata.topic_name)
            if denied:
                return self._without_denied(request, denied, asked)
        topics = request.topics
        if len(topics) == 1 and len(topics[0].partitions) == 1 and request.acks != 0:
            wanted = topics[0].partitions[0]
            if request.transactional_id is None and transactional_batch(wanted.records):
                refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                return self._refuse_all(request, refused, asked, _REFUSED_WHOLE[refused])
            return self._handle_one(request, topics[0], wanted, asked)
        return self._handle_many(request, asked)

    def _without_denied(
        self, request: ProduceRequest, denied: Sequence[ProduceTopic], asked: Asked
    ) -> Produced:
        refuse_partition_flood(topic.partitions for topic in request.topics)
        hidden = set(map(id, denied))
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        answers = [_refused_topic(topic, code, code.message) for topic in denied]
        return self._handle_many(
            request.replaced(topics=[one for one in request.topics if id(one) not in hidden]),
            asked._replace(denied=answers),
        )

    def _refuse_all(
        self, request: ProduceRequest, code: ErrorCode, asked: Asked, message: str
    ) -> Produced:
        """Returns the answer to a request of which nothing is stored."""
        topics = [_refused_topic(topic, code, message) for topic in request.topics]
        return self._answer(request, topics, [], asked)

    def _leader(self, topic: ProduceTopic, index: int, version: int) -> Partition | LeaderRefusal:
        by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        return self._replicas.leader(topic.topic_id if by_id else topic.name, index)

    def _refused(
        self,
        request: ProduceRequest,
        partition: Partition,
        wanted: ProducePartition,
        asked: Asked,  # RecordedProduce looks who it is
    ) -> ProduceResponsePartition | None:
        """Returns the answer to a batch that is refused before its records are read."""
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

    def _throttle_ms(self, asked: Asked, *, acks: int) -> int:
        """Returns the client's throttle time; with acks=0 its request time is free (Kafka)."""
        if not self._quotas.is_active:
            return 0
        user, client_id = asked.header.user, asked.header.client_id
        by_bytes = self._quotas.produced(user, client_id, asked.size_bytes)
        if acks == 0:
            return by_bytes
        busy_s = self._now_s() - asked.started_s
        return max(by_bytes, self._quotas.requested(user, client_id, busy_s))

    def _handle_one(
        self, request: ProduceRequest, topic: ProduceTopic, wanted: ProducePartition, asked: Asked
    ) -> Produced:
        """Handles the usual request without building the answer's objects."""
        header = asked.header
        version = header.api_version
        partition = self._leader(topic, wanted.index, version)
        if isinstance(partition, LeaderRefusal):
            refused = _refused_answer(wanted.index, partition)
            return self._answer(request, [_topic_answer(topic, [refused])], [], asked)
        if request.transactional_id is not None and asked.confirmed is None:
            unconfirmed = self._unconfirmed(request, [(wanted.records, partition)])
            if unconfirmed is not None:
                handle = partial(self._handle_one, request, topic, wanted)
                return self._handle_confirmed(handle, unconfirmed, asked)
        if _must_prepare(partition, wanted, version):
            return self._answer_after_preparation(request, asked)
        outcome = self._append(request, partition, wanted, asked)
        if (
            isinstance(outcome, AppendInfo)
            and not partition.must_flush
            and (partition.leading is None or request.acks != ACKS_ALL)
        ):
            throttle_ms = self._throttle_ms(asked, acks=request.acks)
            framed = frame_appended(
                version,
                header.correlation_id,
                topic,
                wanted.index,
                outcome.base_offset,
                outcome.log_append_time_ms,
                partition.log.log_start_offset,
                throttle_ms,
            )
            if framed is not None:
                return ThrottledParts([framed], throttle_ms) if throttle_ms else [framed]
            # A version without a ready-made frame: the bytes are counted, the answer is built.
            answered = _topic_answer(topic, [_appended(wanted.index, outcome, partition)])
            response = ProduceResponse(topics=[answered], throttle_time_ms=throttle_ms)
            return self._framed(response, header)
        later: list[Later] = []
        answers: list[ProduceResponsePartition] = []
        self._add_answer(outcome, partition, wanted, asked, answers, later)
        return self._answer(request, [_topic_answer(topic, answers)], later, asked)

    def _handle_many(self, request: ProduceRequest, asked: Asked) -> Produced:
        refuse_partition_flood(topic.partitions for topic in request.topics)
        version = asked.header.api_version
        found = [
            [(wanted, self._leader(topic, wanted.index, version)) for wanted in topic.partitions]
            for topic in request.topics
        ]
        batches = [
            (batch, wanted.records, partition)
            for of_topic in found
            for wanted, partition in of_topic
            if wanted.records and (batch := transactional_batch(wanted.records))
        ]
        code = code_for_all(request.transactional_id, (batch for batch, _, _ in batches))
        if code is not None:
            return self._refuse_all(request, code, asked, _REFUSED_WHOLE[code])
        if batches:
            asked = asked._replace(
                together={
                    partition.topic_partition
                    for batch, records, partition in batches
                    if isinstance(partition, Partition) and joins(batch, records, partition)
                }
            )
            if asked.confirmed is None:
                asked_about = ((records, partition) for _, records, partition in batches)
                unconfirmed = self._unconfirmed(request, asked_about)
                if unconfirmed is not None:
                    handle = partial(self._handle_many, request)
                    return self._handle_confirmed(handle, unconfirmed, asked)
        if any(
            isinstance(partition, Partition) and _must_prepare(partition, wanted, version)
            for of_topic in found
            for wanted, partition in of_topic
        ):
            return self._answer_after_preparation(request, asked)
        topics: list[ProduceResponseTopic] = []
        later: list[Later] = []
        for topic, partitions in zip(request.topics, found, strict=True):
            answers: list[ProduceResponsePartition] = []
            for wanted, partition in partitions:
                if isinstance(partition, LeaderRefusal):
                    answers.append(_refused_answer(wanted.index, partition))
                else:
                    outcome = self._append(request, partition, wanted, asked)
                    self._add_answer(outcome, partition, wanted, asked, answers, later)
            topics.append(_topic_answer(topic, answers))
        return self._answer(request, topics, later, asked)

    def _unconfirmed(
        self,
        request: ProduceRequest,
        batches: Iterable[tuple[memoryview | None, Partition | LeaderRefusal]],
    ) -> Unconfirmed | None:
        assert request.transactional_id is not None
        return Unconfirmed.of(request.transactional_id, batches, self._transactions)

    async def _handle_confirmed(
        self, handle: Callable[[Asked], Produced], unconfirmed: Unconfirmed, asked: Asked
    ) -> Parts | None:
        """Handles a request once the coordinator on another broker has answered.

        Its records stay valid meanwhile, as in `_answer_after_preparation`.
        """
        confirmed = await unconfirmed.ask(self._transactions, asked.header.api_version)
        # The other broker's time is not this loop's.
        return await _awaited(handle(asked._replace(confirmed=confirmed, started_s=self._now_s())))

    def _add_answer(
        self,
        outcome: AppendInfo | ProduceResponsePartition,
        partition: Partition,
        wanted: ProducePartition,
        asked: Asked,
        answers: list[ProduceResponsePartition],
        later: list[Later],
    ) -> None:
        """Adds the answer of one partition, and the work that it may have to wait for."""
        if isinstance(outcome, ProduceResponsePartition):
            if (
                outcome.error_code == ErrorCode.INVALID_TIMESTAMP
                and not outcome.record_errors
                and asked.header.api_version >= FIRST_VERSION_WITH_RECORD_ERRORS
            ):
                assert wanted.records is not None
                later.append(
                    PendingTimestampCheck(partition, answers, len(answers), wanted.records)
                )
            answers.append(outcome)
            return
        if partition.must_flush:
            later.append(PendingFlush(partition, answers, len(answers)))
        leading = partition.leading
        if leading is not None and asked.acks == ACKS_ALL:
            end_offset = outcome.last_offset + 1
            later.append(PendingReplication(partition, answers, len(answers), leading, end_offset))
        answers.append(_appended(wanted.index, outcome, partition))

    def _answer(
        self,
        request: ProduceRequest,
        topics: list[ProduceResponseTopic],
        later: list[Later],
        asked: Asked,
    ) -> Parts | DeferredAnswer | Awaitable[Parts] | None:
        """Frames the answer, once `later` is done. Raises CloseConnectionError for acks=0."""
        topics += asked.denied
        if request.acks == 0:
            _close_on_error(topics)
        throttle_ms = self._throttle_ms(asked, acks=request.acks)
        if request.acks == 0:
            return ThrottledParts((), throttle_ms) if throttle_ms else None
        leaders = {
            one.current_leader.leader_id
            for topic in topics
            for one in topic.partitions
            if one.current_leader is not None
        }
        endpoints = leader_endpoints(self._metadata.image, leaders, asked.listener)
        response = ProduceResponse(
            topics=topics,
            throttle_time_ms=throttle_ms,
            node_endpoints=[ProduceNodeEndpoint(**one._asdict()) for one in endpoints],
        )
        if later:
            return self._answer_later(response, later, asked)
        return self._framed(response, asked.header)

    def _framed(self, response: ProduceResponse, header: RequestHeader) -> Parts:
        count_errors(response, self._traffic)
        body = encode(response, header.api_version)
        parts = frame_response(ApiKey.PRODUCE, header.api_version, header.correlation_id, body)
        if response.throttle_time_ms:
            return ThrottledParts(parts, response.throttle_time_ms)
        return parts

    def _append(
        self,
        request: ProduceRequest,
        partition: Partition,
        wanted: ProducePartition,
        asked: Asked,
    ) -> AppendInfo | ProduceResponsePartition:
        """Returns where the batch was appended, or the answer that refuses it."""
        refused = self._refused(request, partition, wanted, asked)
        if refused is not None:
            return refused
        assert wanted.records is not None
        try:
            self._check(wanted.records, asked)
            if request.transactional_id is None:
                return partition.append(wanted.records)
            origin = self._origin_of(request, partition, asked, wanted.records)
            return partition.append(wanted.records, origin=origin)
        except (RecordsRejected, StorageError) as error:
            return self._failed(wanted.index, partition, error)

    def _check(self, records: memoryview, asked: Asked) -> None:
        """Raises RecordsRejected for zstd of an old client, or bad first batches of a new one."""
        _check_codec(records, asked.header.api_version)
        if asked.new_peer:
            self._first_batches.check(asked.new_peer, records)

    def _origin_of(
        self,
        request: ProduceRequest,
        partition: Partition,
        asked: Asked,
        records: memoryview,
    ) -> AppendOrigin:
        """Raises RecordsRejected for a batch that is no part of its producer's transaction."""
        return origin_of(
            records,
            partition,
            request.transactional_id,
            self._transactions,
            asked.header.api_version,
            asked.together,
            asked.confirmed or {},
        )

    # --- through a worker thread -------------------------------------------------------------

    async def _answer_after_preparation(
        self, request: ProduceRequest, asked: Asked
    ) -> Parts | None:
        """Handles the whole request if at least one of its batches must be prepared.

        The records are a view of the connection's buffer, which stays valid: the connection takes
        no further request before this one is answered.
        """
        version = asked.header.api_version
        topics: list[ProduceResponseTopic] = []
        later: list[Later] = []
        for topic in request.topics:
            found = [
                (wanted, self._leader(topic, wanted.index, version)) for wanted in topic.partitions
            ]
            outcomes = iter(
                await asyncio.gather(
                    *(
                        self._append_prepared(request, partition, wanted, asked)
                        for wanted, partition in found
                        if isinstance(partition, Partition)
                    )
                )
            )
            answers: list[ProduceResponsePartition] = []
            for wanted, partition in found:
                if isinstance(partition, LeaderRefusal):
                    answers.append(_refused_answer(wanted.index, partition))
                else:
                    outcome = next(outcomes)
                    self._add_answer(outcome, partition, wanted, asked, answers, later)
            topics.append(_topic_answer(topic, answers))
        # The workers' time is not the loop's: only the following counts.
        answer = self._answer(request, topics, later, asked._replace(started_s=self._now_s()))
        return await _awaited(answer)

    async def _append_prepared(
        self,
        request: ProduceRequest,
        partition: Partition,
        wanted: ProducePartition,
        asked: Asked,
    ) -> AppendInfo | ProduceResponsePartition:
        version = asked.header.api_version
        refused = self._refused(request, partition, wanted, asked)
        if refused is not None:
            return refused
        assert wanted.records is not None
        prepares = prepare if version >= FIRST_VERSION_WITH_BATCHES else prepare_old
        try:
            self._check(wanted.records, asked)
            return await partition.append_prepared(
                asyncio.get_running_loop().run_in_executor(
                    self._workers,
                    partial(
                        prepares,
                        wanted.records,
                        partition.log.config,
                        now_ms=self._clock.now_ms(),
                    ),
                ),
                partial(self._origin_of, request, partition, asked),
            )
        except (RecordsRejected, StorageError) as error:
            return self._failed(wanted.index, partition, error)

    def _failed(
        self, index: int, partition: Partition, error: RecordsRejected | StorageError
    ) -> ProduceResponsePartition:
        """Returns the answer to an append that raised `error`."""
        log_start_offset = -1
        if not isinstance(error, _REFUSED_UNREAD):
            partition.traffic.failed_produce += 1
        if isinstance(error, RecordsRejected):
            # As ReplicaManager.appendToLocalLog: logs refusals that depend on the content.
            if not isinstance(error, _REFUSED_UNREAD):
                log_start_offset = partition.log.log_start_offset
        else:
            where = partition.topic_partition
            self._quiet_log.say(
                # The log of the partition reports disk errors itself.
                logging.DEBUG if isinstance(error, DiskError) else logging.WARNING,
                "append failed",
                where,
                {"partition": str(where), "error": str(error)},
            )
        return ProduceResponsePartition(
            index=index,
            error_code=error.kafka_code,
            log_start_offset=log_start_offset,
            error_message=str(error),
            record_errors=record_errors(error) if isinstance(error, RecordsRejected) else (),
        )

    def _answer_later(
        self, response: ProduceResponse, later: Sequence[Later], asked: Asked
    ) -> DeferredAnswer | Awaitable[Parts]:
        waits = [one for one in later if isinstance(one, PendingReplication)]
        others = [one for one in later if not isinstance(one, PendingReplication)]
        replicated = self._replicated(response, waits, asked) if waits else None
        if replicated is not None and not others:
            return replicated
        return self._answer_after(response, others, replicated, asked)

    def _replicated(
        self, response: ProduceResponse, waits: Sequence[PendingReplication], asked: Asked
    ) -> DeferredAnswer:
        """Returns the answer that comes when followers have what was appended."""
        # Not of a client that is to be muted after this answer.
        goes_on_with = b"" if response.throttle_time_ms else _ANOTHER_PRODUCE
        deferred = DeferredAnswer(goes_on_with=goes_on_with)

        def finish() -> None:
            began_s = self._now_s()
            try:
                parts = self._framed(response, asked.header)
            except Exception as error:
                # No caller sees the exception, and the client would wait for ever for its answer.
                deferred.fail(error)
            else:
                deferred.complete(parts, self._now_s() - began_s)

        delayed = DelayedProduce(waits, self._times, asked.timeout_ms, finish)
        deferred.cancel_hook = delayed.cancel
        return deferred

    async def _answer_after(
        self,
        response: ProduceResponse,
        others: Sequence[PendingFlush | PendingTimestampCheck],
        replicated: DeferredAnswer | None,
        asked: Asked,
    ) -> Parts:
        now_ms = self._clock.now_ms()
        await complete(others, self._workers, now_ms=now_ms, quiet_log=self._quiet_log)
        if replicated is not None and not replicated.done:
            await _awaited(replicated)
        return self._framed(response, asked.header)


async def _awaited(answer: Produced) -> Parts | None:
    """Waits for an answer, inside a coroutine that has had to wait before."""
    if isinstance(answer, DeferredAnswer):
        coming: asyncio.Future[Parts] = asyncio.get_running_loop().create_future()
        answer.attach(coming.set_result, coming.set_exception)
        try:
            return await coming
        except asyncio.CancelledError:
            answer.cancel()
            raise
    return await answer if isinstance(answer, Awaitable) else answer


def _must_prepare(partition: Partition, wanted: ProducePartition, version: int) -> bool:
    """Returns whether the batch cannot be appended as received."""
    if wanted.records is None:
        return False
    if version < FIRST_VERSION_WITH_BATCHES:
        return True
    return needs_preparation(wanted.records, partition.log.local.config)


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


def _refused_topic(topic: ProduceTopic, code: ErrorCode, message: str) -> ProduceResponseTopic:
    return _topic_answer(
        topic,
        [
            ProduceResponsePartition(index=wanted.index, error_code=code, error_message=message)
            for wanted in topic.partitions
        ],
    )


def _refused_answer(index: int, refusal: LeaderRefusal) -> ProduceResponsePartition:
    code, leader_id, leader_epoch = refusal
    leader = ProduceCurrentLeader(leader_id=leader_id, leader_epoch=leader_epoch)
    return ProduceResponsePartition(
        index=index, error_code=code, current_leader=None if leader_id < 0 else leader
    )


def _appended(index: int, info: AppendInfo, partition: Partition) -> ProduceResponsePartition:
    return ProduceResponsePartition(
        index=index,
        base_offset=info.base_offset,
        log_append_time_ms=info.log_append_time_ms,
        log_start_offset=partition.log.log_start_offset,
    )


def _refusal_code(request: ProduceRequest, partition: Partition) -> ErrorCode | None:
    if request.acks not in (0, 1, ACKS_ALL):
        return ErrorCode.INVALID_REQUIRED_ACKS
    if partition.is_internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    leading = partition.leading
    if leading is not None and request.acks == ACKS_ALL and leading.is_under_min_in_sync:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return None


def _check_codec(records: memoryview, version: int) -> None:
    """Raises UnsupportedCodec for zstd of a client that could not read it back (KIP-110)."""
    if (
        FIRST_VERSION_WITH_BATCHES <= version < FIRST_VERSION_WITH_ZSTD
        and len(records) >= HEADER_BYTES
    ):
        (attributes,) = ATTRIBUTES_FIELD.unpack_from(records, CRC_START)
        if attributes & CODEC_MASK == Codec.ZSTD:
            raise UnsupportedCodec("zstd needs Produce version 7 or newer")
