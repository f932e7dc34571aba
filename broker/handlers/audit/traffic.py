"""Produce and Fetch that count what each user reads and writes, for the record.

In classes of their own: a broker without a record pays nothing.
"""

from __future__ import annotations

from strandline.broker.audit.record import AuditRecord
from strandline.broker.authorization.authorizer import Access
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.plan import FetchPass, FetchPlan
from strandline.broker.handlers.fetch.sessions import FetchSessionCache
from strandline.broker.handlers.produce.produce import Asked, Produced, ProduceHandler
from strandline.broker.handlers.services.services import Services
from strandline.broker.network.responses import Parts, ThrottledParts
from strandline.broker.protocol.header import RequestHeader
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponsePartition,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import AclOperation
from strandline.broker.security.identity import ANONYMOUS, USER_TYPE
from strandline.storage.local.log.log import AppendInfo


class RecordedProduce(ProduceHandler):
    """As ProduceHandler."""

    def __init__(
        self,
        services: Services,
        transactions: TransactionCoordinator,
        record: AuditRecord,
        listener_of_brokers: str | None = None,
    ) -> None:
        """Other brokers of a cluster come by `listener_of_brokers`."""
        super().__init__(services, transactions)
        self._record = record
        self._listener_of_brokers = listener_of_brokers

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
        if access is not None and listener == self._listener_of_brokers:
            is_broker = access.shows_cluster(AclOperation.CLUSTER_ACTION)
            if is_broker and self._is_of_record(request):
                # To act for the cluster is right enough.
                access = None
        return super().handle(request, header, size_bytes, started_s, peer, access, listener)

    def _is_of_record(self, request: ProduceRequest) -> bool:
        named = {one.name or self._metadata.topic_name(one.topic_id) for one in request.topics}
        return named == {self._record.topic}

    def _refused(
        self,
        request: ProduceRequest,
        partition: Partition,
        wanted: ProducePartition,
        asked: Asked,
    ) -> ProduceResponsePartition | None:
        # Who has not logged in may be anybody.
        is_broker = (
            asked.access is None
            and asked.listener == self._listener_of_brokers
            and asked.header.user != ANONYMOUS
        )
        if partition.topic_partition.topic == self._record.topic and not is_broker:
            return ProduceResponsePartition(
                index=wanted.index,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message="the broker alone writes the record of who did what",
            )
        return super()._refused(request, partition, wanted, asked)

    def _append(
        self,
        request: ProduceRequest,
        partition: Partition,
        wanted: ProducePartition,
        asked: Asked,
    ) -> AppendInfo | ProduceResponsePartition:
        outcome = super()._append(request, partition, wanted, asked)
        self._note(outcome, partition, asked.header)
        return outcome

    async def _append_prepared(
        self,
        request: ProduceRequest,
        partition: Partition,
        wanted: ProducePartition,
        asked: Asked,
    ) -> AppendInfo | ProduceResponsePartition:
        outcome = await super()._append_prepared(request, partition, wanted, asked)
        self._note(outcome, partition, asked.header)
        return outcome

    def _note(
        self,
        outcome: AppendInfo | ProduceResponsePartition,
        partition: Partition,
        header: RequestHeader,
    ) -> None:
        if isinstance(outcome, AppendInfo):
            topic = partition.topic_partition.topic
            if topic == self._record.topic:
                # Another broker passed its lines on: to note that would be a line each time.
                return
            self._record.wrote(_principal(header), topic, outcome.size_bytes)


class RecordedFetch(FetchHandler):
    """As FetchHandler."""

    def __init__(
        self, services: Services, sessions: FetchSessionCache, record: AuditRecord
    ) -> None:
        super().__init__(services, sessions)
        self._record = record

    def _answer(self, plan: FetchPlan, found: FetchPass) -> Parts:
        parts = super()._answer(plan, found)
        # A throttled answer has no records.
        if not isinstance(parts, ThrottledParts):
            for _, partition, answer in found.answers:
                if partition is not None and answer.records_bytes:
                    topic = partition.topic_partition.topic
                    self._record.read(_principal(plan.header), topic, answer.records_bytes)
        return parts


def _principal(header: RequestHeader) -> str:
    return f"{USER_TYPE}:{header.user}"
