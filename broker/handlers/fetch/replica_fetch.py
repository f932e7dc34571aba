"""Fetches of followers: their progress, and records up to the end of the log (KIP-227, KIP-903).

    1 the session takes up what the request names       2 each dirty partition: does the follower's
      log diverge from ours? else its progress counts     3 records   4 what is news is answered

With less than the wanted bytes the fetch waits for appends, without a task. It is woken two turns
of the loop later: batches that are in their sockets by then go with it. A producer with five
requests in flight sends them while the first is appended, and each answer less is a wake less of
all followers.

A fetch tells the progress once, when it comes; what is read after its wait is no progress.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from strandline.broker.authorization.authorizer import Access
from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.handlers.fetch.partition_answers import (
    denied_answer,
    diverging_answer,
    error_answer,
    follower_refusal,
    records_answer,
    refused_answer,
)
from strandline.broker.handlers.fetch.replica_cold_reads import read_for
from strandline.broker.handlers.fetch.replica_sessions import (
    FollowedPartition,
    ReplicaSession,
    ReplicaSessions,
    follower_of,
)
from strandline.broker.handlers.fetch.sessions import FINAL_EPOCH, INITIAL_EPOCH
from strandline.broker.network.responses import Answer, DeferredAnswer, Parts
from strandline.broker.protocol.codec.codec import encode
from strandline.broker.protocol.header import RequestHeader, frame_response
from strandline.broker.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import AclOperation
from strandline.storage.clock import Clock
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.model import NO_EPOCH, Isolation
from strandline.storage.quiet_log import QuietLog
from strandline.storage.tiering.log.cold_read import RemoteRead

log = logging.getLogger(__name__)

FIRST_VERSION_WITH_TOPIC_IDS = 13


@dataclass(slots=True)
class _Fetch:
    """One fetch while it is served."""

    header: RequestHeader
    session: ReplicaSession
    broker_epoch: int
    is_incremental: bool
    bytes_max: int
    answers: list[tuple[FollowedPartition, FetchResponsePartition]] = field(default_factory=list)
    total_bytes: int = 0
    must_answer: bool = False


class ReplicaFetches:
    """Serves the fetches of followers. Used on the event loop only."""

    def __init__(
        self,
        replicas: ReplicaManager,
        clock: Clock,
        *,
        bytes_max: int,
        has_archive: Callable[[int], bool],
    ) -> None:
        """`bytes_max` bounds an answer, whatever a follower asks for. `has_archive` tells whether
        a broker reads the archive itself.
        """
        self._replicas = replicas
        self._has_archive = has_archive
        self._bytes_max = bytes_max
        self._now_s = clock.monotonic_s
        self._loop = asyncio.get_running_loop()
        self._sessions = ReplicaSessions()
        self._quiet_log = QuietLog(log, clock)
        # Number of fetches waiting now.
        self.parked_count = 0

    def handle(self, request: FetchRequest, header: RequestHeader, access: Access | None) -> Answer:
        """Returns a framed answer, now or later."""
        if access is not None and not access.may_cluster(AclOperation.CLUSTER_ACTION):
            return self._denied(request, header)
        broker_id, broker_epoch = follower_of(request)
        session = self._sessions.of(
            request.session_id, request.session_epoch, broker_id=broker_id, user=header.user
        )
        if isinstance(session, ErrorCode):
            return self._frame(header, FetchResponse(error_code=session, topics=()))
        by_id = header.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        for topic in request.topics:
            name = topic.topic_id if by_id else topic.name
            for wanted in topic.partitions:
                session.want((name, wanted.partition), wanted)
        for forgotten in request.forgotten_topics:
            name = forgotten.topic_id if by_id else forgotten.name
            session.forget((name, index) for index in forgotten.partitions)
        now_ms = self._now_s() * 1000
        session.sweep(now_ms)
        fetch = _Fetch(
            header,
            session,
            broker_epoch,
            request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH),
            min(request.max_bytes, self._bytes_max),
        )
        self._read(fetch, now_ms)
        session.asking.asked_ms = now_ms
        is_enough = fetch.total_bytes >= min(request.min_bytes, fetch.bytes_max)
        if is_enough or fetch.must_answer or request.max_wait_ms <= 0 or not session.partitions:
            return self._answer(fetch)
        return self._park(fetch, request.min_bytes - fetch.total_bytes, request.max_wait_ms)

    # --- reading -----------------------------------------------------------------------------

    def _read(self, fetch: _Fetch, now_ms: float | None) -> None:
        """Looks at the dirty partitions; `now_ms` is None after a wait, which is no progress."""
        session = fetch.session
        fetch.answers, fetch.total_bytes = [], 0
        for one in tuple(session.dirty):
            answer, is_finished = self._read_one(fetch, one, now_ms)
            fetch.answers.append((one, answer))
            if answer.records_bytes:
                # Others come first in the next answer.
                del session.dirty[one]
            if answer.error_code or answer.diverging_epoch is not None:
                fetch.must_answer = True
                session.dirty[one] = None
            elif is_finished:
                session.dirty.pop(one, None)
            else:
                session.dirty[one] = None

    def _read_one(
        self, fetch: _Fetch, one: FollowedPartition, now_ms: float | None
    ) -> tuple[FetchResponsePartition, bool]:
        """Returns the answer of a partition, and whether the next fetch need not look at it: it has
        no further records, and the follower is in sync.
        """
        partition = self._found(fetch.session, one)
        index = one.key[1]
        if isinstance(partition, LeaderRefusal):
            return refused_answer(index, partition, fetch.header.api_version), False
        refusal = partition.refusal(one.current_leader_epoch)
        if refusal is not None:
            return refused_answer(index, refusal, fetch.header.api_version, partition), False
        follower, leading, unified_log = one.follower, partition.leading, partition.log
        assert follower is not None, one.key
        assert leading is not None, partition
        offset = one.fetch_offset
        try:
            if one.last_fetched_epoch != NO_EPOCH:
                diverging = diverging_answer(partition, index, offset, one.last_fetched_epoch)
                if diverging is not None:
                    return diverging, False
            if not unified_log.log_start_offset <= offset <= unified_log.end_offset:
                raise unified_log.out_of_range(offset)
            if now_ms is not None:
                leading.fetched(
                    follower,
                    offset,
                    one.log_start_offset,
                    now_ms=now_ms,
                    broker_epoch=fetch.broker_epoch,
                )
            if offset == unified_log.end_offset:
                # One that may not join yet may do so later, without a record in between.
                is_in_sync = fetch.session.broker_id in leading.in_sync.committed
                answer = records_answer(index, partition, (), 0, Isolation.READ_UNCOMMITTED)
                return answer, is_in_sync
            if leading.holds_back(follower):
                answer = records_answer(index, partition, (), 0, Isolation.READ_UNCOMMITTED)
                return answer, False
            budget = min(one.partition_bytes_max, fetch.bytes_max - fetch.total_bytes)
            read = unified_log.read(
                offset,
                bytes_max=max(budget, 0),
                isolation=Isolation.LOG_END,
                at_least_one_batch=fetch.total_bytes == 0,
            )
            if read is None and not self._has_archive(fetch.session.broker_id):
                if fetch.total_bytes and budget <= 0:
                    # The next answer has room for it.
                    answer = records_answer(index, partition, (), 0, Isolation.READ_UNCOMMITTED)
                    return answer, False
                archived = read_for(fetch.session, one, partition, one.partition_bytes_max)
                if archived is None:
                    answer = records_answer(index, partition, (), 0, Isolation.READ_UNCOMMITTED)
                    return answer, one in fetch.session.cold_reads
                if archived.buffers:
                    return self._archived_answer(fetch, index, partition, archived), False
                # Compaction left nothing of it: the log goes on behind.
                read = unified_log.read(
                    archived.next_offset, bytes_max=max(budget, 0), isolation=Isolation.LOG_END
                )
        except RecordsRejected as error:
            return error_answer(index, error.kafka_code, partition), False
        except StorageError as error:
            where = partition.topic_partition
            fields = {"partition": str(where), "error": str(error)}
            self._quiet_log.say(logging.WARNING, "read failed", where, fields)
            return error_answer(index, error.kafka_code, partition), False
        if read is None:
            code = ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
            return error_answer(index, code, partition), False
        parts, size_bytes = ((), 0) if read.range is None else ((read.range,), read.range.length)
        fetch.total_bytes += size_bytes
        answer = records_answer(index, partition, parts, size_bytes, Isolation.READ_UNCOMMITTED)
        return answer, False

    def _archived_answer(
        self, fetch: _Fetch, index: int, partition: Partition, read: RemoteRead
    ) -> FetchResponsePartition:
        fetch.total_bytes += read.size_bytes
        # It was taken from the session, and would have to be read again after a wait.
        fetch.must_answer = True
        partition.traffic.remote_bytes_out += read.size_bytes
        return records_answer(
            index, partition, read.buffers, read.size_bytes, Isolation.READ_UNCOMMITTED
        )

    def _found(self, session: ReplicaSession, one: FollowedPartition) -> Partition | LeaderRefusal:
        """Returns the partition, if this broker leads it with this follower."""
        topic, index = one.key
        partition = one.partition
        if partition is None:
            partition = self._replicas.partitions_of(topic).get(index)
            if partition is None:
                return self._replicas.refusal_of_missing(topic, index)
        leading = partition.leading
        follower = None if leading is None else leading.follower(session.broker_id)
        if follower is None:
            return follower_refusal(partition, one.current_leader_epoch)
        if one.partition is None or one.follower is not follower:
            session.follow(one, partition, follower)
        return partition

    # --- answering ---------------------------------------------------------------------------

    def _park(self, fetch: _Fetch, missing_bytes: int, wait_ms: int) -> DeferredAnswer:
        deferred = DeferredAnswer()
        session, loop = fetch.session, self._loop
        missing = missing_bytes
        is_scheduled = False

        def on_news(size_bytes: int | None) -> None:
            nonlocal missing, is_scheduled
            missing = 0 if size_bytes is None else missing - size_bytes
            if missing <= 0 and not is_scheduled:
                is_scheduled = True
                loop.call_soon(loop.call_soon, finish)

        def leave() -> None:
            self.parked_count -= 1
            timer.cancel()
            session.on_news = None

        def finish() -> None:
            if session.on_news is not on_news:
                return
            leave()
            began_s = self._now_s()
            try:
                session.sweep(began_s * 1000)
                self._read(fetch, None)
                parts = self._answer(fetch)
            except Exception as error:
                # No caller sees the exception, and the follower would wait for ever.
                deferred.fail(error)
            else:
                deferred.complete(parts, self._now_s() - began_s)

        def cancel() -> None:
            if session.on_news is on_news:
                leave()
                if not session.session_id:
                    session.close()

        timer = loop.call_later(wait_ms / 1000, finish)
        session.on_news = on_news
        self.parked_count += 1
        deferred.cancel_hook = cancel
        return deferred

    def _answer(self, fetch: _Fetch) -> Parts:
        session = fetch.session
        topics: dict[str | uuid.UUID | None, list[FetchResponsePartition]] = {}
        for one, answer in fetch.answers:
            if fetch.is_incremental and not one.is_news(answer):
                continue
            one.told(answer)
            topics.setdefault(one.key[0], []).append(answer)
            partition = one.partition
            if partition is not None and answer.records_bytes:
                partition.traffic.replication_bytes_out += answer.records_bytes
                if partition.leading is not None:
                    partition.leading.sent(answer.records_bytes)
        response = FetchResponse(
            session_id=session.session_id,
            topics=[_topic(name, partitions) for name, partitions in topics.items()],
        )
        if not session.session_id:
            session.close()
        return self._frame(fetch.header, response)

    def _denied(self, request: FetchRequest, header: RequestHeader) -> Parts:
        topics = [
            FetchResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[denied_answer(one.partition) for one in topic.partitions],
            )
            for topic in request.topics
        ]
        return self._frame(header, FetchResponse(topics=topics))

    def _frame(self, header: RequestHeader, response: FetchResponse) -> Parts:
        body = encode(response, header.api_version)
        return frame_response(ApiKey.FETCH, header.api_version, header.correlation_id, body)


def _topic(
    name: str | uuid.UUID | None, partitions: Sequence[FetchResponsePartition]
) -> FetchResponseTopic:
    return FetchResponseTopic(
        name=name if isinstance(name, str) else "",
        topic_id=None if isinstance(name, str) else name,
        partitions=partitions,
    )
