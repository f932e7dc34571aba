"""ListTransactions and DescribeTransactions (KIP-664).

ListTransactions      0-2  1 filter by duration (KIP-994), 2 filter by a pattern (KIP-1152)
DescribeTransactions  0
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import groupby

from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.model.topic_regex import check_regex, find_topics
from strandline.broker.coordination.transactions.transaction import Transaction, TransactionState
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.handlers.services.limits import refuse_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.describe_transactions import (
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from strandline.broker.protocol.messages.list_transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode

_STATES = {state.title: state for state in TransactionState}
# A state of Kafka's coordinator in which no transaction is listed.
_STATES_NEVER_SEEN = frozenset({"PrepareEpochFence"})


class TransactionListingHandlers:
    """Handlers that show the state of transactional ids."""

    def __init__(self, services: Services, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._clock = services.clock
        self._workers: Executor = services.records

    async def list_transactions(
        self, request: ListTransactionsRequest, _context: RequestContext
    ) -> ListTransactionsResponse:
        refuse_flood(len(request.state_filters))
        refuse_flood(len(request.producer_id_filters))
        unknown = [
            name
            for name in request.state_filters
            if name not in _STATES and name not in _STATES_NEVER_SEEN
        ]
        try:
            found = await self._coordinator.transactions(_filter_of(request, self._clock.now_ms()))
            if request.transactional_id_pattern:
                found = await self._matching(request.transactional_id_pattern, found)
        except CoordinatorFault as fault:
            return ListTransactionsResponse(error_code=fault.error_code)
        return ListTransactionsResponse(
            unknown_state_filters=unknown,
            transaction_states=[
                ListedTransaction(
                    transactional_id=one.transactional_id,
                    producer_id=one.producer_id,
                    transaction_state=one.state.title,
                )
                for one in found
            ],
        )

    async def _matching(self, pattern: str, found: Sequence[Transaction]) -> list[Transaction]:
        """Returns the transactions whose whole id matches. Raises CoordinatorFault."""
        check_regex(pattern)
        names = tuple(one.transactional_id for one in found)
        matches = await asyncio.get_running_loop().run_in_executor(
            self._workers, find_topics, (pattern,), names
        )
        return [one for one in found if one.transactional_id in matches[pattern]]

    async def describe_transactions(
        self, request: DescribeTransactionsRequest, _context: RequestContext
    ) -> DescribeTransactionsResponse:
        refuse_flood(len(request.transactional_ids))
        return DescribeTransactionsResponse(
            transaction_states=[await self._describe(name) for name in request.transactional_ids]
        )

    async def _describe(self, transactional_id: str) -> DescribedTransaction:
        if not transactional_id:
            return _undescribed(transactional_id, ErrorCode.INVALID_REQUEST)
        try:
            found = await self._coordinator.describe(transactional_id)
        except CoordinatorFault as fault:
            return _undescribed(transactional_id, fault.error_code)
        if found is None:
            return _undescribed(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return DescribedTransaction(
            transactional_id=transactional_id,
            transaction_state=found.state.title,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.started_ms,
            producer_id=found.producer_id,
            producer_epoch=found.epoch,
            topics=[
                DescribedTransactionTopic(topic=topic, partitions=[one.partition for one in group])
                for topic, group in groupby(sorted(found.partitions), key=lambda one: one.topic)
            ],
        )


def _undescribed(transactional_id: str, code: ErrorCode) -> DescribedTransaction:
    return DescribedTransaction(transactional_id=transactional_id, error_code=code)


def _filter_of(request: ListTransactionsRequest, now_ms: int) -> Callable[[Transaction], bool]:
    """Returns the filter of a request; an unknown state matches nothing."""
    states = {_STATES[name] for name in request.state_filters if name in _STATES}
    producer_ids = frozenset(request.producer_id_filters)
    duration_ms = request.duration_filter

    def passes(transaction: Transaction) -> bool:
        return (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not request.state_filters or transaction.state in states)
            and (duration_ms < 0 or now_ms - transaction.started_ms > duration_ms)
        )

    return passes
