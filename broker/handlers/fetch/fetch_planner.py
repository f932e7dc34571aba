"""What a fetch asks for: its own partitions, or those of its session as it changes them."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.handlers.fetch.fetch_plan import FetchPlan
from strandline.broker.handlers.services.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    PartitionKey,
    SessionRefused,
    WantedPartition,
)
from strandline.broker.handlers.services.limits import PARTITIONS_MAX, refuse_flood
from strandline.broker.handlers.services.services import Services
from strandline.broker.protocol.header import RequestHeader
from strandline.broker.protocol.messages.fetch import FetchRequest
from strandline.storage.model import Isolation

FIRST_VERSION_WITH_TOPIC_IDS = 13


class FetchPlanner:
    """Turns requests into plans; what is kept between them is the sessions'."""

    def __init__(self, services: Services) -> None:
        self._sessions = services.sessions
        self._quotas = services.quotas
        self._bytes_max = services.config.fetch_max_bytes

    def plan(
        self, request: FetchRequest, header: RequestHeader, started_s: float
    ) -> FetchPlan | SessionRefused:
        """Begins, goes on with or ends the session that the request names (KIP-227).

        `started_s` is the loop's clock when the request was taken. SessionRefused is the answer to
        a session or an epoch that is not this client's. Raises CloseConnectionError for a request
        of more than PARTITIONS_MAX partitions.
        """
        refuse_flood(
            sum(len(topic.partitions) or 1 for topic in request.topics)
            + sum(len(topic.partitions) or 1 for topic in request.forgotten_topics),
            PARTITIONS_MAX,
        )
        version = header.api_version
        by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        wanted = _wanted(request, by_id=by_id)
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
            self._sessions.update(session, wanted, _forgotten(request, by_id=by_id))
            order = tuple(session.partitions.values())
            if not order:
                # Of nothing there is no news: as in Kafka the session ends, and its slot is free.
                self._sessions.end(session.session_id)
                session = None
        bytes_max = min(request.max_bytes, self._bytes_max)
        if self._quotas.is_active:
            bytes_max = int(
                min(bytes_max, self._quotas.fetch_bytes_max(header.user, header.client_id))
            )
        return FetchPlan(
            version=version,
            correlation_id=header.correlation_id,
            user=header.user,
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


def _wanted(request: FetchRequest, *, by_id: bool) -> list[WantedPartition]:
    """The partitions that the request itself names."""
    return [
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


def _forgotten(request: FetchRequest, *, by_id: bool) -> list[PartitionKey]:
    """The partitions that leave the request's session."""
    return [
        (topic.topic_id if by_id else topic.name, partition)
        for topic in request.forgotten_topics
        for partition in topic.partitions
    ]
