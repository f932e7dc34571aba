"""Plans of fetches: the requested partitions, or those of the updated session.

    frame like the last one of its connection ──► the same plan at another offset
    any other ──► decoded ──► its session (KIP-227) ──► plan

All plans are carried out in the same way (fetch.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strandline.broker.authorization.authorizer import Access
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.fetch.repeated_fetches import RepeatedFetch, RepeatedFetches
from strandline.broker.handlers.fetch.replica_sessions import follower_of
from strandline.broker.handlers.fetch.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    FetchSessionCache,
    PartitionKey,
    WantedPartition,
)
from strandline.broker.handlers.services.limits import PARTITIONS_MAX, refuse_flood
from strandline.broker.handlers.services.services import Services
from strandline.broker.protocol.codec.codec import decode_request
from strandline.broker.protocol.header import RequestHeader
from strandline.broker.protocol.messages.fetch import FetchRequest, FetchResponsePartition
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import Isolation

FIRST_VERSION_WITH_TOPIC_IDS = 13


@dataclass(slots=True)
class FetchPlan:
    """One fetch while it is served."""

    header: RequestHeader
    # When it was received; later, when its wait ended.
    started_s: float
    wanted: Sequence[WantedPartition]
    session: FetchSession | None
    incremental: bool
    isolation: Isolation
    bytes_max: int
    min_bytes: int
    wait_ms_max: int
    # Encodes the answer of a recognised fetch.
    known: RepeatedFetch | None = None
    # The rights of the client; None: every right. They are asked for at each pass.
    access: Access | None = None
    # The listener that the client came by.
    listener: str = ""
    # That of the client; empty if it has none.
    rack: str = ""


@dataclass(slots=True)
class FetchPass:
    """The result of one pass over the partitions."""

    # The request for a partition, the partition if it exists, and the answer.
    answers: list[tuple[WantedPartition, Partition | None, FetchResponsePartition]] = field(
        default_factory=list
    )
    # Positions of the answers whose records are in the archive.
    remote: list[int] = field(default_factory=list)
    total_bytes: int = 0
    # Those of them that come from the archive.
    cold_bytes: int = 0
    # A batch exceeded the limit of the whole answer: later partitions are not read.
    is_full: bool = False
    must_answer: bool = False


class FetchPlanner:
    """Turns requests into plans; keeps sessions and known fetches between them."""

    def __init__(self, services: Services, sessions: FetchSessionCache) -> None:
        self._sessions = sessions
        self._quotas = services.quotas
        self._bytes_max = services.config.fetch.bytes_max
        self._known = RepeatedFetches()

    def plan_body(
        self, body: memoryview, header: RequestHeader, peer: str, started_s: float
    ) -> FetchPlan | FetchRequest | ErrorCode:
        """Decodes a request and plans it, as `plan` does. Raises MalformedRequest as well."""
        known = self._known.get(peer)
        if known is not None:
            offset = known.match(header.api_version, body)
            if offset is not None:
                wanted = (known.wanted_from(offset),)
                return self._made(known.request, header, started_s, wanted, known=known)
        request = decode_request(FetchRequest, header.api_version, body)
        plan = self.plan(request, header, started_s)
        if plan is not request:
            self._known.note(peer, header.api_version, body, request)
        return plan

    def plan(
        self, request: FetchRequest, header: RequestHeader, started_s: float
    ) -> FetchPlan | FetchRequest | ErrorCode:
        """Opens, continues or closes the session that the request names (KIP-227).

        That of a follower is returned as it is: it has sessions of another kind.
        `started_s` is the loop's clock when the request was received. Returns an error code
        for a session or an epoch that is not this client's. Raises CloseConnectionError for a
        request of more than PARTITIONS_MAX partitions.
        """
        refuse_flood(
            sum(len(topic.partitions) or 1 for topic in request.topics)
            + sum(len(topic.partitions) or 1 for topic in request.forgotten_topics),
            PARTITIONS_MAX,
        )
        if follower_of(request)[0] >= 0:
            return request
        by_id = header.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        wanted = _wanted(request, by_id=by_id)
        session: FetchSession | None = None
        incremental = False
        order: Sequence[WantedPartition] = wanted
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id:
                self._sessions.end_of(header.user, request.session_id)
            if epoch == INITIAL_EPOCH:
                session = self._sessions.begin(wanted, uses_topic_ids=by_id, user=header.user)
        else:
            resumed = self._sessions.resume(
                request.session_id, epoch, uses_topic_ids=by_id, user=header.user
            )
            if isinstance(resumed, ErrorCode):
                return resumed
            session, incremental = resumed, True
            self._sessions.update(session, wanted, _forgotten(request, by_id=by_id))
            order = tuple(session.partitions.values())
            if not order:
                # An empty session never has data: as in Kafka it ends, and frees its slot.
                self._sessions.end(session.session_id)
                session = None
        return self._made(
            request, header, started_s, order, session=session, incremental=incremental
        )

    def _made(
        self,
        request: FetchRequest,
        header: RequestHeader,
        started_s: float,
        wanted: Sequence[WantedPartition],
        *,
        session: FetchSession | None = None,
        incremental: bool = False,
        known: RepeatedFetch | None = None,
    ) -> FetchPlan:
        bytes_max = min(request.max_bytes, self._bytes_max)
        if self._quotas.is_active:
            bytes_max = int(
                min(bytes_max, self._quotas.fetch_bytes_max(header.user, header.client_id))
            )
        return FetchPlan(
            header,
            started_s,
            wanted,
            session,
            incremental,
            Isolation.of_consumer(request.isolation_level),
            bytes_max,
            # More bytes than an answer may hold would never arrive.
            min(request.min_bytes, bytes_max),
            request.max_wait_ms,
            known,
            rack=request.rack_id,
        )


def _wanted(request: FetchRequest, *, by_id: bool) -> list[WantedPartition]:
    """Returns the partitions that the request itself names."""
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
    """Returns the partitions that leave the request's session."""
    return [
        (topic.topic_id if by_id else topic.name, partition)
        for topic in request.forgotten_topics
        for partition in topic.partitions
    ]
