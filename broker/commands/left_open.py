"""Transactions that a takeover left open for good, and their end.

    1 DescribeProducers     what is open in the partitions that were taken over
    2 ListTransactions,     what coordinators know: they end these themselves, with the next marker
      DescribeTransactions  or when they time out
    3 DescribeProducers     what is still open, of the same start, and known to nobody
    4 WriteTxnMarkers       that aborts: its marker was on the lost disk

As `kafka-transactions.sh find-hanging` and `abort` (KIP-664). A coordinator knows of a partition
before anything is written to it, so what is known to nobody between 1 and 3 is over.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple, TypeVar

from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS
from strandline.broker.commands.lost_broker import LostPartition
from strandline.broker.peers.connection import PeerConnection
from strandline.broker.peers.errors import PeerError
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from strandline.broker.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from strandline.broker.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from strandline.broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.tools.client.connection import ClusterConnection
from strandline.broker.tools.client.failures import ToolFailure
from strandline.broker.tools.nodes.quorum import Unasked, ask_first, connect, error_text
from strandline.broker.tools.nodes.requests import all_topics

ANSWER_S_MAX: Final = 30.0
# A new leader knows its producers when it has read the archive, a coordinator its ids when it has
# loaded them.
READY_S_MAX: Final = 30.0
LOOK_S: Final = 0.25
# Of transactions that a coordinator will end.
_UNDER_WAY: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})

T = TypeVar("T")
Brokers = Mapping[int, PeerConnection]


class HangingTransaction(NamedTuple):
    """A transaction that is open in a partition, by the log of its leader."""

    node_id: int
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    coordinator_epoch: int

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: the transaction of producer {self.producer_id}"
            f" from offset {self.start_offset} on"
        )


def end_left_open(
    connection: ClusterConnection, partitions: Sequence[LostPartition]
) -> Mapping[HangingTransaction, str]:
    """Aborts what nobody will end in partitions that were taken over; each with why it is still
    open, nothing if it is not.

    Raises ToolFailure if brokers do not say what is open, or what they know.
    """
    data = [one for one in partitions if one.topic not in INTERNAL_TOPICS]
    return asyncio.run(_end(connection, data)) if data else {}


async def _end(
    connection: ClusterConnection, partitions: Sequence[LostPartition]
) -> Mapping[HangingTransaction, str]:
    async with AsyncExitStack() as stack:
        try:
            brokers = await _connected(connection, stack)
            opened = await _when_ready(lambda: _opened(brokers, partitions))
            if not opened:
                return {}
            producers = sorted({one.producer_id for one in opened})
            known = await _when_ready(lambda: _known(brokers, producers))
            left = [
                one
                for one in await _when_ready(lambda: _opened(brokers, partitions))
                if one in opened and (one.producer_id, one.topic, one.partition) not in known
            ]
            return {one: await _abort(brokers[one.node_id], one) for one in left}
        except (PeerError, Unasked, _NotReady) as error:
            raise ToolFailure(f"open transactions are not looked for: {error}") from None


class _NotReady(Exception):
    """A broker does not know yet; says what."""


async def _when_ready(ask: Callable[[], Awaitable[T]]) -> T:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + READY_S_MAX
    while True:
        try:
            return await ask()
        except _NotReady:
            if loop.time() > deadline_s:
                raise
        await asyncio.sleep(LOOK_S)


async def _connected(connection: ClusterConnection, stack: AsyncExitStack) -> Brokers:
    """Connects to all brokers that serve."""
    described = await ask_first(
        connection,
        lambda first: first.call(
            DescribeClusterRequest(), DescribeClusterResponse, timeout_s=ANSWER_S_MAX
        ),
    )
    brokers = {}
    for one in described.brokers:
        connected = await connect(connection, f"{one.host}:{one.port}")
        stack.callback(connected.close)
        brokers[one.broker_id] = connected
    return brokers


# --- 1, 3 what is open ---------------------------------------------------------------------------


async def _opened(brokers: Brokers, partitions: Sequence[LostPartition]) -> set[HangingTransaction]:
    found: set[HangingTransaction] = set()
    if away := [one for one in partitions if one.successor not in brokers]:
        raise _NotReady(f"{away[0].name}: broker {away[0].successor} does not serve")
    for node_id, connected in brokers.items():
        mine = [one for one in partitions if one.successor == node_id]
        if mine:
            found |= await _opened_at(node_id, connected, mine)
    return found


async def _opened_at(
    node_id: int, connected: PeerConnection, partitions: Sequence[LostPartition]
) -> set[HangingTransaction]:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for one in partitions:
        by_topic[one.topic].append(one.partition)
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersTopic(name=name, partition_indexes=indexes)
            for name, indexes in by_topic.items()
        ]
    )
    answer = await connected.call(request, DescribeProducersResponse, timeout_s=ANSWER_S_MAX)
    found: set[HangingTransaction] = set()
    for topic in answer.topics:
        for place in topic.partitions:
            _check_ready(place.error_code, f"{topic.name}-{place.partition_index}")
            found |= {
                HangingTransaction(
                    node_id=node_id,
                    topic=topic.name,
                    partition=place.partition_index,
                    producer_id=one.producer_id,
                    producer_epoch=one.producer_epoch,
                    start_offset=one.current_txn_start_offset,
                    coordinator_epoch=max(one.coordinator_epoch, 0),
                )
                for one in place.active_producers
                if one.current_txn_start_offset >= 0
            }
    return found


def _check_ready(code: int, whose: str) -> None:
    """Raises _NotReady."""
    if code:
        raise _NotReady(f"{whose}: {error_text(code, None)}")


# --- 2 what coordinators know --------------------------------------------------------------------


async def _known(brokers: Brokers, producers: Sequence[int]) -> set[tuple[int, str, int]]:
    """Returns producers with the partitions of transactions that a coordinator will end."""
    await _check_coordinators(brokers)
    known: set[tuple[int, str, int]] = set()
    for node_id, connected in brokers.items():
        listed = await connected.call(
            ListTransactionsRequest(state_filters=[], producer_id_filters=producers),
            ListTransactionsResponse,
            timeout_s=ANSWER_S_MAX,
        )
        _check_ready(listed.error_code, f"transactions of broker {node_id}")
        ids = [
            one.transactional_id
            for one in listed.transaction_states
            if one.transaction_state in _UNDER_WAY
        ]
        if not ids:
            continue
        described = await connected.call(
            DescribeTransactionsRequest(transactional_ids=ids),
            DescribeTransactionsResponse,
            timeout_s=ANSWER_S_MAX,
        )
        for one in described.transaction_states:
            _check_ready(one.error_code, one.transactional_id)
            known |= {
                (one.producer_id, topic.topic, number)
                for topic in one.topics
                for number in topic.partitions
            }
    return known


async def _check_coordinators(brokers: Brokers) -> None:
    """Raises _NotReady if nobody was asked for some of the transactions: one may go on there."""
    metadata = await all_topics(next(iter(brokers.values())))
    for topic in metadata.topics:
        for place in topic.partitions if topic.name == TRANSACTION_TOPIC else ():
            if place.leader_id not in brokers:
                name = f"{TRANSACTION_TOPIC}-{place.partition_index}"
                raise _NotReady(f"{name} has no leader that answers")


# --- 4 its end -----------------------------------------------------------------------------------


async def _abort(connected: PeerConnection, left: HangingTransaction) -> str:
    """Returns why it is still open, nothing if it is not."""
    marker = WritableTxnMarker(
        producer_id=left.producer_id,
        producer_epoch=left.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=left.topic, partition_indexes=[left.partition])],
        coordinator_epoch=left.coordinator_epoch,
    )
    answer = await connected.call(
        WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, timeout_s=ANSWER_S_MAX
    )
    codes = [
        place.error_code
        for result in answer.markers
        for topic in result.topics
        for place in topic.partitions
    ]
    code = codes[0] if codes else ErrorCode.UNKNOWN_SERVER_ERROR
    return error_text(code, None) if code else ""
