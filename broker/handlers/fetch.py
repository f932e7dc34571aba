"""Fetch: records of many partitions from both tiers, with sessions and long polls.

     0   message format 0    1   throttle time    2   message format 1    3   a limit for the answer
     4   record batches; isolation level, last stable offset, aborted transactions
     5   log start offset
     7   incremental sessions (KIP-227)
     9   current leader epoch (KIP-320)
    10   zstd is understood by the client
    11   rack
    12   flexible, last fetched epoch, diverging epoch
    13   topics by id
    15   replica state instead of replica id; 16 node endpoints; 17 directory id; 18 high watermark

Where the answer comes from:

    every wanted offset is local, enough bytes are there,  at once, file ranges sent by sendfile
    or a partition has more than the answer may hold
    too few bytes                                          parked until they come (purgatory.py)
    some offset lies below the local log                   a coroutine reads those partitions from
                                                           the object store, in parallel, for at
                                                           most remote.fetch.max.wait.ms; one that
                                                           is late is answered empty, and its
                                                           download goes on for the next fetch

Versions 0 to 3, which Apache Kafka 4 no longer has, are answered with old messages that a worker
thread makes of the batches. They are looked at every OLD_FETCH_LOOK_S instead of being parked.

A client above `consumer_byte_rate` gets an empty answer at once and is not listened to for the time
that it names; what it was about to get does not count, since it will ask for it again (KIP-219).
Its answers never hold more than its quota allows for the time that the quota is taken over.

`max_bytes` counts both tiers. The first partition with records gets at least one batch however
small the limits are, so that a large batch stops nobody (KIP-74).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial

from strandline.broker.answers import Answer, Deferred, Parts, ThrottledParts
from strandline.broker.cluster.partition import Partition
from strandline.broker.cluster.traffic import TopicTraffic
from strandline.broker.handlers.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    PartitionKey,
    SessionRefused,
    WantedPartition,
)
from strandline.broker.handlers.limits import FETCH_PARTITIONS_MAX, refuse_flood
from strandline.broker.handlers.purgatory import ParkedFetch
from strandline.broker.handlers.services import Services
from strandline.broker.protocol.api import ApiKey
from strandline.broker.protocol.errors import ErrorCode
from strandline.broker.protocol.fetch import encode_fetch_response
from strandline.broker.protocol.header import RequestHeader, frame_response
from strandline.broker.protocol.messages.fetch import (
    FetchAbortedTransaction,
    FetchDivergingEpoch,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from strandline.broker.protocol.schema import Part
from strandline.broker.quotas.table import ANONYMOUS
from strandline.storage.errors import RecordsRejected, StorageError, TierUnavailable
from strandline.storage.files import FileRange
from strandline.storage.model import Isolation, Offset, TopicPartition
from strandline.storage.records.down_conversion import down_convert
from strandline.storage.tiering.cold_read import RemoteRead
from strandline.storage.values import dataclass

log = logging.getLogger(__name__)

FIRST_VERSION_WITH_MAGIC_1 = 2
FIRST_VERSION_WITH_BATCHES = 4
FIRST_VERSION_WITH_TOPIC_IDS = 13
# Nobody with such a client counts milliseconds.
OLD_FETCH_LOOK_S = 0.1


@dataclass(slots=True)
class _Plan:
    """One fetch while it is served."""

    version: int
    correlation_id: int
    client_id: str
    # When it was taken up; later, when its waiting was over.
    started_s: float
    wanted: Sequence[WantedPartition]
    session: FetchSession | None
    incremental: bool
    isolation: Isolation
    bytes_max: int
    min_bytes: int
    wait_ms_max: int


@dataclass(slots=True)
class _Pass:
    """What one look at the partitions found."""

    answers: list[tuple[WantedPartition, FetchResponsePartition]] = field(default_factory=list)
    remote: list[tuple[int, Partition, int]] = field(default_factory=list)
    total_bytes: int = 0
    must_answer: bool = False


class FetchHandler:
    """Serves fetches; keeps nothing between them but the sessions."""

    def __init__(self, services: Services) -> None:
        self._replicas = services.replicas
        self._sessions = services.sessions
        self._bytes_max = services.config.fetch_max_bytes
        self._services = services
        self._loop = asyncio.get_running_loop()
        # Fetches that wait at present.
        self.parked_count = 0
        self._quotas = services.quotas
        self._requests = services.traffic.apis[ApiKey.FETCH]
        self._now_s = services.clock.monotonic_s
        self._workers = services.records
        # Partitions whose cold reads fail at present, with the kind of reason that was logged.
        self._cold_failures: dict[TopicPartition, str] = {}

    def handle(self, request: FetchRequest, header: RequestHeader, started_s: float) -> Answer:
        """A framed answer, now or later. `started_s` is when the request was taken up."""
        plan = self._plan(request, header, started_s)
        if isinstance(plan, SessionRefused):
            self._requests.failed(plan.error_code)
            response = FetchResponse(error_code=plan.error_code, topics=())
            return self._frame(header.api_version, header.correlation_id, response)
        if plan.version < FIRST_VERSION_WITH_BATCHES:
            return self._answer_with_old_messages(plan)
        found = self._look(plan)
        if found.remote:
            self._read_from_memory(plan, found)
            if found.remote:
                return self._answer_with_remote(plan, found)
            found.must_answer = True
        if (
            found.must_answer
            or found.total_bytes >= plan.min_bytes
            or plan.wait_ms_max <= 0
            or not plan.wanted
        ):
            return self._answer(plan, found)
        return self._park(plan, found)

    # --- sessions ----------------------------------------------------------------------------

    def _plan(
        self, request: FetchRequest, header: RequestHeader, started_s: float
    ) -> _Plan | SessionRefused:
        refuse_flood(
            sum(len(topic.partitions) or 1 for topic in request.topics)
            + sum(len(topic.partitions) or 1 for topic in request.forgotten_topics),
            FETCH_PARTITIONS_MAX,
        )
        version = header.api_version
        by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        wanted = [
            WantedPartition(
                None if by_id else topic.name,
                topic.topic_id,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
            )
            for topic in request.topics
            for partition in topic.partitions
        ]
        session: FetchSession | None = None
        incremental = False
        order: Sequence[WantedPartition] = wanted
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id:
                self._sessions.end(request.session_id)
            if epoch == INITIAL_EPOCH:
                session = self._sessions.begin(wanted, uses_topic_ids=by_id)
        else:
            resumed = self._sessions.resume(request.session_id, epoch, uses_topic_ids=by_id)
            if isinstance(resumed, SessionRefused):
                return resumed
            session, incremental = resumed, True
            forgotten: list[PartitionKey] = [
                (topic.topic_id if by_id else topic.name, partition)
                for topic in request.forgotten_topics
                for partition in topic.partitions
            ]
            self._sessions.update(session, wanted, forgotten)
            order = tuple(session.partitions.values())
        bytes_max = min(request.max_bytes, self._bytes_max)
        if self._quotas.is_active:
            bytes_max = int(
                min(bytes_max, self._quotas.fetch_bytes_max(ANONYMOUS, header.client_id))
            )
        return _Plan(
            version=version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            started_s=started_s,
            wanted=order,
            session=session,
            incremental=incremental,
            isolation=Isolation.READ_COMMITTED
            if request.isolation_level == Isolation.READ_COMMITTED
            else Isolation.READ_UNCOMMITTED,
            bytes_max=bytes_max,
            # More than an answer may hold would never come.
            min_bytes=min(request.min_bytes, bytes_max),
            wait_ms_max=request.max_wait_ms,
        )

    # --- reading -----------------------------------------------------------------------------

    def _look(self, plan: _Plan) -> _Pass:
        """One pass over the partitions: local reads at once, remote ones noted."""
        found = _Pass()
        for wanted in plan.wanted:
            partition = self._find(wanted)
            if partition is None:
                answer = _error(wanted.partition, self._missing(wanted))
                found.must_answer = True
            else:
                answer = self._look_at(plan, wanted, partition, found)
            found.answers.append((wanted, answer))
        return found

    def _look_at(
        self, plan: _Plan, wanted: WantedPartition, partition: Partition, found: _Pass
    ) -> FetchResponsePartition:
        tiers = partition.log
        partition.traffic.fetch_requests += 1
        try:
            partition.check_leader_epoch(wanted.current_leader_epoch)
            if wanted.last_fetched_epoch >= 0:
                diverging = self._diverging(wanted, partition)
                if diverging is not None:
                    found.must_answer = True
                    return diverging
            budget = plan.bytes_max - found.total_bytes
            read = tiers.read(
                wanted.fetch_offset,
                bytes_max=min(wanted.partition_bytes_max, max(budget, 0)),
                isolation=plan.isolation,
                at_least_one_batch=found.total_bytes == 0,
            )
        except RecordsRejected as error:
            found.must_answer = True
            partition.traffic.failed_fetch += 1
            return _error(wanted.partition, error.kafka_code, partition)
        except StorageError as error:
            log.warning(
                "read failed",
                extra={
                    "fields": {"partition": str(partition.topic_partition), "error": str(error)}
                },
            )
            found.must_answer = True
            partition.traffic.failed_fetch += 1
            return _error(wanted.partition, error.kafka_code, partition)
        if read is None:
            partition.traffic.remote_fetches += 1
            found.remote.append((len(found.answers), partition, wanted.fetch_offset))
            return _records(wanted.partition, partition, (), 0, plan.isolation)
        if read.next_offset < _readable_end(partition, plan.isolation):
            # Cut by a limit or by the end of a segment: what is there already is not waited for.
            found.must_answer = True
        if read.range is None:
            return _records(wanted.partition, partition, (), 0, plan.isolation)
        found.total_bytes += read.range.length
        answer = _records(
            wanted.partition, partition, (read.range,), read.range.length, plan.isolation
        )
        if plan.isolation is Isolation.READ_COMMITTED:
            aborted = tiers.local.aborted_transactions(wanted.fetch_offset, read.next_offset)
            answer = _with_aborted(
                answer,
                [
                    FetchAbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset)
                    for a in aborted
                ],
            )
        return answer

    def _find(self, wanted: WantedPartition) -> Partition | None:
        if wanted.topic is not None:
            return self._replicas.partition(wanted.topic, wanted.partition)
        return self._replicas.partition_by_id(wanted.topic_id, wanted.partition)

    def _missing(self, wanted: WantedPartition) -> ErrorCode:
        """Why `_find` finds nothing."""
        if wanted.topic is not None:
            if self._replicas.is_offline(wanted.topic, wanted.partition):
                return ErrorCode.KAFKA_STORAGE_ERROR
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._replicas.is_offline_by_id(wanted.topic_id, wanted.partition):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.UNKNOWN_TOPIC_ID

    def _diverging(
        self, wanted: WantedPartition, partition: Partition
    ) -> FetchResponsePartition | None:
        """The answer that sends a client back to where its log and ours part (KIP-595)."""
        end = partition.log.offset_for_epoch(wanted.last_fetched_epoch)
        if end.epoch < 0:
            return None  # older than what is known here: nothing to compare with
        if end.epoch < wanted.last_fetched_epoch or end.start_offset < wanted.fetch_offset:
            return FetchResponsePartition(
                index=wanted.partition,
                high_watermark=partition.high_watermark,
                last_stable_offset=partition.last_stable_offset,
                log_start_offset=partition.log.log_start_offset,
                diverging_epoch=FetchDivergingEpoch(epoch=end.epoch, end_offset=end.start_offset),
            )
        return None

    # --- answering ---------------------------------------------------------------------------

    def _park(self, plan: _Plan, found: _Pass) -> Deferred:
        partitions = [p for p in (self._find(wanted) for wanted in plan.wanted) if p is not None]
        deferred = Deferred()

        def finish() -> None:
            plan.started_s = began_s = self._now_s()
            parts = self._answer(plan, self._look(plan))
            self.parked_count -= 1
            deferred.complete(parts, self._now_s() - began_s)

        def cancel() -> None:
            self.parked_count -= 1
            parked.cancel()

        parked = ParkedFetch(
            self._loop,
            partitions,
            missing_bytes=plan.min_bytes - found.total_bytes,
            wait_ms_max=plan.wait_ms_max,
            finish=finish,
        )
        self.parked_count += 1
        deferred.cancel_hook = cancel
        return deferred

    def _read_from_memory(self, plan: _Plan, found: _Pass) -> None:
        """Answers the cold partitions whose records were read ahead; the others stay noted."""
        share = self._share(plan, found)
        missing: list[tuple[int, Partition, int]] = []
        for remote in found.remote:
            position, partition, offset = remote
            wanted, _ = found.answers[position]
            read = partition.log.read_remote_from_memory(
                offset, bytes_max=min(wanted.partition_bytes_max, share), isolation=plan.isolation
            )
            if read is None:
                missing.append(remote)
            else:
                self._accept_remote(plan, found, position, partition, read)
        found.remote = missing

    def _share(self, plan: _Plan, found: _Pass) -> int:
        """Bytes for each cold partition."""
        return max((plan.bytes_max - found.total_bytes) // len(found.remote), 1)

    async def _answer_with_remote(self, plan: _Plan, found: _Pass) -> Parts:
        await self._read_all_remote(plan, found)
        plan.started_s = self._now_s()
        return self._answer(plan, found)

    async def _read_all_remote(self, plan: _Plan, found: _Pass) -> None:
        """Reads the cold partitions in parallel, within the byte budget that is left."""
        share = self._share(plan, found)
        await asyncio.gather(
            *(
                self._read_remote(plan, found, position, partition, share)
                for position, partition, _ in found.remote
            )
        )

    async def _read_remote(
        self, plan: _Plan, found: _Pass, position: int, partition: Partition, bytes_max: int
    ) -> None:
        wanted, _ = found.answers[position]
        try:
            async with asyncio.timeout(self._services.config.remote_fetch_max_wait_ms / 1000):
                read = await partition.log.read_remote(
                    wanted.fetch_offset,
                    bytes_max=min(wanted.partition_bytes_max, bytes_max),
                    isolation=plan.isolation,
                )
        except TimeoutError:
            return  # answered empty; the download goes on
        except RecordsRejected as error:
            answer = _error(wanted.partition, error.kafka_code, partition)
        except StorageError as error:
            partition.traffic.remote_fetch_errors += 1
            self._note_cold_failure(partition, wanted.fetch_offset, error)
            if isinstance(error, TierUnavailable):
                # Empty, and not before its time: an error now would only make the client spin.
                await asyncio.sleep(
                    min(
                        plan.wait_ms_max / 1000,
                        self._services.config.remote_fetch_max_wait_ms / 1000,
                    )
                )
                return
            answer = _error(wanted.partition, error.kafka_code, partition)
        else:
            if not read.buffers and read.next_offset > wanted.fetch_offset:
                # Compaction left nothing of the archive behind the offset: the rest is local.
                behind = replace(wanted, fetch_offset=read.next_offset)
                answer = self._look_at(plan, behind, partition, _Pass())
                found.total_bytes += answer.records_bytes
            else:
                self._accept_remote(plan, found, position, partition, read)
                return
        found.answers[position] = (wanted, answer)

    def _accept_remote(
        self, plan: _Plan, found: _Pass, position: int, partition: Partition, read: RemoteRead
    ) -> None:
        wanted, _ = found.answers[position]
        self._cold_failures.pop(partition.topic_partition, None)
        found.total_bytes += read.size_bytes
        partition.traffic.remote_bytes_out += read.size_bytes
        answer = _records(
            wanted.partition, partition, read.buffers, read.size_bytes, plan.isolation
        )
        if read.aborted:
            answer = _with_aborted(
                answer,
                [
                    FetchAbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset)
                    for a in read.aborted
                ],
            )
        found.answers[position] = (wanted, answer)

    async def _answer_with_old_messages(self, plan: _Plan) -> Parts:
        deadline_s = self._loop.time() + max(plan.wait_ms_max, 0) / 1000
        while True:
            found = self._look(plan)
            enough = found.must_answer or found.total_bytes >= plan.min_bytes or found.remote
            if enough or not plan.wanted or self._loop.time() >= deadline_s:
                break
            await asyncio.sleep(min(OLD_FETCH_LOOK_S, deadline_s - self._loop.time()))
        if found.remote:
            await self._read_all_remote(plan, found)
        plan.started_s = self._now_s()
        magic = 1 if plan.version >= FIRST_VERSION_WITH_MAGIC_1 else 0
        for position, (wanted, answer) in enumerate(found.answers):
            if not answer.records_bytes:
                continue
            convert = partial(_old_messages, answer, magic, wanted.fetch_offset)
            try:
                answer = await self._loop.run_in_executor(self._workers, convert)  # noqa: PLW2901
            except (RecordsRejected, StorageError) as error:
                answer = _error(wanted.partition, error.kafka_code)  # noqa: PLW2901
            found.answers[position] = (wanted, answer)
        return self._answer(plan, found)

    def _note_cold_failure(self, partition: Partition, offset: Offset, error: StorageError) -> None:
        """Says why once per kind of reason: consumers ask again several times a second."""
        kind = type(error).__name__
        topic_partition = partition.topic_partition
        is_known = self._cold_failures.get(topic_partition) == kind
        self._cold_failures[topic_partition] = kind
        log.log(
            logging.DEBUG if is_known else logging.WARNING,
            "cold read failed",
            extra={
                "fields": {
                    "partition": str(topic_partition),
                    "offset": offset,
                    "error": str(error),
                }
            },
        )

    def _throttle_ms(self, plan: _Plan, found: _Pass) -> int:
        """How long the client is to be left alone; then the answer does not count."""
        busy_s = self._now_s() - plan.started_s
        by_time = self._quotas.requested(ANONYMOUS, plan.client_id, busy_s)
        by_bytes = self._quotas.fetched(ANONYMOUS, plan.client_id, found.total_bytes)
        if by_time or by_bytes:
            self._quotas.unfetched(ANONYMOUS, plan.client_id, found.total_bytes)
        return max(by_time, by_bytes)

    def _answer_throttled(self, plan: _Plan, throttle_ms: int) -> Parts:
        """Nothing, and how long there will be nothing."""
        session_id = 0
        if plan.session is not None:
            if plan.incremental:
                session_id = plan.session.session_id
            else:
                # Clients take no session from an answer without the partitions they asked for.
                self._sessions.end(plan.session.session_id)
        response = FetchResponse(throttle_time_ms=throttle_ms, session_id=session_id, topics=())
        parts = self._frame(plan.version, plan.correlation_id, response)
        return ThrottledParts(parts, throttle_ms)

    def _answer(self, plan: _Plan, found: _Pass) -> Parts:
        if self._quotas.is_active:
            throttle_ms = self._throttle_ms(plan, found)
            if throttle_ms:
                return self._answer_throttled(plan, throttle_ms)
        topics: dict[str | uuid.UUID | None, list[FetchResponsePartition]] = {}
        served: list[PartitionKey] = []
        failed = False
        for wanted, answer in found.answers:
            if plan.incremental and not _is_news(wanted, answer):
                continue
            wanted.told_high_watermark = answer.high_watermark
            wanted.told_log_start_offset = answer.log_start_offset
            wanted.told_error = answer.error_code != 0
            if answer.error_code:
                self._requests.errors[answer.error_code] += 1
                failed = True
            key = wanted.key
            topics.setdefault(key[0], []).append(answer)
            if answer.records_bytes:
                served.append(key)
                traffic = self._traffic_of(wanted)
                if traffic is not None:
                    traffic.bytes_out += answer.records_bytes
        self._requests.failed_answers += failed
        if plan.session is not None and served:
            plan.session.rotate(served)
        response = FetchResponse(
            session_id=plan.session.session_id if plan.session is not None else 0,
            topics=[
                FetchResponseTopic(
                    name=key if isinstance(key, str) else "",
                    topic_id=None if isinstance(key, str) else key,
                    partitions=partitions,
                )
                for key, partitions in topics.items()
            ],
        )
        return self._frame(plan.version, plan.correlation_id, response)

    def _traffic_of(self, wanted: WantedPartition) -> TopicTraffic | None:
        partition = self._find(wanted)
        return None if partition is None else partition.traffic

    def _frame(self, version: int, correlation_id: int, response: FetchResponse) -> Parts:
        body = encode_fetch_response(version, response)
        return frame_response(ApiKey.FETCH, version, correlation_id, body)


def _readable_end(partition: Partition, isolation: Isolation) -> int:
    if isolation is Isolation.READ_COMMITTED:
        return partition.last_stable_offset
    return partition.high_watermark


def _is_news(wanted: WantedPartition, answer: FetchResponsePartition) -> bool:
    return bool(
        answer.records_bytes
        or answer.error_code
        or wanted.told_error
        or answer.diverging_epoch is not None
        or answer.high_watermark != wanted.told_high_watermark
        or answer.log_start_offset != wanted.told_log_start_offset
    )


def _error(
    index: int, error_code: int, partition: Partition | None = None
) -> FetchResponsePartition:
    return FetchResponsePartition(
        index=index,
        error_code=error_code,
        high_watermark=-1 if partition is None else partition.high_watermark,
        last_stable_offset=-1 if partition is None else partition.last_stable_offset,
        log_start_offset=-1 if partition is None else partition.log.log_start_offset,
    )


def _records(
    index: int,
    partition: Partition,
    records: Sequence[Part],
    records_bytes: int,
    isolation: Isolation,
) -> FetchResponsePartition:
    return FetchResponsePartition(
        index=index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        aborted_transactions=() if isolation is Isolation.READ_COMMITTED else None,
        records=records,
        records_bytes=records_bytes,
    )


def _old_messages(
    answer: FetchResponsePartition, magic: int, start_offset: int
) -> FetchResponsePartition:
    """The answer with its batches as messages of an old format. Blocks; see `down_convert`."""
    content = b"".join(
        part.read() if isinstance(part, FileRange) else bytes(part)  # type: ignore[arg-type]
        for part in answer.records
    )
    converted = down_convert(content, magic=magic, start_offset=start_offset)
    return FetchResponsePartition(
        index=answer.index,
        high_watermark=answer.high_watermark,
        records=(converted,),
        records_bytes=len(converted),
    )


def _with_aborted(
    answer: FetchResponsePartition, aborted: Sequence[FetchAbortedTransaction]
) -> FetchResponsePartition:
    return FetchResponsePartition(
        index=answer.index,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start_offset=answer.log_start_offset,
        aborted_transactions=aborted,
        records=answer.records,
        records_bytes=answer.records_bytes,
    )
