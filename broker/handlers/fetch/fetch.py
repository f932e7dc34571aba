"""Fetch: records of many partitions from both tiers, with sessions and long polls.

     0   message format 0    1   throttle time    2   message format 1    3   a limit for the answer
     4   record batches; isolation level, last stable offset, aborted transactions
     5   log start offset
     7   incremental sessions (KIP-227)
     9   current leader epoch (KIP-320)
    10   zstd is understood by the client
    11   rack, preferred read replica (KIP-392)
    12   flexible, last fetched epoch, diverging epoch
    13   topics by id
    15   replica state instead of replica id; 16 node endpoints; 17 directory id; 18 high watermark

Sources of the answer:

    every wanted offset is local, enough bytes are there,  at once, file ranges sent by sendfile
    or a partition has more than the answer may hold
    too few bytes                                          parked until they arrive (purgatory.py)
    some offset lies below the local log                   a coroutine reads those partitions from
                                                           the object store, in parallel, for at
                                                           most remote.fetch.max.wait.ms; a late one
                                                           is answered empty, and its
                                                           download continues for the next fetch

Versions 0 to 3, which Apache Kafka 4 no longer has, are answered with old messages that a worker
thread converts from the batches. They are retried every OLD_FETCH_LOOK_S instead of being parked.
Below version 10 it also decompresses archived batches of zstd: `strandline.remote.compression.type`
makes these of batches that the client could read.

A client above `consumer_byte_rate` gets an empty answer at once and is muted for the throttle time
in it; the withheld bytes do not count, since it will ask for them again (KIP-219). Its answers
never hold more than its quota allows in one quota window.

`max_bytes` counts both tiers, and partitions are read in request order until a batch does not fit:
as with Kafka, later ones then get nothing, and their files are not read. The first partition with
records gets at least one batch however small the limits are, so that a large batch blocks no
consumer (KIP-74).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from strandline.broker.authorization.authorizer import Access
from strandline.broker.cluster.archive.caretaker import archives
from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.handlers.fetch.cold_fetches import ColdFetches
from strandline.broker.handlers.fetch.nearest_replica import preferred_answer
from strandline.broker.handlers.fetch.partition_answers import (
    FIRST_VERSION_WITH_ZSTD,
    answer_without_read,
    converted_answer,
    denied_answer,
    diverging_answer,
    end_of,
    error_answer,
    is_news,
    records_answer,
    refused_answer,
    with_aborted,
)
from strandline.broker.handlers.fetch.plan import FetchPass, FetchPlan, FetchPlanner
from strandline.broker.handlers.fetch.purgatory import ParkedFetch
from strandline.broker.handlers.fetch.replica_fetch import ReplicaFetches
from strandline.broker.handlers.fetch.sessions import (
    FetchSession,
    FetchSessionCache,
    PartitionKey,
    WantedPartition,
)
from strandline.broker.handlers.services.leader_endpoints import Endpoint, leader_endpoints
from strandline.broker.handlers.services.services import Services
from strandline.broker.network.responses import (
    Answer,
    ColdParts,
    DeferredAnswer,
    Parts,
    ThrottledParts,
)
from strandline.broker.protocol.codec.codec import encode
from strandline.broker.protocol.header import RequestHeader, frame_response
from strandline.broker.protocol.messages.fetch import (
    FetchNodeEndpoint,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import AclOperation, ResourceKind
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.model import Isolation
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.down_conversion import down_convert, without_zstd
from strandline.storage.records.compression import Codec

log = logging.getLogger(__name__)

FIRST_VERSION_WITH_MAGIC_1 = 2
FIRST_VERSION_WITH_BATCHES = 4
# From here on followers serve consumers too.
FIRST_VERSION_WITH_RACK = 11
# Reads of one answer that find nothing but transaction markers: a gigabyte of them, by default.
MESSAGE_READS_MAX = 1000
# Such old clients do not notice a delay of milliseconds.
OLD_FETCH_LOOK_S = 0.1


class FetchHandler:
    """Serves fetches from both tiers."""

    def __init__(self, services: Services, sessions: FetchSessionCache) -> None:
        self._replicas = services.replicas
        self._sessions = sessions
        self._services = services
        self._planner = FetchPlanner(services, sessions)
        bytes_max = services.config.fetch.bytes_max
        self._followers = ReplicaFetches(
            services.replicas,
            services.clock,
            bytes_max=bytes_max,
            has_archive=self._has_archive,
        )
        self._loop = asyncio.get_running_loop()
        self._quiet_log = QuietLog(log, services.clock)
        # Number of fetches waiting now.
        self.parked_count = 0
        self._quotas = services.quotas
        self._requests = services.traffic.apis[ApiKey.FETCH]
        self._now_s = services.clock.monotonic_s
        self._workers = services.records
        self._pace = services.cold_pace
        self._cold = ColdFetches(
            self._read_partition,
            wait_ms_max=lambda: services.config.remote_waits.fetch_ms_max,
            bytes_max=lambda: self._pace.answer_bytes_max(self._now_s()),
            waits=services.traffic.remote_fetches,
            clock=services.clock,
        )

    def handle_body(
        self,
        body: memoryview,
        header: RequestHeader,
        peer: str,
        started_s: float,
        access: Access | None = None,
        listener: str = "",
    ) -> Answer:
        """Decodes and handles a request, as `handle` does. Raises MalformedRequest."""
        plan = self._planner.plan_body(body, header, peer, started_s)
        return self._carry_out(plan, header, access, listener)

    def handle(
        self,
        request: FetchRequest,
        header: RequestHeader,
        started_s: float,
        access: Access | None = None,
        listener: str = "",
    ) -> Answer:
        """Returns a framed answer, now or later. `started_s` is when the request was received.

        `access` has the rights of the client: every right if there is no authorizer. `listener` is
        the one that it came by: addresses of leaders are told as they are there.
        """
        plan = self._planner.plan(request, header, started_s)
        return self._carry_out(plan, header, access, listener)

    def _carry_out(
        self,
        plan: FetchPlan | FetchRequest | ErrorCode,
        header: RequestHeader,
        access: Access | None,
        listener: str,
    ) -> Answer:
        if isinstance(plan, ErrorCode):
            self._requests.failed(plan)
            return self._frame(header, FetchResponse(error_code=plan, topics=()))
        if isinstance(plan, FetchRequest):
            return self._followers.handle(plan, header, access)
        plan.access, plan.listener = access, listener
        if plan.header.api_version < FIRST_VERSION_WITH_BATCHES:
            return self._answer_with_old_messages(plan)
        found = self._read_once(plan)
        if found.remote:
            if plan.header.api_version < FIRST_VERSION_WITH_ZSTD:
                return self._answer_cold_without_zstd(plan, found)
            coming = self._cold.read(plan, found)
            if coming is not None:
                return self._answer_later(plan, found, coming)
            return self._answer_cold(plan, found)
        if (
            found.must_answer
            or found.total_bytes >= plan.min_bytes
            or plan.wait_ms_max <= 0
            or not plan.wanted
        ):
            return self._answer(plan, found)
        return self._park(plan, found)

    def _has_archive(self, broker_id: int) -> bool:
        """Whether that broker reads the archive of this one."""
        broker = self._services.metadata.image.brokers.get(broker_id)
        return broker is not None and archives(broker)

    # --- reading -----------------------------------------------------------------------------

    def _read_once(self, plan: FetchPlan) -> FetchPass:
        """Makes one pass over the partitions: reads local ones at once, marks remote ones."""
        found = FetchPass()
        topic: str | None = None
        topic_id: uuid.UUID | None = None
        served: Mapping[int, Partition] = {}
        is_denied = False
        # Followers serve clients that know how they come to fetch from one.
        any_replica = plan.header.api_version >= FIRST_VERSION_WITH_RACK
        rack = plan.rack if plan.rack and self._services.config.fetch.selects_by_rack else ""
        for wanted in plan.wanted:
            # A topic is looked up once: hashing its id takes as long as answering a partition.
            if wanted.topic_id is not topic_id or wanted.topic is not topic or not served:
                topic, topic_id = wanted.topic, wanted.topic_id
                served = self._replicas.partitions_of(topic_id if topic is None else topic)
                is_denied = plan.access is not None and not self._may_read(plan, wanted)
            if is_denied:
                found.must_answer = True
                found.answers.append((wanted, None, denied_answer(wanted.partition)))
                continue
            partition = served.get(wanted.partition)
            if partition is None or not (partition.is_leader or any_replica):
                refusal = self._refusal(wanted, partition, plan.session)
                answer = refused_answer(wanted.partition, refusal, plan.header.api_version)
                found.must_answer = True
            elif rack and (nearer := self._nearer(plan, wanted, partition, rack)) is not None:
                answer = nearer
                found.must_answer = True
            else:
                answer = answer_without_read(
                    plan, wanted, partition, found
                ) or self._read_partition(plan, wanted, partition, found)
            found.answers.append((wanted, partition, answer))
        return found

    def _nearer(
        self, plan: FetchPlan, wanted: WantedPartition, partition: Partition, rack: str
    ) -> FetchResponsePartition | None:
        if not partition.is_leader or partition.refusal(wanted.current_leader_epoch) is not None:
            return None
        image, offset = self._services.metadata.image, wanted.fetch_offset
        return preferred_answer(image, partition, rack, plan.listener, offset)

    def _may_read(self, plan: FetchPlan, wanted: WantedPartition) -> bool:
        """Returns whether the client may read the topic; an unknown id has no name to ask for."""
        name = wanted.topic or self._services.metadata.topic_name(wanted.topic_id)
        if name is None and plan.session is not None and wanted.topic_id is not None:
            name = plan.session.names.get(wanted.topic_id)
        assert plan.access is not None
        return name is None or plan.access.may(AclOperation.READ, ResourceKind.TOPIC, name)

    def _read_partition(
        self, plan: FetchPlan, wanted: WantedPartition, partition: Partition, found: FetchPass
    ) -> FetchResponsePartition:
        unified_log = partition.log
        partition.traffic.fetch_requests += 1
        if (
            plan.header.api_version < FIRST_VERSION_WITH_ZSTD
            and unified_log.config.stored_codec == Codec.ZSTD
        ):
            # Clients of this version do not know zstd (KIP-110). As in KafkaApis, a topic that
            # keeps the producers' codec is not checked.
            found.must_answer = True
            code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            return error_answer(wanted.partition, code, partition)
        refusal = partition.fetch_refusal(wanted.current_leader_epoch, wanted.fetch_offset)
        if refusal is not None:
            found.must_answer = True
            return refused_answer(wanted.partition, refusal, plan.header.api_version, partition)
        try:
            if wanted.last_fetched_epoch >= 0 and not unified_log.has_unknown_extent:
                diverging = diverging_answer(
                    partition, wanted.partition, wanted.fetch_offset, wanted.last_fetched_epoch
                )
                if diverging is not None:
                    found.must_answer = True
                    return diverging
            budget = 0 if found.is_full else plan.bytes_max - found.total_bytes
            read = unified_log.read(
                wanted.fetch_offset,
                bytes_max=min(wanted.partition_bytes_max, max(budget, 0)),
                isolation=plan.isolation,
                at_least_one_batch=found.total_bytes == 0,
            )
        except RecordsRejected as error:
            # Kafka does not count it as a failed fetch: only the broker's own faults are.
            found.must_answer = True
            return error_answer(wanted.partition, error.kafka_code, partition)
        except StorageError as error:
            where = partition.topic_partition
            self._quiet_log.say(
                logging.WARNING,
                "read failed",
                where,
                {"partition": str(where), "error": str(error)},
            )
            found.must_answer = True
            partition.traffic.failed_fetch += 1
            return error_answer(wanted.partition, error.kafka_code, partition)
        if read is None:
            partition.traffic.remote_fetches += 1
            found.remote.append(len(found.answers))
            return records_answer(wanted.partition, partition, (), 0, plan.isolation)
        if read.is_cut and budget < wanted.partition_bytes_max:
            found.is_full = True
        parts, size_bytes = ((), 0) if read.range is None else ((read.range,), read.range.length)
        found.total_bytes += size_bytes
        answer = records_answer(wanted.partition, partition, parts, size_bytes, plan.isolation)
        is_committed = plan.isolation is Isolation.READ_COMMITTED
        if read.next_offset < (
            answer.last_stable_offset if is_committed else answer.high_watermark
        ):
            # Cut by a limit or by the end of a segment: available data is not delayed.
            found.must_answer = True
        if is_committed and size_bytes:
            aborted = unified_log.local.aborted_transactions(wanted.fetch_offset, read.next_offset)
            if aborted:
                answer = with_aborted(answer, aborted)
        return answer

    def _refusal(
        self, wanted: WantedPartition, partition: Partition | None, session: FetchSession | None
    ) -> LeaderRefusal:
        """Returns why a partition is not served here: it is led elsewhere, or not on this broker.

        As in KafkaApis and ReplicaManager, a session uses the name that the id had when it was
        added: there the topic is gone, or another one has its name.
        """
        led_elsewhere = (
            None if partition is None else partition.refusal(wanted.current_leader_epoch)
        )
        if led_elsewhere is not None:
            return led_elsewhere
        refusal = self._replicas.refusal_of_missing(*wanted.key)
        names = {} if session is None or wanted.topic_id is None else session.names
        if refusal.code is not ErrorCode.UNKNOWN_TOPIC_ID or wanted.topic_id not in names:
            return refusal
        if names[wanted.topic_id] in self._services.metadata.image.topics:
            return LeaderRefusal(ErrorCode.INCONSISTENT_TOPIC_ID)
        return LeaderRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # --- answering ---------------------------------------------------------------------------

    def _park(self, plan: FetchPlan, found: FetchPass) -> DeferredAnswer:
        partitions = [p for _, p, _ in found.answers if p is not None]
        deferred = DeferredAnswer()

        def finish() -> None:
            plan.started_s = began_s = self._now_s()
            self.parked_count -= 1
            try:
                parts = self._answer(plan, self._read_once(plan))
            except Exception as error:
                # No caller sees the exception, and the client would wait for ever for its answer.
                deferred.fail(error)
            else:
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

    async def _answer_later(
        self, plan: FetchPlan, found: FetchPass, coming: Awaitable[None]
    ) -> Parts:
        await coming
        plan.started_s = self._now_s()
        return self._answer_cold(plan, found)

    def _answer_cold(self, plan: FetchPlan, found: FetchPass) -> Parts:
        parts = self._answer(plan, found)
        # The pace bounds only the cold part: many local records would go out so slowly that the
        # client's request times out, and its next one would, too.
        is_mostly_local = 2 * found.cold_bytes < found.total_bytes
        return parts if is_mostly_local or isinstance(parts, ThrottledParts) else ColdParts(parts)

    async def _answer_with_old_messages(self, plan: FetchPlan) -> Parts:
        deadline_s = self._loop.time() + max(plan.wait_ms_max, 0) / 1000
        magic = 1 if plan.header.api_version >= FIRST_VERSION_WITH_MAGIC_1 else 0
        while True:
            found = self._read_once(plan)
            is_over = not plan.wanted or self._loop.time() >= deadline_s
            enough = found.must_answer or found.total_bytes >= plan.min_bytes or found.remote
            if enough or is_over:
                await self._read_cold_without_zstd(plan, found)
                for position in range(len(found.answers)):
                    await self._convert_to_messages(plan, found, position, magic)
                if is_over or any(one.records_bytes or one.error_code for *_, one in found.answers):
                    return self._answer(plan, found)
            await asyncio.sleep(min(OLD_FETCH_LOOK_S, max(0.0, deadline_s - self._loop.time())))

    async def _convert_to_messages(
        self, plan: FetchPlan, found: FetchPass, position: int, magic: int
    ) -> None:
        """Converts the records of one answer, and reads on while they become no message.

        Old formats have no transaction markers, and the client would ask for them for ever.
        """
        asked, partition, answer = found.answers[position]
        convert = partial(down_convert, magic=magic, start_offset=asked.fetch_offset)
        wanted = asked
        for _ in range(MESSAGE_READS_MAX):
            await self._convert(found, position, convert)
            converted = found.answers[position][-1]
            if converted.records_bytes or converted.error_code or not answer.records_bytes:
                return
            offset = await self._loop.run_in_executor(self._workers, end_of, answer)
            wanted = replace(wanted, fetch_offset=max(offset, wanted.fetch_offset + 1))
            further = replace(plan, wanted=(wanted,))
            read = self._read_once(further)
            await self._read_cold_without_zstd(further, read)
            answer = read.answers[0][-1]
            found.answers[position] = asked, partition, answer
            found.total_bytes += read.total_bytes

    async def _answer_cold_without_zstd(self, plan: FetchPlan, found: FetchPass) -> Parts:
        await self._read_cold_without_zstd(plan, found)
        return self._answer_cold(plan, found)

    async def _read_cold_without_zstd(self, plan: FetchPlan, found: FetchPass) -> None:
        """Reads the cold partitions for a client that does not know zstd."""
        cold = tuple(found.remote)
        coming = self._cold.read(plan, found) if cold else None
        if coming is not None:
            await coming
        plan.started_s = self._now_s()
        for position in cold:
            await self._convert(found, position, without_zstd)

    async def _convert(
        self, found: FetchPass, position: int, convert: Callable[[bytes], bytes]
    ) -> None:
        """Converts the records of one answer in a worker thread."""
        wanted, partition, answer = found.answers[position]
        if not answer.records_bytes:
            return
        try:
            answer = await self._loop.run_in_executor(
                self._workers, converted_answer, convert, answer
            )
        except (RecordsRejected, StorageError) as error:
            answer = error_answer(wanted.partition, error.kafka_code, partition)
        found.answers[position] = (wanted, partition, answer)

    def _throttle_ms(self, plan: FetchPlan, found: FetchPass) -> int:
        """Returns the throttle time of the client; if there is one, the answer does not count."""
        busy_s = self._now_s() - plan.started_s
        user, client_id = plan.header.user, plan.header.client_id
        by_time = self._quotas.requested(user, client_id, busy_s)
        by_bytes = self._quotas.fetched(user, client_id, found.total_bytes)
        if by_time or by_bytes:
            self._quotas.unfetched(user, client_id, found.total_bytes)
        return max(by_time, by_bytes)

    def _answer_throttled(self, plan: FetchPlan, throttle_ms: int) -> Parts:
        """Returns the empty answer with the throttle time."""
        session_id = 0
        if plan.session is not None:
            if plan.incremental:
                session_id = plan.session.session_id
            else:
                # Clients accept no session from an answer without the requested partitions.
                self._sessions.end(plan.session.session_id)
        response = FetchResponse(throttle_time_ms=throttle_ms, session_id=session_id, topics=())
        parts = self._frame(plan.header, response)
        return ThrottledParts(parts, throttle_ms)

    def _answer(self, plan: FetchPlan, found: FetchPass) -> Parts:
        if self._quotas.is_active:
            throttle_ms = self._throttle_ms(plan, found)
            if throttle_ms:
                return self._answer_throttled(plan, throttle_ms)
        topics: dict[str | uuid.UUID | None, list[FetchResponsePartition]] = {}
        topic: str | uuid.UUID | None = None
        of_topic: list[FetchResponsePartition] = []
        served: list[PartitionKey] = []
        failed = False
        leaders: set[int] = set()
        session, incremental = plan.session, plan.incremental
        for wanted, partition, answer in found.answers:
            if incremental and not is_news(wanted, answer):
                continue
            if session is not None:
                wanted.told_high_watermark = answer.high_watermark
                wanted.told_log_start_offset = answer.log_start_offset
                wanted.told_error = answer.error_code != 0
            if answer.error_code:
                self._requests.errors[answer.error_code] += 1
                failed = True
                if answer.current_leader is not None:
                    leaders.add(answer.current_leader.leader_id)
            named = wanted.topic_id if wanted.topic is None else wanted.topic
            if named is not topic or not topics:
                topic, of_topic = named, topics.setdefault(named, [])
            of_topic.append(answer)
            if answer.records_bytes:
                if session is not None:
                    served.append(wanted.key)
                if partition is not None:
                    partition.traffic.bytes_out += answer.records_bytes
        self._requests.failed_answers += failed
        if session is not None:
            session.rotate(served)
        if plan.known is not None:
            parts = plan.known.response(plan.header.correlation_id, found.answers[0][2])
            if parts is not None:
                return parts
        endpoints: Iterable[Endpoint] = ()
        if leaders:
            image = self._services.metadata.image
            endpoints = leader_endpoints(image, leaders, plan.listener)
        response = FetchResponse(
            session_id=session.session_id if session is not None else 0,
            topics=[
                FetchResponseTopic(
                    name=key if isinstance(key, str) else "",
                    topic_id=None if isinstance(key, str) else key,
                    partitions=partitions,
                )
                for key, partitions in topics.items()
            ],
            node_endpoints=[FetchNodeEndpoint(**one._asdict()) for one in endpoints],
        )
        return self._frame(plan.header, response)

    def _frame(self, header: RequestHeader, response: FetchResponse) -> Parts:
        body = encode(response, header.api_version)
        return frame_response(ApiKey.FETCH, header.api_version, header.correlation_id, body)
